//! Operations for people: look at instances, count them, remove them.

mod alone;
pub(crate) mod bulk;
pub(crate) mod delete;
mod fence;
pub(crate) mod info;
pub(crate) mod list;
pub(crate) mod metrics;
pub(crate) mod prune;
mod waiting;
mod wreck;

pub(crate) use fence::Terms;

/// Reads a row as every list and every removal reads it.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_row(row: &serde_json::value::RawValue) {
    let _ = serde_json::from_str::<list::Facts>(row.get());
    let _ = serde_json::from_str::<delete::Stored>(row.get()).map(|row| row.events());
    let _ = serde_json::from_str::<info::Outline>(row.get()).map(|outline| outline.events());
    let _ = serde_json::from_str::<waiting::Waiting>(row.get());
    wreck::read(row.get().as_bytes());
}
