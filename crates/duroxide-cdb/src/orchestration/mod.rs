//! A turn: fetch it, keep its lock, commit it.
//!
//! The life of a turn: [`fetch`] takes a candidate from the finder, [loads](crate::load) its partition with one query and locks
//! the head with one conditional write. The runtime replays and calls ack: [`plan`] decides, without any I/O, what the
//! commit holds; [`staging`](crate::staging) fits it into one batch, or into a batch and documents staged around it; [`ack`] carries
//! that out and settles unanswered commits by the commit id in the head; publishing finishes what did not fit.

pub(crate) mod ack;
pub(crate) mod adopt;
pub(crate) mod fetch;
pub(crate) mod lock;
mod orphans;
pub(crate) mod plan;
mod search;
