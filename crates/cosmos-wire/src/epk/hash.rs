//! From partition key to effective partition key.

use super::Epk;
use super::murmur::{hash_32, hash_128};
use crate::partition_key::{Component, Definition, Kind, Version};

/// Effective key of components, whole or prefix.
pub(super) fn effective(components: &[Component], definition: &Definition) -> Epk {
    if components.is_empty() {
        return Epk::MIN;
    }
    match (definition.kind(), definition.version()) {
        (Kind::Hash, Version::V1) => v1(components),
        (Kind::Hash, Version::V2) => Epk::from_bytes(v2(components).to_vec()),
        (Kind::MultiHash, Version::V1 | Version::V2) => Epk::from_bytes(
            components.iter().flat_map(|component| v2(std::slice::from_ref(component))).collect(),
        ),
    }
}

/// 128-bit hash, turned around, with the two top bits cleared.
fn v2(components: &[Component]) -> [u8; 16] {
    let mut data = Vec::with_capacity(64);
    for component in components {
        write_for_hash(&mut data, component, 0xFF);
    }
    let mut hash = hash_128(&data, 0);
    hash.reverse();
    hash[0] &= 0x3F;
    hash
}

/// 32-bit hash as an ordered number, followed by the values themselves in ordered form.
fn v1(components: &[Component]) -> Epk {
    let cut: Vec<Component> = components.iter().map(cut_string).collect();
    let mut data = Vec::with_capacity(64);
    for component in &cut {
        write_for_hash(&mut data, component, 0x00);
    }
    let mut bytes = hash_prefix_v1(hash_32(&data, 0));
    for component in &cut {
        write_ordered(&mut bytes, component);
    }
    Epk::from_bytes(bytes)
}

/// First bytes of every V1 effective key with this hash.
pub(super) fn hash_prefix_v1(hash: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    write_ordered(&mut bytes, &Component::Number(f64::from(hash)));
    bytes
}

/// Hash at the start of a V1 effective key.
pub(super) fn hash_of_v1(epk: &[u8]) -> Option<u32> {
    let (marker, encoded) = epk.split_first()?;
    if *marker != NUMBER {
        return None;
    }
    let (first, groups) = encoded.split_first()?;
    let mut bits = u64::from(*first) << 56;
    let mut shift = 49;
    for group in groups {
        bits |= u64::from(*group >> 1) << shift;
        if *group & 1 == 0 || shift < 7 {
            break;
        }
        shift -= 7;
    }
    let number = f64::from_bits(bits ^ SIGN);
    // The cast saturates; the comparison refuses what is not a hash.
    let hash = number as u32;
    (f64::from(hash) == number).then_some(hash)
}

/// Strings count to a hundred UTF-16 units in V1. A cut inside a pair leaves a replacement character.
fn cut_string(component: &Component) -> Component {
    match component {
        Component::String(text) if text.len() > STRING_UNITS_MAX => {
            let units: Vec<u16> = text.encode_utf16().take(STRING_UNITS_MAX).collect();
            Component::String(String::from_utf16_lossy(&units))
        }
        Component::Undefined
        | Component::Null
        | Component::Bool(_)
        | Component::Number(_)
        | Component::String(_) => component.clone(),
    }
}

fn write_for_hash(data: &mut Vec<u8>, component: &Component, string_end: u8) {
    match component {
        Component::Undefined => data.push(UNDEFINED),
        Component::Null => data.push(NULL),
        Component::Bool(false) => data.push(FALSE),
        Component::Bool(true) => data.push(TRUE),
        Component::Number(number) => {
            data.push(NUMBER);
            data.extend_from_slice(&number.to_le_bytes());
        }
        Component::String(text) => {
            data.push(STRING);
            data.extend_from_slice(text.as_bytes());
            data.push(string_end);
        }
    }
}

/// Bytes that order as the values do.
fn write_ordered(bytes: &mut Vec<u8>, component: &Component) {
    match component {
        Component::Undefined => bytes.push(UNDEFINED),
        Component::Null => bytes.push(NULL),
        Component::Bool(false) => bytes.push(FALSE),
        Component::Bool(true) => bytes.push(TRUE),
        Component::Number(number) => {
            bytes.push(NUMBER);
            write_ordered_number(bytes, *number);
        }
        Component::String(text) => {
            bytes.push(STRING);
            // One byte more than the limit marks a string that was cut: it has no end byte.
            bytes.extend(text.bytes().take(STRING_BYTES_MAX + 1).map(|byte| byte.saturating_add(1)));
            if text.len() <= STRING_BYTES_MAX {
                bytes.push(0x00);
            }
        }
    }
}

/// Eight bits, then groups of seven with a low bit that says another group follows.
fn write_ordered_number(bytes: &mut Vec<u8>, number: f64) {
    let bits = number.to_bits();
    let ordered = if bits & SIGN == 0 { bits ^ SIGN } else { (!bits).wrapping_add(1) };
    bytes.push((ordered >> 56) as u8);
    let mut rest = ordered << 8;
    loop {
        let group = (rest >> 56) as u8;
        rest <<= 7;
        if rest == 0 {
            bytes.push(group & 0xFE);
            return;
        }
        bytes.push(group | 1);
    }
}

const UNDEFINED: u8 = 0x00;
const NULL: u8 = 0x01;
const FALSE: u8 = 0x02;
const TRUE: u8 = 0x03;
const NUMBER: u8 = 0x05;
const STRING: u8 = 0x08;
const SIGN: u64 = 1 << 63;

/// UTF-16 units of a string that V1 looks at.
const STRING_UNITS_MAX: usize = 100;

/// UTF-8 bytes of a string that a V1 key holds whole.
const STRING_BYTES_MAX: usize = 100;
