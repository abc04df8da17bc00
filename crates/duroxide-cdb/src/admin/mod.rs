//! Operations for people: look at instances, count them, remove them.

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
