//! How many callers of this process have nothing to do.

use std::sync::atomic::{AtomicUsize, Ordering};

/// One caller that waits, as long as this lives.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    count: &'a AtomicUsize,
}

impl<'a> Waiting<'a> {
    pub(crate) fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self { count }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}
