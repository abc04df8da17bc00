//! An activity: fetch it, keep its lock, complete it. Each is one conditional write, or one batch.

pub(crate) mod ack;
pub(crate) mod fetch;
pub(crate) mod lock;
mod search;
