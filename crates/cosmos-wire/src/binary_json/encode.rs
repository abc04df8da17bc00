//! From values to bytes, in the plain forms.

use serde_json::{Number, Value};

use super::{PREAMBLE, SYSTEM_STRING_FIRST, SYSTEM_STRINGS};

/// Writes a value as a whole buffer.
#[must_use]
pub fn encode(value: &Value) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(256);
    buffer.push(PREAMBLE);
    write_value(&mut buffer, value);
    buffer
}

fn write_value(buffer: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => buffer.push(0xD0),
        Value::Bool(false) => buffer.push(0xD1),
        Value::Bool(true) => buffer.push(0xD2),
        Value::Number(number) => write_number(buffer, number),
        Value::String(text) => write_string(buffer, text),
        Value::Array(items) => {
            let start = buffer.len();
            for item in items {
                write_value(buffer, item);
            }
            frame(buffer, start, items.len(), 0xE0);
        }
        Value::Object(map) => {
            let start = buffer.len();
            for (name, value) in map {
                write_string(buffer, name);
                write_value(buffer, value);
            }
            frame(buffer, start, map.len(), 0xE8);
        }
    }
}

/// Puts the marker and length of a container before its elements, which are at the buffer's end.
fn frame(buffer: &mut Vec<u8>, start: usize, count: usize, empty_marker: u8) {
    let length = buffer.len() - start;
    let (marker, size) = match (count, length) {
        (0, _) => (empty_marker, 0),
        (1, _) => (empty_marker + 1, 0),
        (_, ..=0xFF) => (empty_marker + 2, 1),
        (_, ..=0xFFFF) => (empty_marker + 3, 2),
        (_, _) => (empty_marker + 4, 4),
    };
    let mut header = [marker, 0, 0, 0, 0];
    // A buffer of 4 GB is far beyond what a reply can be.
    header[1..].copy_from_slice(&(length as u32).to_le_bytes());
    buffer.splice(start..start, header[..=size].iter().copied());
}

fn write_number(buffer: &mut Vec<u8>, number: &Number) {
    if let Some(signed) = number.as_i64() {
        write_integer(buffer, signed);
    } else if let Some(unsigned) = number.as_u64() {
        buffer.push(0xC7);
        buffer.extend_from_slice(&unsigned.to_le_bytes());
    } else {
        buffer.push(0xCC);
        buffer.extend_from_slice(&number.as_f64().unwrap_or(0.0).to_le_bytes());
    }
}

fn write_integer(buffer: &mut Vec<u8>, value: i64) {
    if let Ok(byte) = u8::try_from(value) {
        if byte >= 0x20 {
            buffer.push(0xC8);
        }
        buffer.push(byte);
    } else if let Ok(short) = i16::try_from(value) {
        buffer.push(0xC9);
        buffer.extend_from_slice(&short.to_le_bytes());
    } else if let Ok(middle) = i32::try_from(value) {
        buffer.push(0xCA);
        buffer.extend_from_slice(&middle.to_le_bytes());
    } else {
        buffer.push(0xCB);
        buffer.extend_from_slice(&value.to_le_bytes());
    }
}

fn write_string(buffer: &mut Vec<u8>, text: &str) {
    if let Some(index) = SYSTEM_STRINGS.iter().position(|known| *known == text) {
        buffer.push(SYSTEM_STRING_FIRST + index as u8);
        return;
    }
    match text.len() {
        length @ 0..0x40 => buffer.push(0x80 | length as u8),
        length @ 0x40..=0xFF => buffer.extend_from_slice(&[0xC0, length as u8]),
        length @ 0x100..=0xFFFF => {
            buffer.push(0xC1);
            buffer.extend_from_slice(&(length as u16).to_le_bytes());
        }
        length => {
            buffer.push(0xC2);
            buffer.extend_from_slice(&(length as u32).to_le_bytes());
        }
    }
    buffer.extend_from_slice(text.as_bytes());
}
