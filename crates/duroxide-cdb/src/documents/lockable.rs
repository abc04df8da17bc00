//! What the documents that a process locks have in common: the head of an instance and a work item.

use super::{Document, Head, WorkDocument, kind};

/// A document that can be locked.
pub(crate) trait Lockable: Document + serde::de::DeserializeOwned {
    /// The types that a stored document of this kind may have.
    const TYPES: &'static [&'static str];
    /// The partition it is in.
    fn partition(&self) -> &str;
    /// The random part of the token that locks it.
    fn lock_token(&self) -> Option<&str>;
    /// When the lock ends, in milliseconds since the Unix epoch.
    fn locked_until(&self) -> Option<u64>;
}

impl Lockable for Head {
    const TYPES: &'static [&'static str] = &[kind::INSTANCE, kind::DELETING];

    fn partition(&self) -> &str {
        &self.instance_id
    }

    fn lock_token(&self) -> Option<&str> {
        self.lock_token.as_deref()
    }

    fn locked_until(&self) -> Option<u64> {
        self.locked_until
    }
}

impl Lockable for WorkDocument {
    const TYPES: &'static [&'static str] = &[kind::WORK];

    fn partition(&self) -> &str {
        &self.instance_id
    }

    fn lock_token(&self) -> Option<&str> {
        self.lock_token.as_deref()
    }

    fn locked_until(&self) -> Option<u64> {
        self.locked_until
    }
}
