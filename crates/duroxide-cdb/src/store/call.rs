//! What a request is part of and how long it may take.

use std::time::Duration;

use cosmos_driver::{CallOptions, ItemOptions};
use tokio::time::Instant;

use crate::error::Fault;

/// What a request is part of and how long it may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// The provider operation, for errors and metrics.
    pub(crate) operation: &'static str,
    pub(crate) deadline: Instant,
}

impl Call {
    /// The time left.
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// What the driver has to know of it. An error when there is no time left.
    pub(crate) fn options(&self) -> Result<CallOptions, Fault> {
        let remaining = self.remaining();
        if remaining.is_zero() {
            return Err(Fault::transient(format!("{}: no time is left (timeout)", self.operation)));
        }
        Ok(CallOptions::default().with_timeout(remaining))
    }

    /// The same for requests about one item.
    pub(crate) fn item_options(&self) -> Result<ItemOptions, Fault> {
        Ok(ItemOptions::from(self.options()?))
    }
}
