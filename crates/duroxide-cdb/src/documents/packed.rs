//! Texts stored compressed. Bytes are what a write costs, and JSON shrinks well.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The compressed form of a text, if it is enough shorter to be worth it.
pub(crate) fn pack(text: &str) -> Option<String> {
    if text.len() < PACKED_FROM {
        return None;
    }
    let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
    // Without it a damaged text would come back as another one.
    compressor.include_checksum(true).ok()?;
    let packed = STANDARD.encode(compressor.compress(text.as_bytes()).ok()?);
    (packed.len() <= text.len() / 4 * 3).then_some(packed)
}

/// The text of `bytes` bytes that the provider stored compressed; `None` if it is not one.
#[must_use]
pub fn unpack(packed: &str, bytes: u64) -> Option<String> {
    let bytes = usize::try_from(bytes).ok()?;
    let text = zstd::bulk::decompress(&STANDARD.decode(packed).ok()?, bytes).ok()?;
    String::from_utf8(text).ok()
}

/// Shorter texts cost the same either way.
const PACKED_FROM: usize = 4 << 10;
const LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_comes_back_as_it_was() {
        let text = "{\"name\":\"🦀\"}".repeat(1000);
        let packed = pack(&text).unwrap();
        assert!(packed.len() < text.len() / 4);
        assert_eq!(unpack(&packed, text.len() as u64).as_deref(), Some(text.as_str()));
        assert_eq!(unpack(&packed, 10), None, "it would be longer than it says");
        assert_eq!(unpack("nonsense", 10), None);
    }

    #[test]
    fn a_damaged_text_does_not_come_back_as_another_one() {
        let text = "{\"name\":\"🦀\",\"input\":\"a line of a long letter\"}".repeat(100);
        let packed = pack(&text).unwrap();
        for place in 0..packed.len() {
            for other in ["A", "/", "k"] {
                let mut damaged = packed.clone();
                damaged.replace_range(place..=place, other);
                let read = unpack(&damaged, text.len() as u64);
                assert!(read.is_none_or(|read| read == text), "{other} at {place}");
            }
        }
    }

    #[test]
    fn what_would_not_shrink_is_left_alone() {
        assert_eq!(pack("short"), None);
        let mut state = 1u64;
        let noise: String = (0..8000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b' ' + u8::try_from((state >> 33) % 95).unwrap())
            })
            .collect();
        assert_eq!(pack(&noise), None);
    }
}
