//! MurmurHash3, the two variants partition keys use. The algorithm is Austin Appleby's, in the
//! public domain.

/// 32-bit variant, x86.
pub(super) fn hash_32(data: &[u8], seed: u32) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let mix = |block: u32| block.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);

    let (blocks, tail) = data.as_chunks::<4>();
    let mut hash = seed;
    for block in blocks {
        hash ^= mix(u32::from_le_bytes(*block));
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    // An empty tail mixes to zero.
    let mut last = [0; 4];
    last[..tail.len()].copy_from_slice(tail);
    hash ^= mix(u32::from_le_bytes(last));

    // The length counts modulo 2^32 by definition.
    hash ^= data.len() as u32;
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// 128-bit variant, x64, with both halves of the state seeded alike. The 16 bytes are the two
/// halves, each little-endian.
pub(super) fn hash_128(data: &[u8], seed: u64) -> [u8; 16] {
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let mix_first = |block: u64| block.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let mix_second = |block: u64| block.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);

    let (blocks, tail) = data.as_chunks::<16>();
    let (mut first, mut second) = (seed, seed);
    for block in blocks {
        let (low, high) = halves(block);
        first ^= mix_first(low);
        first = first.rotate_left(27).wrapping_add(second).wrapping_mul(5).wrapping_add(0x52dc_e729);
        second ^= mix_second(high);
        second = second.rotate_left(31).wrapping_add(first).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let mut last = [0; 16];
    last[..tail.len()].copy_from_slice(tail);
    let (low, high) = halves(&last);
    second ^= mix_second(high);
    first ^= mix_first(low);

    first ^= data.len() as u64;
    second ^= data.len() as u64;
    first = first.wrapping_add(second);
    second = second.wrapping_add(first);
    first = avalanche(first);
    second = avalanche(second);
    first = first.wrapping_add(second);
    second = second.wrapping_add(first);

    let mut hash = [0; 16];
    hash[..8].copy_from_slice(&first.to_le_bytes());
    hash[8..].copy_from_slice(&second.to_le_bytes());
    hash
}

fn halves(block: &[u8; 16]) -> (u64, u64) {
    let whole = u128::from_le_bytes(*block);
    // The casts take the low 64 bits on purpose.
    (whole as u64, (whole >> 64) as u64)
}

fn avalanche(mut bits: u64) -> u64 {
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ (bits >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the reference implementation, as its many ports list them.
    #[test]
    fn hashes_match_the_reference_implementation() {
        let cases: [(&str, u32, u32); 5] = [
            ("", 0, 0),
            ("", 1, 0x514e_28b7),
            ("test", 0, 0xba6b_d213),
            ("Hello, world!", 0, 0xc036_3e43),
            ("The quick brown fox jumps over the lazy dog", 0, 0x2e4f_f723),
        ];
        for (text, seed, hash) in cases {
            assert_eq!(hash_32(text.as_bytes(), seed), hash, "{text}");
        }
        let fox = hash_128(b"The quick brown fox jumps over the lazy dog", 0);
        assert_eq!(u64::from_le_bytes(fox[..8].try_into().unwrap()), 0xe34b_bc7b_bc07_1b6c);
        assert_eq!(u64::from_le_bytes(fox[8..].try_into().unwrap()), 0x7a43_3ca9_c49a_9347);
        assert_eq!(hash_128(b"", 0), [0; 16]);
    }
}
