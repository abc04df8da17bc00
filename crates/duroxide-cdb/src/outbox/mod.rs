//! Messages to other partitions, delivered exactly once.
//!
//! The life of an intent: it is committed with the turn that sends it; right after the commit it is delivered by
//! creating the target document, whose id is derived from the intent; then it is removed. If any of that is
//! interrupted, the reconciler does it again. A second delivery meets the document, or the tombstone that consuming
//! it leaves, and changes nothing.

mod dead_letters;
mod deliver;

pub use dead_letters::DeadLetterInfo;
pub(crate) use dead_letters::{dead_letters, drop_letter, requeue};
pub(crate) use deliver::{Unsent, deliver, deliver_again, deliver_pending, pending, unsent};
