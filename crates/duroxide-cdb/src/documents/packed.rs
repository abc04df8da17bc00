//! Texts stored compressed. Bytes are what a write costs, and JSON shrinks well.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The compressed form of a text, if it is enough shorter to be worth it and readers take it.
pub(crate) fn pack(text: &str) -> Option<String> {
    if text.len() < PACKED_FROM || text.len() as u64 > PACKED_BYTES_MAX {
        return None;
    }
    let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
    // Without it a damaged text would come back as another one.
    compressor.include_checksum(true).ok()?;
    let packed = STANDARD.encode(compressor.compress(text.as_bytes()).ok()?);
    (packed.len() <= text.len() / 4 * 3).then_some(packed)
}

/// The text of `bytes` bytes that the provider stored compressed; `None` if it is not one, or a longer one than the
/// provider compresses.
#[must_use]
pub fn unpack(packed: &str, bytes: u64) -> Option<String> {
    unpack_within(PACKED_BYTES_MAX, packed, bytes)
}

/// The same of a text that is no longer than `limit`.
///
/// A document may claim any length, and a few kilobytes can stand for gigabytes: the text grows as it comes out, up to
/// the claimed length, and a claim beyond the limit is not tried.
pub(super) fn unpack_within(limit: u64, packed: &str, bytes: u64) -> Option<String> {
    if bytes > limit {
        return None;
    }
    let packed = STANDARD.decode(packed).ok()?;
    let mut decoder = zstd::stream::read::Decoder::with_buffer(packed.as_slice()).ok()?;
    decoder.window_log_max(WINDOW_LOG_MAX).ok()?;
    let mut text = Vec::new();
    // One more than claimed shows that there is more.
    decoder.take(bytes + 1).read_to_end(&mut text).ok()?;
    if text.len() as u64 != bytes {
        return None;
    }
    String::from_utf8(text).ok()
}

/// Longer texts are stored as they are: reading one takes as many stored bytes as memory, so its length proves itself.
pub(super) const PACKED_BYTES_MAX: u64 = 64 << 20;
/// How far back a compressed text may refer, as a power of two: the decoder sets this much memory aside. What is
/// compressed at our level needs 21.
const WINDOW_LOG_MAX: u32 = 23;
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
        assert_eq!(unpack(&packed, text.len() as u64 + 1), None, "it would be shorter than it says");
        assert_eq!(unpack("nonsense", 10), None);
    }

    #[test]
    fn the_longest_text_that_is_compressed_is_read_and_a_longer_one_is_left_alone() {
        let longest = usize::try_from(PACKED_BYTES_MAX).unwrap();
        let text = "x".repeat(longest);
        let packed = pack(&text).unwrap();
        assert!(unpack(&packed, PACKED_BYTES_MAX).is_some_and(|read| read == text));
        assert_eq!(pack(&"x".repeat(longest + 1)), None);
    }

    #[test]
    fn a_length_that_is_only_claimed_takes_no_memory() {
        let text = "x".repeat(1 << 20);
        let packed = pack(&text).unwrap();
        for claimed in [PACKED_BYTES_MAX, PACKED_BYTES_MAX + 1, 1 << 52, u64::MAX] {
            assert_eq!(unpack(&packed, claimed), None, "{claimed}");
        }
        assert_eq!(unpack_within(1 << 19, &packed, 1 << 20), None, "longer than this reader takes");
    }

    #[test]
    fn a_frame_that_wants_much_memory_for_its_window_is_refused() {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).unwrap();
        compressor.window_log(27).unwrap();
        let text = vec![b'x'; 200 << 20];
        let packed = STANDARD.encode(compressor.compress(&text).unwrap());
        assert_eq!(unpack(&packed, 1 << 20), None);
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
