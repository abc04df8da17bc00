//! String forms of the binary format, plain and compressed.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::decode::{Reader, Width};
use super::{InvalidBinary, Reason, SYSTEM_STRING_FIRST, SYSTEM_STRINGS};

/// Bits per character of a packed string.
#[derive(Clone, Copy)]
enum Packing {
    Four,
    Five,
    Six,
    Seven,
}

impl Reader<'_> {
    /// The string a marker from 0x20 to 0xC6 begins.
    pub(super) fn string(&mut self, marker: u8, start: usize) -> Result<String, InvalidBinary> {
        match marker {
            0x20..=0x3F => Ok(SYSTEM_STRINGS[usize::from(marker - SYSTEM_STRING_FIRST)].to_owned()),
            0x40..=0x67 => Err(InvalidBinary { offset: start, reason: Reason::UserString }),
            0x71 | 0x72 => {
                self.base64(if marker == 0x71 { Width::One } else { Width::Two }, Alphabet::Standard)
            }
            0x73 | 0x74 => {
                self.base64(if marker == 0x73 { Width::One } else { Width::Two }, Alphabet::UrlSafe)
            }
            0x75 => self.guid_text(LOWER_HEX),
            0x76 => self.guid_text(UPPER_HEX),
            0x77 => Ok(format!("\"{}\"", self.guid_text(LOWER_HEX)?)),
            0x78 => self.nibbles(LOWER_HEX),
            0x79 => self.nibbles(UPPER_HEX),
            0x7A => self.nibbles(DATE_TIME),
            0x7B => self.packed(Packing::Four, Width::One),
            0x7C => self.packed(Packing::Five, Width::One),
            0x7D => self.packed(Packing::Six, Width::One),
            0x7E => self.packed(Packing::Seven, Width::One),
            0x7F => self.packed(Packing::Seven, Width::Two),
            0x80..=0xBF => self.plain(usize::from(marker & 0x7F), start),
            0xC0..=0xC2 => {
                let width = [Width::One, Width::Two, Width::Four][usize::from(marker - 0xC0)];
                let length = self.length(width)?;
                self.plain(length, start)
            }
            0xC3..=0xC6 => {
                let width = [Width::One, Width::Two, Width::Three, Width::Four][usize::from(marker - 0xC3)];
                let target = self.length(width)?;
                self.referenced(target, start)
            }
            _ => Err(InvalidBinary { offset: start, reason: Reason::UnknownMarker }),
        }
    }

    /// Values JSON has no type for: a GUID, or bytes, which become base64.
    pub(super) fn opaque(&mut self, marker: u8) -> Result<String, InvalidBinary> {
        let width = match marker {
            0xD3 => return self.guid(),
            0xDD => Width::One,
            0xDE => Width::Two,
            _ => Width::Four,
        };
        let length = self.length(width)?;
        Ok(STANDARD.encode(self.take(length)?))
    }

    fn plain(&mut self, length: usize, start: usize) -> Result<String, InvalidBinary> {
        let bytes = self.take(length)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|_| InvalidBinary { offset: start, reason: Reason::InvalidText })?;
        Ok(text.to_owned())
    }

    /// The string at an earlier offset, counted from the preamble. It must not be a reference itself,
    /// so that there are no circles.
    fn referenced(&mut self, target: usize, start: usize) -> Result<String, InvalidBinary> {
        let bad = InvalidBinary { offset: start, reason: Reason::BadReference };
        let marker = self.buffer.get(target).copied().filter(|_| (1..start).contains(&target));
        let Some(marker @ 0x20..=0xC2) = marker else { return Err(bad) };
        let mut earlier = Reader::new(self.buffer, target + 1);
        let text = earlier.string(marker, target)?;
        let left = self.reference_bytes_left.checked_sub(text.len());
        self.reference_bytes_left = left.ok_or(InvalidBinary { offset: start, reason: Reason::TooLarge })?;
        Ok(text)
    }

    /// Base64 text stored as the bytes it stands for: groups of four characters, then the padding
    /// characters at the end, bits inverted when the text leaves them out.
    fn base64(&mut self, width: Width, alphabet: Alphabet) -> Result<String, InvalidBinary> {
        let start = self.offset;
        let mismatch = InvalidBinary { offset: start, reason: Reason::LengthMismatch };
        let groups = self.length(width)?;
        let (padding, is_written) = match self.byte()? {
            padding @ 0..=2 => (padding, true),
            padding @ 0xFD..=0xFF => (!padding, false),
            _ => return Err(mismatch),
        };
        let characters = (groups * 4).checked_sub(usize::from(padding)).ok_or(mismatch)?;
        let bytes = self.take(characters * 3 / 4)?;
        let mut text = match alphabet {
            Alphabet::Standard => STANDARD_NO_PAD.encode(bytes),
            Alphabet::UrlSafe => URL_SAFE_NO_PAD.encode(bytes),
        };
        if is_written {
            text.extend(std::iter::repeat_n('=', usize::from(padding)));
        }
        Ok(text)
    }

    /// A GUID's text, two digits to a byte with the first in the low half.
    fn guid_text(&mut self, digits: &[u8; 16]) -> Result<String, InvalidBinary> {
        let bytes: [u8; 16] = self.bytes_of()?;
        let mut text = String::with_capacity(38);
        for (index, byte) in bytes.into_iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push(char::from(digits[usize::from(byte & 15)]));
            text.push(char::from(digits[usize::from(byte >> 4)]));
        }
        Ok(text)
    }

    /// A GUID in the layout of Windows: three little-endian numbers, then eight bytes.
    fn guid(&mut self) -> Result<String, InvalidBinary> {
        let first = u32::from_le_bytes(self.bytes_of()?);
        let second = u16::from_le_bytes(self.bytes_of()?);
        let third = u16::from_le_bytes(self.bytes_of()?);
        let fourth = u16::from_be_bytes(self.bytes_of()?);
        let [a, b, c, d, e, f] = self.bytes_of()?;
        Ok(format!(
            "{first:08x}-{second:04x}-{third:04x}-{fourth:04x}-{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}"
        ))
    }

    /// Two characters of a table to a byte, the first in the low half.
    fn nibbles(&mut self, table: &[u8; 16]) -> Result<String, InvalidBinary> {
        let count = self.length(Width::One)?;
        let bytes = self.take(count.div_ceil(2))?;
        let unused_is_zero = count.is_multiple_of(2) || bytes.last().is_none_or(|last| last >> 4 == 0);
        if !unused_is_zero {
            return Err(self.invalid(Reason::LengthMismatch));
        }
        let halves = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        Ok(halves.take(count).map(|half| char::from(table[usize::from(half)])).collect())
    }

    /// Characters of few bits, lowest bits first, on top of a base character.
    fn packed(&mut self, packing: Packing, width: Width) -> Result<String, InvalidBinary> {
        let start = self.offset;
        let count = self.length(width)?;
        let (bits, base) = match packing {
            Packing::Four => (4, self.byte()?),
            Packing::Five => (5, self.byte()?),
            Packing::Six => (6, self.byte()?),
            Packing::Seven => (7, 0),
        };
        let bytes = self.take((count * bits).div_ceil(8))?;
        let character = |index: usize| {
            let first_bit = index * bits;
            let low = u16::from(bytes[first_bit / 8]);
            let high = bytes.get(first_bit / 8 + 1).copied().map_or(0, u16::from);
            // Masked to seven bits at most, so the cast loses nothing.
            let offset = ((high << 8 | low) >> (first_bit % 8) & ((1 << bits) - 1)) as u8;
            base.checked_add(offset).filter(u8::is_ascii).map(char::from)
        };
        let text = (0..count).map(character).collect::<Option<String>>();
        text.ok_or(InvalidBinary { offset: start, reason: Reason::InvalidText })
    }
}

/// Alphabet of a base64 string.
#[derive(Clone, Copy)]
enum Alphabet {
    Standard,
    UrlSafe,
}

const LOWER_HEX: &[u8; 16] = b"0123456789abcdef";
const UPPER_HEX: &[u8; 16] = b"0123456789ABCDEF";
const DATE_TIME: &[u8; 16] = b" 0123456789:-.TZ";
