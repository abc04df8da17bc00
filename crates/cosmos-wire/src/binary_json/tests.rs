use serde_json::{Value, json};

use super::*;

/// Name, bytes and JSON of each vector; the file says where they are from.
fn vectors() -> Vec<(String, Vec<u8>, Value)> {
    let file: Value = serde_json::from_str(include_str!("../../testdata/binary_json.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    let text = |case: &Value, property: &str| case[property].as_str().unwrap().to_owned();
    let bytes = |hex: String| -> Vec<u8> { hex.parse::<crate::epk::Epk>().unwrap().as_bytes().to_vec() };
    cases.iter().map(|case| (text(case, "name"), bytes(text(case, "binary")), case["json"].clone())).collect()
}

fn reason(buffer: &[u8]) -> Reason {
    decode(buffer).expect_err("the buffer is broken").reason
}

#[test]
fn every_form_decodes_to_what_the_sdk_says() {
    let vectors = vectors();
    assert!(vectors.len() > 80);
    for (name, binary, json) in vectors {
        assert_eq!(decode(&binary), Ok(json), "{name}");
    }
}

#[test]
fn plain_forms_encode_to_what_the_sdk_writes() {
    let plain = [
        "null",
        "false",
        "true",
        "literal_int_zero",
        "literal_int_max",
        "uint8",
        "int16",
        "int32",
        "int64",
        "uint64",
        "double",
        "system_string_id",
        "system_string_first",
        "system_string_rid",
        "system_string_last",
        "encoded_length_string_empty",
        "encoded_length_string_hi",
        "str_l2_300a",
        "empty_array",
        "empty_object",
        "single_item_array",
        "single_item_object",
        "array_l1",
        "object_l1",
        "nested_containers",
    ];
    let vectors = vectors();
    for name in plain {
        let (_, binary, json) = vectors.iter().find(|(known, _, _)| known == name).unwrap();
        assert_eq!(encode(json), *binary, "{name}");
    }
}

#[test]
fn a_document_survives_encoding() {
    let document = json!({
        "id": "1", "_ts": 1_791_622_915, "pk": "日本", "n": [1.5, -1, 31, 32, 255, 256, -32769, 1e300, u64::MAX, i64::MIN],
        "deep": {"a": {"b": [[], {}, [null, true]]}}, "long": "x".repeat(70_000), "middle": "y".repeat(200),
        "list": (0..300).collect::<Vec<i32>>(),
    });
    let binary = encode(&document);
    assert!(is_binary(&binary));
    assert_eq!(decode(&binary), Ok(document));
}

#[test]
fn broken_buffers_are_refused_with_a_reason() {
    let cases: [(&[u8], Reason); 22] = [
        (b"", Reason::NoPreamble),
        (b"{}", Reason::NoPreamble),
        (&[0x80], Reason::Truncated),
        (&[0x80, 0x82, b'a'], Reason::Truncated),
        (&[0x80, 0xD0, 0xD0], Reason::TrailingBytes),
        (&[0x80, 0xFF], Reason::UnknownMarker),
        (&[0x80, 0xCF, 0, 0], Reason::UnknownMarker),
        (&[0x80, 0x68], Reason::UnknownMarker),
        (&[0x80, 0x40], Reason::UserString),
        (&[0x80, 0x61, 0x01], Reason::UserString),
        (&[0x80, 0xE9, 0x01, 0x01], Reason::NameNotString),
        (&[0x80, 0xE2, 0x01, 0x81, b'a'], Reason::LengthMismatch),
        (&[0x80, 0xE5, 0x01, 0x02, 0xD0], Reason::LengthMismatch),
        (&[0x80, 0xE4, 0xFF, 0xFF, 0xFF, 0xFF], Reason::Truncated),
        (&[0x80, 0xC2, 0xFF, 0xFF, 0xFF, 0xFF], Reason::Truncated),
        (&[0x80, 0x82, 0xFF, 0xFE], Reason::InvalidText),
        (&[0x80, 0xCC, 0, 0, 0, 0, 0, 0, 0xF0, 0x7F], Reason::NotFinite),
        (&[0x80, 0xC3, 0x01], Reason::BadReference),
        (&[0x80, 0xE2, 0x04, 0x80, 0xC3, 0x00, 0xD0], Reason::BadReference),
        (&[0x80, 0xF0, 0xC8, 0x01, 0x01], Reason::UnknownMarker),
        (&[0x80, 0x71, 0x00, 0x01], Reason::LengthMismatch),
        (&[0x80, 0x7B, 0x02, 0x7F, 0xFF], Reason::InvalidText),
    ];
    for (buffer, expected) in cases {
        assert_eq!(reason(buffer), expected, "{buffer:02X?}");
    }
}

#[test]
fn nesting_is_limited() {
    let nested = |levels: usize| [vec![0x80], vec![0xE1; levels], vec![0xE0]].concat();
    assert!(decode(&nested(DEPTH_MAX - 1)).is_ok());
    assert_eq!(reason(&nested(DEPTH_MAX)), Reason::TooDeep);
    assert_eq!(reason(&[vec![0x80], vec![0xE1; 1_000_000]].concat()), Reason::TooDeep);
}

#[test]
fn expansion_is_limited() {
    // One string of 60 KB and ten thousand references to it would be 600 MB.
    let mut body = vec![0xC1, 0x60, 0xEA];
    body.extend(vec![b'a'; 60_000]);
    body.extend([0xC3, 0x06].repeat(10_000));
    let mut buffer = vec![0x80, 0xE4];
    buffer.extend((body.len() as u32).to_le_bytes());
    buffer.extend(&body);
    assert_eq!(reason(&buffer), Reason::TooLarge);

    // Arrays of empty arrays cost nothing on the wire.
    let empties = [0xF3, 0xF1, 0xDA, 0x00, 0x00, 0xFF, 0xFF].repeat(30_000);
    let mut buffer = vec![0x80, 0xE4];
    buffer.extend((empties.len() as u32).to_le_bytes());
    buffer.extend(&empties);
    assert_eq!(reason(&buffer), Reason::TooLarge);
}

/// Every vector with each byte changed, and cut at each length, either decodes or is refused.
#[test]
fn damaged_buffers_never_panic() {
    for (_, binary, _) in vectors() {
        for cut in 0..binary.len() {
            let _ = decode(&binary[..cut]);
        }
        for index in 1..binary.len().min(24) {
            for byte in 0..=u8::MAX {
                let mut damaged = binary.clone();
                damaged[index] = byte;
                let _ = decode(&damaged);
            }
        }
    }
    // A fixed generator: noise that is the same on every run.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..20_000 {
        let mut buffer = vec![PREAMBLE];
        for _ in 0..40 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            buffer.push((state >> 56) as u8);
        }
        let _ = decode(&buffer);
    }
}
