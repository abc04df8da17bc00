//! Metrics through the `metrics` facade. Handles are made once, so that a request allocates nothing for them.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use crate::error::{Error, ErrorKind};

pub(crate) struct Meters {
    reads: Kind,
    writes: Kind,
    pub(crate) throttled: Counter,
    pub(crate) hedges: Counter,
    /// Request units of attempts that lost a race, from the answers that came after it.
    pub(crate) late_units: Histogram,
    /// Attempts that lost a race and whose charge never became known.
    pub(crate) unknown_charges: Counter,
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
            late_units: histogram!("cosmos_driver_lost_race_request_units"),
            unknown_charges: counter!("cosmos_driver_lost_race_unknown_charges"),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use metrics::{CounterFn, Gauge, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::*;

    /// Writes down what is counted.
    #[derive(Clone, Default)]
    struct Tape(Arc<Mutex<BTreeMap<String, u64>>>);

    struct Line(Tape, String);

    impl CounterFn for Line {
        fn increment(&self, value: u64) {
            *self.0.0.lock().expect("not poisoned").entry(self.1.clone()).or_default() += value;
        }

        fn absolute(&self, value: u64) {
            self.0.0.lock().expect("not poisoned").insert(self.1.clone(), value);
        }
    }

    impl Recorder for Tape {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
            Counter::from_arc(Arc::new(Line(self.clone(), format!("{} {}", key.name(), labels.join(",")))))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn operations_are_counted_by_kind_and_outcome() {
        let tape = Tape::default();
        let meters = metrics::with_local_recorder(&tape, Meters::new);
        let elapsed = Duration::from_millis(1);
        meters.finished(true, elapsed, None);
        meters.finished(true, elapsed, Some(&Error::deadline("late")));
        meters.finished(false, elapsed, Some(&Error::connection("cut").with_applied(true)));
        meters.hedges.increment(1);
        let counted = tape.0.lock().expect("not poisoned");
        let expected = [
            ("cosmos_driver_deadlines ", 1),
            ("cosmos_driver_failures read", 1),
            ("cosmos_driver_failures write", 1),
            ("cosmos_driver_hedges ", 1),
            ("cosmos_driver_operations read", 2),
            ("cosmos_driver_operations write", 1),
            ("cosmos_driver_unknown_writes ", 1),
        ];
        assert_eq!(*counted, expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect());
    }
}
