//! Claims whose outcome this process does not know.
//!
//! Who locks a head or a work item and gets no answer, and cannot read the document either, may hold a lock without
//! knowing it; so may a fetch whose future is dropped between sending and answer. Left alone such a lock hides the work
//! until it ends, and counts as an attempt that never was. So a claim that ends without an outcome leaves its secret here:
//! when this process meets the lock later, it recognises it and takes it back, with the attempt.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The secrets of claims that ended without an outcome, by partition and document.
#[derive(Debug, Default)]
pub(crate) struct UnsettledClaims {
    secrets: Mutex<HashMap<(String, String), Vec<String>>>,
}

/// A claim that is under way. Dropped before its outcome is known, it is an unsettled one.
#[derive(Debug)]
pub(crate) struct Claiming<'a> {
    claims: &'a UnsettledClaims,
    document: (String, String),
    secret: Option<String>,
}

impl UnsettledClaims {
    /// Notes that a claim is about to be sent. Two of one process may be under way for the same document: neither takes the
    /// other for unsettled.
    pub(crate) fn begin(&self, partition: &str, id: &str, secret: &str) -> Claiming<'_> {
        let document = (partition.to_owned(), id.to_owned());
        Claiming { claims: self, document, secret: Some(secret.to_owned()) }
    }

    /// Whether the lock that a document shows is a claim of this process that it did not know to hold.
    pub(crate) fn is_ours(&self, partition: &str, id: &str, lock_token: Option<&str>) -> bool {
        let Some(lock_token) = lock_token else { return false };
        let known = self.lock();
        known
            .get(&(partition.to_owned(), id.to_owned()))
            .is_some_and(|secrets| secrets.iter().any(|secret| secret == lock_token))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Vec<String>>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claiming<'_> {
    /// The outcome is known: the lock is held, or another's, or given back.
    pub(crate) fn settle(mut self) {
        self.secret = None;
        self.claims.lock().remove(&self.document);
    }
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        let Some(secret) = self.secret.take() else { return };
        let mut secrets = self.claims.lock();
        if secrets.len() >= CLAIMS_MAX {
            // So many without an outcome: their locks have ended long ago, or will.
            secrets.clear();
        }
        // Any of several that ended so may be the one whose lock is there: those after it may not have been applied.
        let of_document = secrets.entry(std::mem::take(&mut self.document)).or_default();
        if of_document.len() >= CLAIMS_OF_DOCUMENT_MAX {
            of_document.remove(0);
        }
        of_document.push(secret);
    }
}

const CLAIMS_MAX: usize = 10_000;
const CLAIMS_OF_DOCUMENT_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_ours_to_take_back_only_if_its_claim_ended_without_outcome() {
        let claims = UnsettledClaims::default();
        let claiming = claims.begin("a", "a:instance", "s");
        assert!(!claims.is_ours("a", "a:instance", Some("s")), "its outcome is still to come");
        drop(claiming);
        assert!(claims.is_ours("a", "a:instance", Some("s")));
        for (partition, lock_token) in [("a", Some("other")), ("a", None), ("b", Some("s"))] {
            assert!(!claims.is_ours(partition, "a:instance", lock_token));
        }
        drop(claims.begin("a", "a:instance", "later"));
        assert!(claims.is_ours("a", "a:instance", Some("s")), "the later one may not have been applied");
        claims.begin("a", "a:instance", "t").settle();
        assert!(!claims.is_ours("a", "a:instance", Some("s")), "a later claim knows better");
    }

    #[test]
    fn however_many_claims_are_never_settled_little_is_kept() {
        let claims = UnsettledClaims::default();
        for n in 0..3 * CLAIMS_MAX {
            drop(claims.begin("a", &n.to_string(), "s"));
            drop(claims.begin("b", "b:instance", &n.to_string()));
        }
        assert!(claims.lock().values().all(|secrets| secrets.len() <= CLAIMS_OF_DOCUMENT_MAX));
        assert!(claims.lock().len() <= CLAIMS_MAX);
    }
}
