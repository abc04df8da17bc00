//! How long a query may run, and whether its client still wants to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;

/// The time of one page. The default has no end.
#[derive(Debug, Clone, Default)]
pub struct Leash {
    /// From then on the page ends where it can.
    due: Option<Instant>,
    /// From then on what cannot be cut into pages is refused.
    end: Option<Instant>,
    is_let_go: Arc<AtomicBool>,
}

impl Leash {
    /// Begins the time now: how long a page gathers rows, and how long it may take at most.
    pub fn begin(&mut self, page: Duration, most: Duration) {
        let now = Instant::now();
        (self.due, self.end) = (now.checked_add(page), now.checked_add(most));
    }

    /// The same without an end of the page: what needs all rows goes on until it is refused.
    pub(crate) fn whole(&self) -> Self {
        Self { due: None, ..self.clone() }
    }

    /// The client has gone: whatever runs for it ends soon.
    pub fn let_go(&self) {
        self.is_let_go.store(true, Ordering::Relaxed);
    }

    /// Whether the page has gathered long enough.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| Instant::now() >= due)
    }

    /// Refuses to go on beyond the end, or for nobody.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_let_go.load(Ordering::Relaxed) {
            return Err(Failure::new(408, "The client went away before the query was done."));
        }
        if self.end.is_some_and(|end| Instant::now() >= end) {
            return Err(Failure::new(
                408,
                "The query takes too long for one page and cannot be cut into pages: it sorts, groups or joins too much, \
                 or works on one large document. Filter more, or read less of each document.",
            ));
        }
        Ok(())
    }
}
