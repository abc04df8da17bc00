use serde_json::Value;

use super::*;
use crate::partition_key::Component;

fn epk(hex: &str) -> Epk {
    hex.parse().unwrap()
}

fn range(min: &str, max: &str) -> EpkRange {
    EpkRange::new(epk(min), epk(max))
}

#[test]
fn keys_hash_to_what_other_sdks_compute() {
    let vectors: Value = serde_json::from_str(include_str!("../../testdata/epk.json")).unwrap();
    let cases = vectors["cases"].as_array().unwrap();
    assert!(cases.len() > 60);
    for case in cases {
        // The header form limits keys to three values, as the vectors do.
        let key: PartitionKey = case["key"].to_string().parse().unwrap();
        let paths = ["/a", "/b", "/c"];
        let definition = Definition::from_json(&serde_json::json!({
            "paths": paths[..key.components().len()], "kind": case["kind"], "version": case["version"],
        }))
        .unwrap();
        assert_eq!(Epk::of(&key, &definition).to_hex(), case["epk"].as_str().unwrap(), "{case}");
        assert_eq!(Scope::of(&key, &definition), Ok(Scope::Point(Epk::of(&key, &definition))));
    }
}

/// Unmasked hashes from the .NET SDK's `PartitionKeyHashBaselineTest`; its first byte has two bits
/// more than an effective key.
#[test]
fn numbers_hash_as_the_dot_net_baseline_has_them() {
    let definition = Definition::hash("/pk").unwrap();
    let cases = [
        (1.0, "A0CD98B339BA78A5D0CF6953B87070B0"),
        (-1.0, "59938E7A936C1C5B9E3AE842BBC16839"),
        (-f64::MAX, "27050CC4910CFD9DACE1283D3801DF25"),
        (9_007_199_254_740_991.0, "12C221C7032CED1F9E6693CE1428E6CF"),
        (9_007_199_254_740_992.0, "55335910D01122E3D99DA5DE569B065D"),
    ];
    for (number, baseline) in cases {
        let mut bytes = epk(baseline).as_bytes().to_vec();
        bytes[0] &= 0x3F;
        assert_eq!(Epk::of(&number.into(), &definition), Epk::from_bytes(bytes), "{number}");
    }
}

#[test]
fn a_prefix_of_a_hierarchical_key_addresses_a_range() {
    let definition = Definition::multi_hash(&["/a", "/b", "/c"]).unwrap();
    let prefix = Scope::of(&"partitionKey".into(), &definition).unwrap();
    let expected = range("013AEFCF77FA271571CF665A58C933F1", "013AEFCF77FA271571CF665A58C933F1FF");
    assert_eq!(prefix, Scope::Range(expected.clone()));
    let whole = PartitionKey::new(vec!["partitionKey".into(), Component::Null, false.into()]);
    assert!(expected.contains(&Epk::of(&whole, &definition)));
    assert_eq!(Scope::of(&PartitionKey::EMPTY, &definition), Ok(Scope::Range(EpkRange::full())));
    let too_many = PartitionKey::new(vec![Component::Null; 4]);
    assert_eq!(Scope::of(&too_many, &definition), Err(KeyMismatch));
    let plain = Definition::hash("/a").unwrap();
    assert_eq!(Scope::of(&PartitionKey::EMPTY, &plain), Ok(Scope::Point(Epk::MIN)));
}

#[test]
fn zero_bytes_at_the_end_do_not_count() {
    assert_eq!(epk("05"), epk("0500"));
    assert_eq!(epk("05").cmp(&epk("050000")), Ordering::Equal);
    assert_eq!(epk(""), epk("00"));
    assert!(epk("05") < epk("050001"));
    assert!(epk("04FF") < epk("05"));
    assert!(epk("3FFF") < Epk::max());
    assert_eq!(epk("0500").to_hex(), "0500", "but they are written");
    for text in ["0", "0G", "F", "zz", "日本"] {
        assert_eq!(text.parse::<Epk>(), Err(InvalidEpk), "{text}");
    }
    assert_eq!(epk("ab").to_hex(), "AB");
}

#[test]
fn ranges_hold_their_lower_bound_and_not_their_upper() {
    let middle = range("10", "20");
    assert!(middle.contains(&epk("10")) && middle.contains(&epk("1FFF")) && !middle.contains(&epk("20")));
    // other, overlaps
    let cases = [
        ("", "FF", true),
        ("20", "30", false),
        ("00", "10", false),
        ("1F", "30", true),
        ("12", "13", true),
        ("15", "15", false),
    ];
    for (min, max, overlaps) in cases {
        assert_eq!(middle.overlaps(&range(min, max)), overlaps, "{min} {max}");
        assert_eq!(range(min, max).overlaps(&middle), overlaps, "{min} {max}");
    }
    assert_eq!(middle.intersection(&range("1800", "FF")), Some(range("18", "20")));
    assert!(EpkRange::full().contains_range(&middle) && !middle.contains_range(&EpkRange::full()));
    assert_eq!(middle.to_string(), "[10, 20)");
}

/// V1 bounds as the routing tests of the Python, JavaScript and Spark SDKs list them for five ranges,
/// and a recorded two-range container; the V2 bounds as the Python SDK's tests of routing
/// and of its circuit breaker have them.
#[test]
fn new_ranges_are_bounded_as_on_the_service() {
    let bounds = |version, count| -> Vec<String> {
        EpkRange::equal(version, count).iter().map(|range| range.min.to_hex()).collect()
    };
    assert_eq!(EpkRange::equal(Version::V2, 1), [EpkRange::full()]);
    assert_eq!(bounds(Version::V2, 2), ["", "1FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"]);
    assert_eq!(bounds(Version::V2, 5)[1], "0CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC");
    assert_eq!(bounds(Version::V2, 5)[4], "33333333333333333333333333333330");
    assert_eq!(bounds(Version::V1, 2), ["", "05C1DFFFFFFFFC"]);
    assert_eq!(
        bounds(Version::V1, 5),
        ["", "05C1C9CD673398", "05C1D9CD673398", "05C1E399CD6732", "05C1E9CD673398"]
    );
    for version in [Version::V1, Version::V2] {
        for count in [1, 2, 3, 7, 100] {
            let ranges = EpkRange::equal(version, count);
            assert_eq!(ranges.len(), count as usize);
            assert_eq!((&ranges[0].min, &ranges[ranges.len() - 1].max), (&Epk::MIN, &Epk::max()));
            assert!(ranges.windows(2).all(|pair| pair[0].max == pair[1].min && pair[0].min < pair[0].max));
        }
    }
}

#[test]
fn a_range_is_divided_in_the_middle() {
    let full = EpkRange::full();
    assert_eq!(full.midpoint(Version::V2), Some(epk("1FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF")));
    assert_eq!(full.midpoint(Version::V1), Some(epk("05C1DFFFFFFFFC")));
    assert_eq!(range("10", "20").midpoint(Version::V2), Some(epk("18")));
    assert_eq!(range("10", "10").midpoint(Version::V2), None);
    assert_eq!(range("05C1DFFFFFFFFC", "05C1DFFFFFFFFC").midpoint(Version::V1), None);
    for version in [Version::V1, Version::V2] {
        let mut pieces = vec![EpkRange::full()];
        for _ in 0..6 {
            pieces = pieces
                .iter()
                .flat_map(|piece| {
                    let middle = piece.midpoint(version).unwrap();
                    [
                        EpkRange::new(piece.min.clone(), middle.clone()),
                        EpkRange::new(middle, piece.max.clone()),
                    ]
                })
                .collect();
        }
        assert_eq!(pieces.len(), 64);
        assert!(pieces.windows(2).all(|pair| pair[0].max == pair[1].min && !pair[0].is_empty()));
    }
}

#[test]
fn every_key_falls_into_exactly_one_range() {
    for json in [r#"{"paths":["/pk"],"version":2}"#, r#"{"paths":["/pk"]}"#] {
        let definition = Definition::from_json(&serde_json::from_str(json).unwrap()).unwrap();
        let ranges = EpkRange::equal(definition.version(), 8);
        let mut counts = [0; 8];
        for index in 0..4000 {
            let place = Epk::of(&format!("key-{index}").into(), &definition);
            let inside: Vec<_> = (0..8).filter(|range| ranges[*range].contains(&place)).collect();
            assert_eq!(inside.len(), 1);
            counts[inside[0]] += 1;
        }
        assert!(counts.iter().all(|count| (380..620).contains(count)), "{counts:?}");
    }
}
