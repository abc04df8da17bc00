//! JSON values as bytes that sort as the values do.
//!
//! Types sort undefined, null, false, true, number, string, array, object. Every encoding ends itself, so several can
//! follow each other in one key, and inverting all bytes of one turns its order around (composite indexes).
//! Arrays and objects only sort against other types. Strings longer than [`STRING_BYTES_MAX`] are cut and marked:
//! two of them may be equal here and different in truth.

use serde_json::{Number, Value};

/// Longer strings are cut in keys.
pub(crate) const STRING_BYTES_MAX: usize = 256;

pub(crate) const UNDEFINED: u8 = 0x10;
const NULL: u8 = 0x20;
const FALSE: u8 = 0x30;
const TRUE: u8 = 0x31;
const NUMBER: u8 = 0x40;
const STRING: u8 = 0x50;
const ARRAY: u8 = 0x60;
const OBJECT: u8 = 0x70;
/// Larger than every encoding.
pub(crate) const BEYOND: u8 = 0x80;

const WHOLE_END: [u8; 2] = [0x00, 0x01];
const CUT_END: [u8; 2] = [0x00, 0x02];

/// Appends a value; `None` is undefined.
pub(crate) fn push(out: &mut Vec<u8>, value: Option<&Value>) {
    push_up_to(out, value, STRING_BYTES_MAX);
}

/// The same where strings are cut behind another number of bytes.
pub(crate) fn push_up_to(out: &mut Vec<u8>, value: Option<&Value>, string_bytes_max: usize) {
    match value {
        None => out.push(UNDEFINED),
        Some(Value::Null) => out.push(NULL),
        Some(Value::Bool(false)) => out.push(FALSE),
        Some(Value::Bool(true)) => out.push(TRUE),
        Some(Value::Number(number)) => push_number(out, number),
        Some(Value::String(text)) => push_string(out, text, string_bytes_max),
        Some(Value::Array(_)) => out.push(ARRAY),
        Some(Value::Object(_)) => out.push(OBJECT),
    }
}

/// The encoding of one value.
pub(crate) fn encoded(value: Option<&Value>) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    push(&mut out, value);
    out
}

/// Whether the encoding stands for more than one value.
pub(crate) fn is_cut(encoded: &[u8]) -> bool {
    encoded.first() == Some(&STRING) && encoded.ends_with(&CUT_END)
}

/// Where the first cut string ends among encodings that follow each other, each with whether its bytes are inverted.
pub(crate) fn cut_end(encoded: &[u8], inverted: impl IntoIterator<Item = bool>) -> Option<usize> {
    let mut at = 0;
    for is_inverted in inverted {
        let plain = |byte: &u8| if is_inverted { !*byte } else { *byte };
        let rest = encoded.get(at..)?;
        at += match rest.first().map(plain)? {
            NUMBER => 1 + 8 + 2,
            STRING => {
                let is_end = |pair: &[u8]| plain(&pair[0]) == 0 && plain(&pair[1]) != 0xff;
                let end = rest.windows(2).position(is_end)? + 2;
                if plain(&rest[end - 1]) == CUT_END[1] {
                    return Some(at + end);
                }
                end
            }
            _ => 1,
        };
    }
    None
}

/// The smallest encodings of values of the same type, and the smallest beyond them.
pub(crate) fn type_bounds(value: &Value) -> (Vec<u8>, Vec<u8>) {
    match value {
        Value::Null => (vec![NULL], vec![NULL + 1]),
        Value::Bool(_) => (vec![FALSE], vec![TRUE + 1]),
        Value::Number(_) => (vec![NUMBER], vec![NUMBER + 1]),
        Value::String(_) => (vec![STRING], vec![STRING + 1]),
        Value::Array(_) => (vec![ARRAY], vec![ARRAY + 1]),
        Value::Object(_) => (vec![OBJECT], vec![OBJECT + 1]),
    }
}

/// A prefix that every value equal to this one has; others may have it too.
pub(crate) fn equality_prefix(value: &Value) -> Vec<u8> {
    let mut out = encoded(Some(value));
    if value.is_number() {
        out.truncate(1 + 8);
    }
    out
}

fn push_number(out: &mut Vec<u8>, number: &Number) {
    out.push(NUMBER);
    // Documents have no negative zero, but parameters do: adding zero takes its sign away.
    let float = number.as_f64().unwrap_or(f64::NAN) + 0.0;
    let bits = float.to_bits();
    let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    out.extend_from_slice(&ordered.to_be_bytes());
    // Integers beyond 2^53 share doubles; what rounding took away decides between them.
    #[expect(clippy::cast_possible_truncation, reason = "saturates; the difference is below 2^11")]
    let rest = match (number.as_i64(), number.as_u64()) {
        (Some(int), _) => i128::from(int) - float as i128,
        (None, Some(int)) => i128::from(int) - float as i128,
        (None, None) => 0,
    };
    let rest = u16::try_from(rest + 0x8000).unwrap_or(0x8000);
    out.extend_from_slice(&rest.to_be_bytes());
}

fn push_string(out: &mut Vec<u8>, text: &str, bytes_max: usize) {
    out.push(STRING);
    let bytes = text.as_bytes();
    let cut = bytes.len() > bytes_max;
    push_escaped(out, if cut { &bytes[..bytes_max] } else { bytes });
    out.extend_from_slice(if cut { &CUT_END } else { &WHOLE_END });
}

/// Appends bytes so that a following end mark sorts shorter texts first: zero becomes `00 FF`.
pub(crate) fn push_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(zero) = rest.iter().position(|b| *b == 0) {
        out.extend_from_slice(&rest[..zero]);
        out.extend_from_slice(&[0x00, 0xff]);
        rest = &rest[zero + 1..];
    }
    out.extend_from_slice(rest);
}

/// The end mark that follows [`push_escaped`].
pub(crate) fn push_end(out: &mut Vec<u8>) {
    out.extend_from_slice(&WHOLE_END);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn encodings_sort_as_the_values_do() {
        let long = |tail: &str| json!("x".repeat(STRING_BYTES_MAX) + tail);
        let ascending = [
            json!(null),
            json!(false),
            json!(true),
            json!(-1e300),
            json!(i64::MIN),
            json!(i64::MIN + 1),
            json!(-2.5),
            json!(-2),
            json!(0),
            json!(1e-300),
            json!(1),
            json!(1.5),
            json!(9_007_199_254_740_992_i64),
            json!(9_007_199_254_740_993_i64),
            json!(i64::MAX - 1),
            json!(i64::MAX),
            json!(u64::MAX),
            json!(1e300),
            json!(""),
            json!("\u{0}"),
            json!("\u{0}a"),
            json!("a"),
            json!("a\u{0}"),
            json!("aa"),
            json!("b"),
            long(""),
            long("a"),
            json!("é"),
            json!([1]),
            json!({"a": 1}),
        ];
        let keys: Vec<_> =
            std::iter::once(encoded(None)).chain(ascending.iter().map(|v| encoded(Some(v)))).collect();
        for (pair, values) in keys.windows(2).zip(&ascending) {
            assert!(pair[0] < pair[1], "before {values}");
            assert!(pair[0][0] < BEYOND && pair[1][0] < BEYOND);
        }
        assert!(is_cut(&encoded(Some(&long("a")))) && !is_cut(&encoded(Some(&long("")))));
    }

    #[test]
    fn zero_has_one_encoding() {
        assert_eq!(encoded(Some(&json!(-0.0))), encoded(Some(&json!(0))));
    }

    #[test]
    fn the_first_cut_string_among_several_is_found() {
        let long = json!("\u{0}".repeat(STRING_BYTES_MAX + 1));
        let short = json!("a\u{0}");
        let (first, cut) = (encoded(Some(&short)), encoded(Some(&long)));
        let inverted: Vec<u8> = cut.iter().map(|byte| !byte).collect();
        let number = encoded(Some(&json!(1)));
        let all = [first.as_slice(), &number, &inverted, &number].concat();
        let end = first.len() + number.len() + cut.len();
        assert_eq!(cut_end(&all, [false, false, true, false]), Some(end));
        assert_eq!(cut_end(&all, [false, false]), None);
        assert_eq!(cut_end(&cut, [false]), Some(cut.len()));
        assert_eq!(cut_end(&[UNDEFINED, NULL], [false, false, false]), None);
    }

    #[test]
    fn numbers_that_share_a_double_share_an_equality_prefix() {
        let (a, b) = (json!(9_007_199_254_740_993_i64), json!(9_007_199_254_740_992_i64));
        assert_eq!(equality_prefix(&a), equality_prefix(&b));
    }
}
