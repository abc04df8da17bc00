//! How the service writes numbers.
//!
//! Whole numbers that fit 64 bits are written exactly, other numbers with the shortest digits that
//! read back to the same double. `1.0` becomes `1` and `-0.0` becomes `0`. A point read and a query
//! differ in two habits: the least number of exponent digits (`e+019` against `e+19`), and unsigned
//! numbers above the signed range, which a query turns into doubles.

use std::io;

use serde::Serialize;
use serde_json::{Number, Value};

/// Which of the service's two number writers to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Point reads and writes: three exponent digits, unsigned 64-bit numbers exact.
    Point,
    /// Query results: two exponent digits, numbers above the signed range become doubles.
    Query,
}

/// Text of a double.
///
/// The value must be finite; JSON has no other numbers and the service refuses them.
#[must_use]
pub fn render_f64(value: f64, style: Style) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.trunc() == value && value.abs() < TWO_POW_63 {
        // The bound makes the cast exact.
        return (value as i64).to_string();
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (EXPONENT_PLAIN_MIN..0).contains(&exponent) || (exponent >= 0 && value.abs() < TWO_POW_63) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let digits = exponent.unsigned_abs();
    match style {
        Style::Point => format!("{mantissa}e{sign}{digits:03}"),
        Style::Query => format!("{mantissa}e{sign}{digits:02}"),
    }
}

/// Text of any JSON number.
#[must_use]
pub fn render(number: &Number, style: Style) -> String {
    if let Some(signed) = number.as_i64() {
        return signed.to_string();
    }
    match (number.as_u64(), style) {
        (Some(unsigned), Style::Point) => unsigned.to_string(),
        (Some(unsigned), Style::Query) => render_f64(unsigned as f64, style),
        (None, _) => number.as_f64().map_or_else(|| number.to_string(), |float| render_f64(float, style)),
    }
}

/// JSON text of a value with numbers written as the service writes them.
#[must_use]
pub fn to_json(value: &Value, style: Style) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_json(&mut out, value, style)
        .expect("a vector accepts every write and a Value has only string keys");
    out
}

/// Writes JSON text with numbers as the service writes them.
///
/// # Errors
/// Only what the writer reports.
pub fn write_json<W: io::Write>(out: W, value: &Value, style: Style) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(out, Formatter::new(style));
    value.serialize(&mut serializer).map_err(io::Error::from)
}

/// A `serde_json` formatter with the service's numbers; otherwise compact.
#[derive(Debug, Clone, Copy)]
pub struct Formatter {
    style: Style,
}

impl Formatter {
    /// A formatter of this style.
    #[must_use]
    pub fn new(style: Style) -> Self {
        Self { style }
    }
}

impl serde_json::ser::Formatter for Formatter {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(render_f64(value, self.style).as_bytes())
    }

    fn write_u64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: u64) -> io::Result<()> {
        match (i64::try_from(value), self.style) {
            (Err(_), Style::Query) => self.write_f64(writer, value as f64),
            (Ok(_), _) | (Err(_), Style::Point) => write!(writer, "{value}"),
        }
    }
}

/// First magnitude a signed 64-bit number cannot hold.
const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;

/// Smallest decimal exponent still written without exponent, as C's `%g` has it.
const EXPONENT_PLAIN_MIN: i32 = -4;

#[cfg(test)]
mod tests {
    use super::*;

    fn both(text: &str) -> (String, String) {
        let number: Number = serde_json::from_str(text).unwrap();
        (render(&number, Style::Point), render(&number, Style::Query))
    }

    #[test]
    fn numbers_are_written_as_recorded_from_the_service() {
        // input, point read, query
        let cases = [
            ("1.0", "1", "1"),
            ("-0.0", "0", "0"),
            ("0", "0", "0"),
            ("-7", "-7", "-7"),
            ("1.5", "1.5", "1.5"),
            ("0.1", "0.1", "0.1"),
            ("9223372036854775807", "9223372036854775807", "9223372036854775807"),
            ("-9223372036854775808", "-9223372036854775808", "-9223372036854775808"),
            ("18446744073709551615", "18446744073709551615", "1.8446744073709552e+19"),
            ("1e19", "1e+019", "1e+19"),
            ("1e15", "1000000000000000", "1000000000000000"),
            ("123456.789", "123456.789", "123456.789"),
            ("1e300", "1e+300", "1e+300"),
            ("0.0001", "0.0001", "0.0001"),
            ("0.00001", "1e-005", "1e-05"),
        ];
        for (input, point, query) in cases {
            assert_eq!(both(input), (point.to_owned(), query.to_owned()), "{input}");
        }
    }

    #[test]
    fn every_written_double_reads_back_to_itself() {
        for value in [5e-324, f64::MAX, -f64::MAX, 1.0 / 3.0, 2.5e-7, 9.007_199_254_740_993e15, 4.0e18, 1e22]
        {
            for style in [Style::Point, Style::Query] {
                assert_eq!(render_f64(value, style).parse::<f64>().unwrap(), value);
            }
        }
    }

    #[test]
    fn a_document_keeps_its_property_order_and_gets_the_services_numbers() {
        let value: Value = serde_json::from_str(r#"{"z":1.0,"a":[2.50,18446744073709551615,"x"]}"#).unwrap();
        assert_eq!(to_json(&value, Style::Point), br#"{"z":1,"a":[2.5,18446744073709551615,"x"]}"#);
        assert_eq!(to_json(&value, Style::Query), br#"{"z":1,"a":[2.5,1.8446744073709552e+19,"x"]}"#);
    }
}
