//! From bytes to values.

use serde_json::{Map, Number, Value};

use super::{DEPTH_MAX, InvalidBinary, PREAMBLE, Reason};

/// Reads a whole buffer.
///
/// # Errors
/// When the buffer is not exactly one value in the format; see [`Reason`].
pub fn decode(buffer: &[u8]) -> Result<Value, InvalidBinary> {
    if buffer.first() != Some(&PREAMBLE) {
        return Err(InvalidBinary { offset: 0, reason: Reason::NoPreamble });
    }
    let mut reader = Reader::new(buffer, 1);
    let value = reader.value(0)?;
    if reader.offset < buffer.len() {
        return Err(reader.invalid(Reason::TrailingBytes));
    }
    Ok(value)
}

/// A position in a buffer. Reads advance it and never pass the end.
pub(super) struct Reader<'a> {
    pub(super) buffer: &'a [u8],
    pub(super) offset: usize,
    /// Bytes that references may still expand to. Without it a long string and many references to it
    /// would make a small buffer large.
    pub(super) reference_bytes_left: usize,
    /// Empty arrays that uniform arrays may still hold; they take no bytes of the buffer.
    empty_elements_left: usize,
}

/// How a length or count is written.
#[derive(Clone, Copy)]
pub(super) enum Width {
    One,
    Two,
    Three,
    Four,
}

/// Bytes of an array or object: where they end, and how many elements they must hold.
struct Frame {
    end: usize,
    count: Option<usize>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(buffer: &'a [u8], offset: usize) -> Self {
        Self {
            buffer,
            offset,
            reference_bytes_left: REFERENCE_BYTES_MAX,
            empty_elements_left: EMPTY_ELEMENTS_MAX,
        }
    }

    pub(super) fn invalid(&self, reason: Reason) -> InvalidBinary {
        InvalidBinary { offset: self.offset, reason }
    }

    /// The next value. Only containers call back into this, so that nesting costs little stack.
    fn value(&mut self, depth: usize) -> Result<Value, InvalidBinary> {
        let start = self.offset;
        let marker = self.byte()?;
        if matches!(marker, 0xE0..=0xF3) && depth >= DEPTH_MAX {
            return Err(InvalidBinary { offset: start, reason: Reason::TooDeep });
        }
        match marker {
            0xE0 => Ok(Value::Array(Vec::new())),
            0xE1 => Ok(Value::Array(vec![self.value(depth + 1)?])),
            0xE2..=0xE7 => {
                let frame = self.frame(marker - 0xE2)?;
                self.array(&frame, depth)
            }
            0xE8 => Ok(Value::Object(Map::new())),
            0xE9 => {
                let mut map = Map::new();
                self.member(&mut map, depth)?;
                Ok(Value::Object(map))
            }
            0xEA..=0xEF => {
                let frame = self.frame(marker - 0xEA)?;
                self.object(&frame, depth)
            }
            _ => self.leaf(marker, start),
        }
    }

    /// A value without values inside.
    #[inline(never)]
    fn leaf(&mut self, marker: u8, start: usize) -> Result<Value, InvalidBinary> {
        match marker {
            0x00..=0x1F => Ok(Value::from(marker)),
            0x20..=0xC6 => self.string(marker, start).map(Value::String),
            0xC7..=0xCE | 0xD7..=0xDC => self.number(marker, start),
            0xD0 => Ok(Value::Null),
            0xD1 => Ok(Value::Bool(false)),
            0xD2 => Ok(Value::Bool(true)),
            0xD3 | 0xDD..=0xDF => self.opaque(marker).map(Value::String),
            0xF0 => self.number_array(Width::One),
            0xF1 => self.number_array(Width::Two),
            0xF2 => self.number_arrays(Width::One, 0xF0),
            0xF3 => self.number_arrays(Width::Two, 0xF1),
            _ => Err(InvalidBinary { offset: start, reason: Reason::UnknownMarker }),
        }
    }

    /// Length of a container: three markers without count, then three with, of growing width.
    fn frame(&mut self, form: u8) -> Result<Frame, InvalidBinary> {
        let width = match form % 3 {
            0 => Width::One,
            1 => Width::Two,
            _ => Width::Four,
        };
        let length = self.length(width)?;
        let count = if form >= 3 { Some(self.length(width)?) } else { None };
        if length > self.buffer.len() - self.offset {
            return Err(self.invalid(Reason::Truncated));
        }
        Ok(Frame { end: self.offset + length, count })
    }

    fn array(&mut self, frame: &Frame, depth: usize) -> Result<Value, InvalidBinary> {
        let mut items = Vec::new();
        while self.offset < frame.end {
            items.push(self.value(depth + 1)?);
        }
        self.check_frame(frame, items.len())?;
        Ok(Value::Array(items))
    }

    fn object(&mut self, frame: &Frame, depth: usize) -> Result<Value, InvalidBinary> {
        let mut map = Map::new();
        let mut members = 0;
        while self.offset < frame.end {
            self.member(&mut map, depth)?;
            members += 1;
        }
        self.check_frame(frame, members)?;
        Ok(Value::Object(map))
    }

    fn check_frame(&self, frame: &Frame, count: usize) -> Result<(), InvalidBinary> {
        if self.offset == frame.end && frame.count.is_none_or(|declared| declared == count) {
            Ok(())
        } else {
            Err(self.invalid(Reason::LengthMismatch))
        }
    }

    /// A property; a repeated name replaces the value, as in JSON text.
    fn member(&mut self, map: &mut Map<String, Value>, depth: usize) -> Result<(), InvalidBinary> {
        let start = self.offset;
        let marker = self.byte()?;
        if !matches!(marker, 0x20..=0xC6) {
            return Err(InvalidBinary { offset: start, reason: Reason::NameNotString });
        }
        let name = self.string(marker, start)?;
        let value = self.value(depth + 1)?;
        map.insert(name, value);
        Ok(())
    }

    fn number(&mut self, marker: u8, start: usize) -> Result<Value, InvalidBinary> {
        let number = match marker {
            0xC7 => u64::from_le_bytes(self.bytes_of()?).into(),
            0xC8 | 0xD7 => self.byte()?.into(),
            0xC9 | 0xD9 => i16::from_le_bytes(self.bytes_of()?).into(),
            0xCA | 0xDA => i32::from_le_bytes(self.bytes_of()?).into(),
            0xCB | 0xDB => i64::from_le_bytes(self.bytes_of()?).into(),
            0xCC | 0xCE => return float(f64::from_le_bytes(self.bytes_of()?), start),
            0xCD => return float(f32::from_le_bytes(self.bytes_of()?).into(), start),
            0xD8 => i8::from_le_bytes(self.bytes_of()?).into(),
            0xDC => u32::from_le_bytes(self.bytes_of()?).into(),
            _ => return Err(InvalidBinary { offset: start, reason: Reason::UnknownMarker }),
        };
        Ok(Value::Number(number))
    }

    /// Numbers of one type, which is named once.
    fn number_array(&mut self, width: Width) -> Result<Value, InvalidBinary> {
        let item = self.item_marker()?;
        let count = self.length(width)?;
        self.numbers(item, count)
    }

    /// Arrays of as many numbers each.
    fn number_arrays(&mut self, width: Width, inner_marker: u8) -> Result<Value, InvalidBinary> {
        if self.byte()? != inner_marker {
            return Err(InvalidBinary { offset: self.offset - 1, reason: Reason::UnknownMarker });
        }
        let item = self.item_marker()?;
        let inner_count = self.length(width)?;
        let outer_count = self.length(width)?;
        if inner_count == 0 {
            let left = self.empty_elements_left.checked_sub(outer_count);
            self.empty_elements_left = left.ok_or_else(|| self.invalid(Reason::TooLarge))?;
        }
        let arrays = (0..outer_count).map(|_| self.numbers(item, inner_count)).collect::<Result<_, _>>()?;
        Ok(Value::Array(arrays))
    }

    fn numbers(&mut self, item: u8, count: usize) -> Result<Value, InvalidBinary> {
        let start = self.offset;
        let numbers = (0..count).map(|_| self.number(item, start)).collect::<Result<_, _>>()?;
        Ok(Value::Array(numbers))
    }

    /// Type of the numbers in a uniform array; only the markers of sized types may stand there.
    fn item_marker(&mut self) -> Result<u8, InvalidBinary> {
        let item = self.byte()?;
        if matches!(item, 0xCD | 0xCE | 0xD7..=0xDC) {
            Ok(item)
        } else {
            Err(InvalidBinary { offset: self.offset - 1, reason: Reason::UnknownMarker })
        }
    }

    pub(super) fn byte(&mut self) -> Result<u8, InvalidBinary> {
        let byte = *self.buffer.get(self.offset).ok_or_else(|| self.invalid(Reason::Truncated))?;
        self.offset += 1;
        Ok(byte)
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], InvalidBinary> {
        let rest = self.buffer.get(self.offset..).unwrap_or_default();
        let bytes = rest.get(..length).ok_or_else(|| self.invalid(Reason::Truncated))?;
        self.offset += length;
        Ok(bytes)
    }

    pub(super) fn bytes_of<const N: usize>(&mut self) -> Result<[u8; N], InvalidBinary> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    pub(super) fn length(&mut self, width: Width) -> Result<usize, InvalidBinary> {
        let mut bytes = [0; 4];
        let size = match width {
            Width::One => 1,
            Width::Two => 2,
            Width::Three => 3,
            Width::Four => 4,
        };
        bytes[..size].copy_from_slice(self.take(size)?);
        usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| self.invalid(Reason::LengthMismatch))
    }
}

fn float(value: f64, start: usize) -> Result<Value, InvalidBinary> {
    let number = Number::from_f64(value);
    number.map(Value::Number).ok_or(InvalidBinary { offset: start, reason: Reason::NotFinite })
}

/// Well above the service's largest item.
const REFERENCE_BYTES_MAX: usize = 16 << 20;

/// As many as the largest single uniform array can declare.
const EMPTY_ELEMENTS_MAX: usize = 0xFFFF;
