//! Metrics through the `metrics` facade. Handles are made once, so that a request allocates nothing for them.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use crate::error::{Error, ErrorKind};

pub(crate) struct Meters {
    reads: Kind,
    writes: Kind,
    pub(crate) throttled: Counter,
    pub(crate) hedges: Counter,
    pub(crate) account_refreshes: Counter,
    deadlines: Counter,
    unknown_writes: Counter,
}

struct Kind {
    operations: Counter,
    failures: Counter,
    seconds: Histogram,
}

impl Kind {
    fn new(name: &'static str) -> Self {
        Self {
            operations: counter!("cosmos_driver_operations", "kind" => name),
            failures: counter!("cosmos_driver_failures", "kind" => name),
            seconds: histogram!("cosmos_driver_operation_seconds", "kind" => name),
        }
    }
}

impl Meters {
    pub(crate) fn new() -> Self {
        Self {
            reads: Kind::new("read"),
            writes: Kind::new("write"),
            throttled: counter!("cosmos_driver_throttled"),
            hedges: counter!("cosmos_driver_hedges"),
            account_refreshes: counter!("cosmos_driver_account_refreshes"),
            deadlines: counter!("cosmos_driver_deadlines"),
            unknown_writes: counter!("cosmos_driver_unknown_writes"),
        }
    }

    pub(crate) fn finished(&self, is_read: bool, elapsed: Duration, error: Option<&Error>) {
        let kind = if is_read { &self.reads } else { &self.writes };
        kind.operations.increment(1);
        kind.seconds.record(elapsed.as_secs_f64());
        let Some(error) = error else { return };
        kind.failures.increment(1);
        if error.kind() == ErrorKind::Deadline {
            self.deadlines.increment(1);
        }
        if error.may_have_been_applied() {
            self.unknown_writes.increment(1);
        }
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}
