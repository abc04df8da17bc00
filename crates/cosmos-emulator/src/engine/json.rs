//! JSON as the service takes it: strict about structure, forgiving about surrogates, and with one spelling of each
//! number on the way out.
//!
//! A document is parsed exactly once per write. Numbers lose their fraction when it is zero (`1.0` is stored as
//! `1`), negative zero becomes zero, and 64-bit integers stay exact.

use cosmos_wire::number;
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

/// Why a text is not a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The grammar is broken at this byte.
    Syntax(usize),
    /// An object names a property twice.
    DuplicateKey(String),
    /// Objects and arrays are nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// A number outside the range of a double.
    NumberRange,
}

/// How deep objects and arrays may nest.
pub(crate) const DEPTH_MAX: usize = 128;

/// Parses one JSON text.
pub(crate) fn parse(text: &[u8]) -> Result<Value, Malformed> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    parser.blank();
    if parser.at == text.len() { Ok(value) } else { Err(Malformed::Syntax(parser.at)) }
}

/// Whether objects and arrays nest in a value no deeper than this.
pub(crate) fn nests_within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| nests_within(item, levels - 1)),
        Value::Object(map) => levels > 0 && map.values().all(|item| nests_within(item, levels - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Writes a value without blanks, numbers as the service spells them in stored documents.
pub(crate) fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            out.push(b'{');
            for (i, (name, item)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_string(name, out);
                out.push(b':');
                write(item, out);
            }
            out.push(b'}');
        }
    }
}

/// Writes a string with its quotes.
pub(crate) fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let (plain, special) = rest.split_at(plain_bytes(rest));
        out.extend_from_slice(plain);
        let Some((byte, left)) = special.split_first() else { break };
        rest = left;
        match *byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            other => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(other >> 4)]);
                out.push(HEX[usize::from(other & 15)]);
            }
        }
    }
    out.push(b'"');
}

/// How many bytes stand for themselves in a string, up to the first that does not.
fn plain_bytes(bytes: &[u8]) -> usize {
    // Eight at a time, and no more than that: some texts are nothing but escapes.
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return 8 * at + special.trailing_zeros() as usize / 8;
        }
    }
    let is_special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    8 * words.len() + rest.iter().position(is_special).unwrap_or(rest.len())
}

/// Which of eight bytes are quotes, backslashes or control characters, by their highest bits. Borrows may mark bytes
/// above the lowest that is one.
fn special_bytes(word: u64) -> u64 {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    let is_below = |word: u64, limit: u8| word.wrapping_sub(EACH * u64::from(limit)) & !word;
    let is_equal = |byte: u8| is_below(word ^ (EACH * u64::from(byte)), 1);
    (is_below(word, 0x20) | is_equal(b'"') | is_equal(b'\\')) & (EACH << 7)
}

fn write_number(value: &Number, out: &mut Vec<u8>) {
    if value.is_f64() {
        out.extend_from_slice(number::render(value, number::Style::Point).as_bytes());
    } else {
        use std::io::Write;
        write!(out, "{value}").expect("writing to memory does not fail");
    }
}

/// The one form a double is kept in: integers without fraction become integers, so that `1.0` and `1` are equal
/// everywhere.
pub(crate) fn normal_number(value: f64) -> Option<Number> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 2^53, checked above")]
        return Some(Number::from(value as i64));
    }
    Number::from_f64(value)
}

/// Room for the properties of a usual document.
const PROPERTIES_USUAL: usize = 12;

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn wrong<T>(&self) -> Result<T, Malformed> {
        Err(Malformed::Syntax(self.at))
    }

    fn expect(&mut self, word: &[u8], value: Value) -> Result<Value, Malformed> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(value)
        } else {
            self.wrong()
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, Malformed> {
        self.blank();
        match self.peek() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.expect(b"true", Value::Bool(true)),
            Some(b'f') => self.expect(b"false", Value::Bool(false)),
            Some(b'n') => self.expect(b"null", Value::Null),
            Some(_) | None => self.wrong(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Malformed> {
        if depth > DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        self.at += 1;
        self.blank();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(Map::new()));
        }
        let mut map = Map::with_capacity(if depth == 1 { PROPERTIES_USUAL } else { 0 });
        loop {
            self.blank();
            if self.peek() != Some(b'"') {
                return self.wrong();
            }
            let name = self.string()?;
            self.blank();
            if self.peek() != Some(b':') {
                return self.wrong();
            }
            self.at += 1;
            let value = self.value(depth)?;
            match map.entry(name) {
                Entry::Vacant(free) => {
                    free.insert(value);
                }
                Entry::Occupied(taken) => return Err(Malformed::DuplicateKey(taken.key().clone())),
            }
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(map));
                }
                Some(_) | None => return self.wrong(),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Malformed> {
        if depth > DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        self.at += 1;
        let mut items = Vec::new();
        self.blank();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                Some(_) | None => return self.wrong(),
            }
        }
    }

    fn number(&mut self) -> Result<Value, Malformed> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            Some(_) | None => return self.wrong(),
        }
        let mut whole = true;
        if self.peek() == Some(b'.') {
            whole = false;
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            whole = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).expect("digits are ASCII");
        if whole {
            if let Ok(value) = text.parse::<i64>() {
                return Ok(Value::Number(value.into()));
            }
            if let Ok(value) = text.parse::<u64>() {
                return Ok(Value::Number(value.into()));
            }
        }
        let value: f64 = text.parse().map_err(|_| Malformed::Syntax(start))?;
        normal_number(value).map(Value::Number).ok_or(Malformed::NumberRange)
    }

    fn digits(&mut self) {
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        self.digits();
        if self.at == start { self.wrong() } else { Ok(()) }
    }

    fn string(&mut self) -> Result<String, Malformed> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let start = self.at;
            self.at += plain_bytes(&self.text[start..]);
            text.push_str(self.utf8(start)?);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    self.at += 1;
                    text.push(self.escape()?);
                }
                Some(_) | None => return self.wrong(),
            }
        }
    }

    fn utf8(&self, start: usize) -> Result<&str, Malformed> {
        std::str::from_utf8(&self.text[start..self.at])
            .map_err(|e| Malformed::Syntax(start + e.valid_up_to()))
    }

    fn escape(&mut self) -> Result<char, Malformed> {
        let Some(byte) = self.peek() else { return self.wrong() };
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with(b"\\u") {
                    let back = self.at;
                    self.at += 2;
                    let second = self.hex()?;
                    if (0xdc00..0xe000).contains(&second) {
                        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    self.at = back;
                }
                char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(Malformed::Syntax(self.at - 1)),
        })
    }

    fn hex(&mut self) -> Result<u32, Malformed> {
        let digits = self.text.get(self.at..self.at + 4).ok_or(Malformed::Syntax(self.at))?;
        let mut code = 0;
        for &digit in digits {
            let value = char::from(digit).to_digit(16).ok_or(Malformed::Syntax(self.at))?;
            code = code * 16 + value;
        }
        self.at += 4;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> Result<String, Malformed> {
        let value = parse(text.as_bytes())?;
        let mut out = Vec::new();
        write(&value, &mut out);
        Ok(String::from_utf8(out).expect("we write UTF-8"))
    }

    #[test]
    fn documents_are_written_without_blanks_and_with_normal_numbers() {
        for (given, stored) in [
            (" { \"a\" : [ 1 , true , null ] } ", r#"{"a":[1,true,null]}"#),
            ("1.0", "1"),
            ("-0.0", "0"),
            ("-0", "0"),
            ("1.50", "1.5"),
            ("9223372036854775807", "9223372036854775807"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("18446744073709551615", "18446744073709551615"),
            (r#""\u00e9\n\u0000\ud83d\ude00""#, "\"é\\n\\u0000😀\""),
            (r#""\ud800x""#, "\"\u{fffd}x\""),
            (r#""\udc00\u0041""#, "\"\u{fffd}A\""),
        ] {
            assert_eq!(round(given).as_deref(), Ok(stored), "{given}");
        }
    }

    #[test]
    fn bytes_that_stand_for_themselves_are_told_from_others_wherever_they_are() {
        for (at, byte) in (0..20).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
            let mut bytes = [b' '; 21];
            bytes[at] = byte;
            let is_special = byte < 0x20 || matches!(byte, b'"' | b'\\');
            let expected = if is_special { at } else { bytes.len() };
            assert_eq!(plain_bytes(&bytes), expected, "{byte:#x} at {at}");
            // Whatever stands behind it.
            bytes[at + 1..].fill(b'\\');
            assert_eq!(plain_bytes(&bytes), if is_special { at } else { at + 1 }, "{byte:#x} at {at}");
        }
    }

    /// Cuts and flips of a document: no input makes the parser panic, and what it takes serde_json takes too.
    #[test]
    fn any_bytes_are_parsed_or_refused() {
        let text =
            r#"{"a":[1,-2.5e3,true,null,"x\u00e9\ud83d\ude00\n"],"b":{"c":{}},"d":18446744073709551615}"#
                .as_bytes();
        let mut seed = 1_u64;
        for round in 0..20_000 {
            let mut bytes = text.to_vec();
            for _ in 0..=round % 3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = usize::try_from(seed >> 33).expect("31 bits") % bytes.len();
                match seed % 3 {
                    0 => bytes[at] = seed.to_be_bytes()[1],
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, b"{}[],:\"\\0e-"[at % 11]),
                }
            }
            match (parse(&bytes), serde_json::from_slice::<Value>(&bytes)) {
                (Ok(_), Err(error)) => {
                    assert!(
                        error.to_string().contains("surrogate") || error.to_string().contains("hex"),
                        "{error}"
                    );
                }
                (Err(Malformed::Syntax(_)), Ok(value)) => panic!("{value} was refused"),
                (Ok(ours), Ok(theirs)) => {
                    assert_eq!(parse(theirs.to_string().as_bytes()), Ok(ours));
                }
                (Err(_), _) => {}
            }
        }
    }

    #[test]
    fn broken_documents_are_refused() {
        for text in
            ["", "{", "{\"a\"}", "[1,]", "01", "1.", "nul", "\"a", "\"\\x\"", "{} {}", "{'a':1}", "NaN"]
        {
            assert!(matches!(parse(text.as_bytes()), Err(Malformed::Syntax(_))), "{text}");
        }
        assert_eq!(parse(b"{\"a\":1,\"a\":2}"), Err(Malformed::DuplicateKey("a".into())));
        assert_eq!(parse(b"1e400"), Err(Malformed::NumberRange));
        let deep = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        assert!(parse(&deep(DEPTH_MAX)).is_ok());
        assert_eq!(parse(&deep(DEPTH_MAX + 1)), Err(Malformed::TooDeep));
    }
}
