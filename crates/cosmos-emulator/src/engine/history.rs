//! Every version of every item, for the full-fidelity change feed.

/// Where the item of a stored version stands.
pub(crate) fn place_of_version(value: &[u8]) -> Option<&[u8]> {
    let (length, rest) = value.split_first_chunk::<4>()?;
    rest.get(..u32::from_be_bytes(*length) as usize)
}
