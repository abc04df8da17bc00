//! Whether a connection stays, decided from numbers alone.

use std::time::Duration;

use crate::config::Sharding;

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EvictionReason {
    /// The peer or the network ended it.
    Closed,
    /// Requests are waiting on it and nothing has come back for too long.
    ReadHang,
    /// It keeps failing while others to the same endpoint succeed.
    FailuresWithHealthyPeers,
    /// No request used it for the idle time.
    Idle,
    /// An HTTP/1.1 exchange on it was abandoned half-way; the connection cannot be shared again.
    Abandoned,
}

impl EvictionReason {
    pub(crate) const ALL: [Self; 5] =
        [Self::Closed, Self::ReadHang, Self::FailuresWithHealthyPeers, Self::Idle, Self::Abandoned];

    pub(crate) fn index(self) -> usize {
        Self::ALL.iter().position(|reason| *reason == self).expect("ALL lists every reason")
    }
}

/// The counters of one connection at one moment, in ticks of the driver's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) in_flight: u32,
    pub(crate) consecutive_failures: u32,
    pub(crate) last_success_ms: u64,
    pub(crate) last_request_ms: u64,
    pub(crate) busy_since_ms: u64,
    pub(crate) is_closed: bool,
}

/// What to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Keep,
    Evict(EvictionReason),
}

/// Checks in order: closed, recent success, read hang, failures with healthy peers, idle.
///
/// `is_busy_machine` means the processor is saturated: then slowness says nothing about the connection, and only
/// what is certainly useless (closed, idle) goes.
pub(crate) fn check(
    stats: &Stats,
    peers: &[Stats],
    now_ms: u64,
    rules: &Sharding,
    is_busy_machine: bool,
) -> Verdict {
    if stats.is_closed {
        return Verdict::Evict(EvictionReason::Closed);
    }
    let since = |then: u64| Duration::from_millis(now_ms.saturating_sub(then));
    let succeeded_lately = stats.last_success_ms > stats.busy_since_ms
        && stats.consecutive_failures == 0
        && since(stats.last_success_ms) < RECENT_SUCCESS;
    if succeeded_lately {
        return Verdict::Keep;
    }
    let quiet_since = stats.last_success_ms.max(stats.busy_since_ms);
    if stats.in_flight > 0 && since(quiet_since) > rules.read_hang && !is_busy_machine {
        return Verdict::Evict(EvictionReason::ReadHang);
    }
    let failing = stats.consecutive_failures >= rules.failure_threshold;
    if failing && since(stats.last_success_ms) > rules.eviction_grace && !is_busy_machine {
        let healthier = |peer: &Stats| {
            peer.consecutive_failures < stats.consecutive_failures
                && peer.last_success_ms > stats.last_success_ms
        };
        if peers.iter().any(healthier) {
            return Verdict::Evict(EvictionReason::FailuresWithHealthyPeers);
        }
    }
    if stats.in_flight == 0 && since(stats.last_request_ms) > rules.idle_timeout {
        return Verdict::Evict(EvictionReason::Idle);
    }
    Verdict::Keep
}

/// True when requests wait on a connection from which nothing came for a moment. That is no fault yet, but a reason to
/// put the next request elsewhere: should the connection be dead, few find out the hard way.
pub(crate) fn is_quiet(in_flight: u32, heard_ms: u64, now_ms: u64) -> bool {
    in_flight > 0 && Duration::from_millis(now_ms.saturating_sub(heard_ms)) > QUIET
}

/// True when every connection is quiet and the load alone would not open another one: then one more is worth having.
pub(crate) fn wants_spare(in_flight: u32, shards: usize, target: u32) -> bool {
    shards <= active_set(in_flight, target)
}

/// How many connections the load needs: enough that each carries at most `target` requests.
pub(crate) fn active_set(in_flight: u32, target: u32) -> usize {
    (in_flight + 1).div_ceil(target.max(1)) as usize
}

/// True when the open connections are so full that the next one should be opened before it is needed.
pub(crate) fn wants_growth(in_flight: u32, shards: usize, target: u32, threshold: f64) -> bool {
    shards > 0 && f64::from(in_flight) > threshold * f64::from(target) * shards as f64
}

/// How long to wait after so many failed connects in a row before the next one.
pub(crate) fn connect_pause(failures_in_row: u32) -> Duration {
    CONNECT_PAUSE_MIN.saturating_mul(1 << failures_in_row.saturating_sub(1).min(10)).min(CONNECT_PAUSE_MAX)
}

const CONNECT_PAUSE_MIN: Duration = Duration::from_millis(10);
/// Short, because it is also how long the endpoint's last connection may be gone before another is tried.
const CONNECT_PAUSE_MAX: Duration = Duration::from_millis(320);
const RECENT_SUCCESS: Duration = Duration::from_secs(1);
/// Longer than a point operation takes in one region, shorter than any ping.
const QUIET: Duration = Duration::from_millis(25);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_failed_connects_double_up_to_a_third_of_a_second() {
        let pauses = [(1, 10), (2, 20), (3, 40), (5, 160), (6, 320), (7, 320), (u32::MAX, 320)];
        for (failures, milliseconds) in pauses {
            assert_eq!(connect_pause(failures), Duration::from_millis(milliseconds), "{failures}");
        }
    }

    fn stats() -> Stats {
        Stats {
            in_flight: 0,
            consecutive_failures: 0,
            last_success_ms: 100_000,
            last_request_ms: 100_000,
            busy_since_ms: 90_000,
            is_closed: false,
        }
    }

    #[test]
    fn verdicts_follow_the_order_of_checks() {
        use EvictionReason::{Closed, FailuresWithHealthyPeers, Idle, ReadHang};
        let rules = Sharding::default();
        let now = 100_500;
        let peer = Stats { last_success_ms: 100_400, ..stats() };
        let hang_ms = u64::try_from(rules.read_hang.as_millis()).expect("small");
        let idle_ms = u64::try_from(rules.idle_timeout.as_millis()).expect("small");
        type Case = (&'static str, Stats, Vec<Stats>, u64, bool, Verdict);
        let cases: Vec<Case> = vec![
            ("recent success", stats(), vec![], now, false, Verdict::Keep),
            (
                "closed beats recent success",
                Stats { is_closed: true, ..stats() },
                vec![],
                now,
                false,
                Verdict::Evict(Closed),
            ),
            (
                "hanging since long",
                Stats { in_flight: 3, ..stats() },
                vec![],
                100_001 + hang_ms,
                false,
                Verdict::Evict(ReadHang),
            ),
            (
                "hanging on a saturated machine",
                Stats { in_flight: 3, ..stats() },
                vec![],
                100_001 + hang_ms,
                true,
                Verdict::Keep,
            ),
            (
                "a request just sent after a long pause is not a hang",
                Stats { in_flight: 1, busy_since_ms: 100_000 + hang_ms, ..stats() },
                vec![],
                100_001 + hang_ms,
                false,
                Verdict::Keep,
            ),
            (
                "failing while a peer works",
                Stats { consecutive_failures: 5, last_success_ms: 90_000, ..stats() },
                vec![peer],
                now,
                false,
                Verdict::Evict(FailuresWithHealthyPeers),
            ),
            (
                "failing like everybody",
                Stats { consecutive_failures: 5, last_success_ms: 90_000, ..stats() },
                vec![Stats { consecutive_failures: 9, last_success_ms: 80_000, ..stats() }],
                now,
                false,
                Verdict::Keep,
            ),
            (
                "failing, but within the grace after a success",
                Stats { consecutive_failures: 5, last_success_ms: 99_500, ..stats() },
                vec![peer],
                now,
                false,
                Verdict::Keep,
            ),
            (
                "four failures are not five",
                Stats { consecutive_failures: 4, last_success_ms: 90_000, ..stats() },
                vec![peer],
                now,
                false,
                Verdict::Keep,
            ),
            ("idle", stats(), vec![], 100_001 + idle_ms, false, Verdict::Evict(Idle)),
            (
                "idle goes on a saturated machine too",
                stats(),
                vec![],
                100_001 + idle_ms,
                true,
                Verdict::Evict(Idle),
            ),
        ];
        for (name, stats, peers, now, busy, expected) in cases {
            assert_eq!(check(&stats, &peers, now, &rules, busy), expected, "{name}");
        }
    }

    #[test]
    fn a_connection_is_quiet_while_requests_wait_and_nothing_comes() {
        for (name, in_flight, heard, now, expected) in [
            ("nobody waits", 0, 100_000, 100_500, false),
            ("a moment ago", 1, 100_000, 100_025, false),
            ("a while ago", 1, 100_000, 100_026, true),
            ("the clock stood still", 1, 100_500, 100_000, false),
        ] {
            assert_eq!(is_quiet(in_flight, heard, now), expected, "{name}");
        }
        for (in_flight, shards, expected) in [(1, 1, true), (1, 2, false), (20, 2, true), (20, 3, false)] {
            assert_eq!(wants_spare(in_flight, shards, 16), expected, "{in_flight} on {shards}");
        }
    }

    #[test]
    fn the_active_set_is_sized_by_load() {
        for (in_flight, expected) in [(0, 1), (15, 1), (16, 2), (31, 2), (32, 3), (160, 11)] {
            assert_eq!(active_set(in_flight, 16), expected, "{in_flight} in flight");
        }
    }

    #[test]
    fn growth_starts_above_three_quarters() {
        for (in_flight, shards, expected) in
            [(12, 1, false), (13, 1, true), (24, 2, false), (25, 2, true), (5, 0, false)]
        {
            assert_eq!(wants_growth(in_flight, shards, 16, 0.75), expected, "{in_flight} on {shards}");
        }
    }
}
