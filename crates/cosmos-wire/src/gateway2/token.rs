//! Tokens: an id, a type, a value.

use super::{InvalidFrame, Reason};

/// The value of a token. Texts and bytes have lengths of one, two or four bytes, which readers need not tell apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Byte(u8),
    UShort(u16),
    ULong(u32),
    Long(i32),
    ULongLong(u64),
    LongLong(i64),
    Guid([u8; 16]),
    SmallText(&'a str),
    Text(&'a str),
    LongText(&'a str),
    SmallBytes(&'a [u8]),
    Bytes(&'a [u8]),
    LongBytes(&'a [u8]),
    Float(f32),
    Double(f64),
}

impl<'a> Value<'a> {
    const fn type_byte(&self) -> u8 {
        match self {
            Self::Byte(_) => 0x00,
            Self::UShort(_) => 0x01,
            Self::ULong(_) => 0x02,
            Self::Long(_) => 0x03,
            Self::ULongLong(_) => 0x04,
            Self::LongLong(_) => 0x05,
            Self::Guid(_) => 0x06,
            Self::SmallText(_) => 0x07,
            Self::Text(_) => 0x08,
            Self::LongText(_) => 0x09,
            Self::SmallBytes(_) => 0x0A,
            Self::Bytes(_) => 0x0B,
            Self::LongBytes(_) => 0x0C,
            Self::Float(_) => 0x0D,
            Self::Double(_) => 0x0E,
        }
    }

    pub(super) fn write(self, id: u16, out: &mut Vec<u8>) -> Result<(), InvalidFrame> {
        out.extend_from_slice(&id.to_le_bytes());
        out.push(self.type_byte());
        match self {
            Self::Byte(value) => out.push(value),
            Self::UShort(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::ULong(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::Long(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::ULongLong(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::LongLong(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::Guid(value) => out.extend_from_slice(&value),
            Self::SmallText(value) => push_small(value.as_bytes(), out)?,
            Self::Text(value) => push_medium(value.as_bytes(), out)?,
            Self::LongText(value) => push_long(value.as_bytes(), out)?,
            Self::SmallBytes(value) => push_small(value, out)?,
            Self::Bytes(value) => push_medium(value, out)?,
            Self::LongBytes(value) => push_long(value, out)?,
            Self::Float(value) => out.extend_from_slice(&value.to_le_bytes()),
            Self::Double(value) => out.extend_from_slice(&value.to_le_bytes()),
        }
        Ok(())
    }

    pub(super) const fn text(&self) -> Option<&'a str> {
        match self {
            Self::SmallText(text) | Self::Text(text) | Self::LongText(text) => Some(text),
            _ => None,
        }
    }

    pub(super) const fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::SmallBytes(bytes) | Self::Bytes(bytes) | Self::LongBytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) const fn byte(&self) -> Option<u8> {
        match self {
            Self::Byte(byte) => Some(*byte),
            _ => None,
        }
    }

    /// A whole number of any width.
    pub(super) fn whole(&self) -> Option<i128> {
        match self {
            Self::Byte(value) => Some((*value).into()),
            Self::UShort(value) => Some((*value).into()),
            Self::ULong(value) => Some((*value).into()),
            Self::Long(value) => Some((*value).into()),
            Self::ULongLong(value) => Some((*value).into()),
            Self::LongLong(value) => Some((*value).into()),
            _ => None,
        }
    }

    /// A number with a fraction, finite.
    pub(super) fn fraction(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(f64::from(*value)),
            Self::Double(value) => Some(*value),
            _ => None,
        }
        .filter(|value| value.is_finite())
    }
}

fn push_small(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidFrame> {
    out.push(u8::try_from(bytes.len()).map_err(|_| too_long())?);
    out.extend_from_slice(bytes);
    Ok(())
}

fn push_medium(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidFrame> {
    out.extend_from_slice(&u16::try_from(bytes.len()).map_err(|_| too_long())?.to_le_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

pub(super) fn push_long(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidFrame> {
    push_length(bytes, out)?;
    out.extend_from_slice(bytes);
    Ok(())
}

pub(super) fn push_length(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidFrame> {
    out.extend_from_slice(&u32::try_from(bytes.len()).map_err(|_| too_long())?.to_le_bytes());
    Ok(())
}

const fn too_long() -> InvalidFrame {
    InvalidFrame::new(0, Reason::TooLong)
}

/// Reads from the left, never beyond the end.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, offset: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) const fn wrong(&self, reason: Reason) -> InvalidFrame {
        InvalidFrame::new(self.offset, reason)
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], InvalidFrame> {
        let (taken, rest) =
            self.rest.split_at_checked(length).ok_or_else(|| self.wrong(Reason::Truncated))?;
        self.rest = rest;
        self.offset += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], InvalidFrame> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(|| self.wrong(Reason::Truncated))?;
        self.rest = rest;
        self.offset += N;
        Ok(*taken)
    }

    pub(super) fn u16(&mut self) -> Result<u16, InvalidFrame> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, InvalidFrame> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn id(&mut self) -> Result<[u8; 16], InvalidFrame> {
        self.array()
    }

    /// The part of a frame up to its body: its length counts itself.
    pub(super) fn head(&mut self) -> Result<Self, InvalidFrame> {
        let length = self.u32()? as usize;
        if length < super::HEAD_BYTES || length - 4 > self.rest.len() {
            return Err(InvalidFrame::new(0, Reason::HeadLength));
        }
        let offset = self.offset;
        Ok(Self { rest: self.take(length - 4)?, offset })
    }

    /// The next token.
    pub(super) fn token(&mut self) -> Result<(u16, Value<'a>), InvalidFrame> {
        let id = self.u16()?;
        let [kind] = self.array()?;
        let value = match kind {
            0x00 => Value::Byte(self.array::<1>()?[0]),
            0x01 => Value::UShort(self.u16()?),
            0x02 => Value::ULong(self.u32()?),
            0x03 => Value::Long(i32::from_le_bytes(self.array()?)),
            0x04 => Value::ULongLong(u64::from_le_bytes(self.array()?)),
            0x05 => Value::LongLong(i64::from_le_bytes(self.array()?)),
            0x06 => Value::Guid(self.array()?),
            0x07 => Value::SmallText(self.small().and_then(|bytes| self.utf8(bytes))?),
            0x08 => Value::Text(self.medium().and_then(|bytes| self.utf8(bytes))?),
            0x09 => Value::LongText(self.long().and_then(|bytes| self.utf8(bytes))?),
            0x0A => Value::SmallBytes(self.small()?),
            0x0B => Value::Bytes(self.medium()?),
            0x0C => Value::LongBytes(self.long()?),
            0x0D => Value::Float(f32::from_le_bytes(self.array()?)),
            0x0E => Value::Double(f64::from_le_bytes(self.array()?)),
            _ => return Err(self.wrong(Reason::TokenType)),
        };
        Ok((id, value))
    }

    fn small(&mut self) -> Result<&'a [u8], InvalidFrame> {
        let [length] = self.array()?;
        self.take(length.into())
    }

    fn medium(&mut self) -> Result<&'a [u8], InvalidFrame> {
        let length = self.u16()?;
        self.take(length.into())
    }

    fn long(&mut self) -> Result<&'a [u8], InvalidFrame> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn utf8(&self, bytes: &'a [u8]) -> Result<&'a str, InvalidFrame> {
        std::str::from_utf8(bytes).map_err(|_| self.wrong(Reason::TokenValue))
    }
}
