//! Whether to try again at the same endpoint. Pure.

use std::time::Duration;

use cosmos_wire::status::Status;

use super::outcome::Outcome;
use crate::config::Retry;
use crate::request::Repeat;
use crate::transport::{HttpErrorKind, Sent};

/// What one operation has used up, over all its attempts, regions and legs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) attempts: u32,
    pub(crate) throttles: u32,
    pub(crate) waited: Duration,
    pub(crate) has_changed_shard: bool,
    /// A try that may have been executed was repeated here.
    pub(crate) has_unknown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Let the operation decide.
    Propagate,
    /// Wait, then send again to the same endpoint.
    Wait(Duration),
    /// Send again at once, on another connection.
    OtherShard,
    /// Send again at once, by the ordinary gateway of the region.
    OrdinaryGateway,
}

/// `is_gateway2` says which of a region's two endpoints was asked.
pub(crate) fn verdict(
    outcome: &Outcome,
    repeat: Repeat,
    is_gateway2: bool,
    budget: &Budget,
    rules: &Retry,
) -> Verdict {
    if budget.attempts >= rules.attempts_max {
        return Verdict::Propagate;
    }
    match outcome {
        Outcome::Answered(answer) if is_worth_waiting(answer.status) => {
            let wait = throttled(answer.retry_after(), budget.throttles, rules);
            let is_within =
                budget.throttles < rules.throttle_max && budget.waited + wait <= rules.throttle_wait_max;
            if is_within { Verdict::Wait(wait) } else { Verdict::Propagate }
        }
        // It did nothing, and perhaps it is only this endpoint that cannot.
        Outcome::Answered(answer) if is_gateway2 && answer.status.code == 503 => Verdict::OrdinaryGateway,
        Outcome::Answered(_) => Verdict::Propagate,
        Outcome::Broken(error) => {
            let is_safe = match (error.sent, repeat) {
                (Sent::No, _) | (Sent::Unknown, Repeat::Safe) => true,
                (Sent::Unknown, Repeat::Unsafe) => false,
            };
            let is_about_a_connection = match error.kind {
                HttpErrorKind::Closed | HttpErrorKind::Refused | HttpErrorKind::Protocol => true,
                // No connection at all, no time left, or the same answer again: another connection would not help.
                HttpErrorKind::Connect
                | HttpErrorKind::TooLarge
                | HttpErrorKind::Tls
                | HttpErrorKind::AttemptTimeout
                | HttpErrorKind::Deadline => false,
            };
            // Another connection to the same endpoint would not speak better.
            let is_about_an_endpoint = is_gateway2 && error.kind == HttpErrorKind::Protocol;
            let is_over = matches!(error.kind, HttpErrorKind::Deadline | HttpErrorKind::TooLarge);
            if is_safe && is_about_a_connection && !is_about_an_endpoint && !budget.has_changed_shard {
                Verdict::OtherShard
            } else if is_safe && is_gateway2 && !is_over {
                Verdict::OrdinaryGateway
            } else {
                Verdict::Propagate
            }
        }
    }
}

/// A region that lacks resources is left for another one, not waited for. Pure.
fn is_worth_waiting(status: Status) -> bool {
    status.is_throttled() && status != Status::SYSTEM_RESOURCE_UNAVAILABLE
}

/// As long as the service says, the first time. One that is refused again waits longer each time: what the service says
/// is when there is something to use, and a batch that needs more than that would spend it on being refused.
fn throttled(told: Option<Duration>, times: u32, rules: &Retry) -> Duration {
    match (told, times) {
        (Some(told), 0) => told,
        (Some(told), _) => told.max(backoff(rules, times - 1)),
        (None, _) => backoff(rules, times),
    }
}

/// Doubling pauses, bounded.
pub(crate) fn backoff(rules: &Retry, times: u32) -> Duration {
    rules.backoff.saturating_mul(1 << times.min(16)).min(rules.backoff_max)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};

    use super::super::outcome::Answer;
    use super::*;
    use crate::transport::HttpError;

    fn answered(code: u16, sub: u32, retry_after_ms: Option<&'static str>) -> Outcome {
        let mut headers = HeaderMap::new();
        if let Some(ms) = retry_after_ms {
            headers.insert("x-ms-retry-after-ms", HeaderValue::from_static(ms));
        }
        Outcome::Answered(Answer { status: Status::new(code, sub), headers, body: Bytes::new() })
    }

    fn broken(kind: HttpErrorKind, sent: Sent) -> Outcome {
        Outcome::Broken(HttpError::new(kind, sent, "test"))
    }

    #[test]
    fn verdicts() {
        use HttpErrorKind::{AttemptTimeout, Closed, Connect, Deadline, Refused};
        use Repeat::{Safe, Unsafe};
        use Verdict::{OtherShard, Propagate, Wait};
        let fresh = Budget::default();
        let ms = Duration::from_millis;
        let spent = Budget { throttles: 9, ..Budget::default() };
        let again = Budget { throttles: 4, ..Budget::default() };
        let waited = Budget { waited: Duration::from_secs(30), ..Budget::default() };
        let moved = Budget { has_changed_shard: true, ..Budget::default() };
        let exhausted = Budget { attempts: 20, ..Budget::default() };
        let cases: Vec<(&str, Outcome, Repeat, &Budget, Verdict)> = vec![
            ("success", answered(200, 0, None), Safe, &fresh, Propagate),
            ("throttled, told how long", answered(429, 3200, Some("17")), Unsafe, &fresh, Wait(ms(17))),
            ("throttled, not told", answered(429, 3200, None), Unsafe, &fresh, Wait(ms(20))),
            ("throttled again, told little", answered(429, 3200, Some("17")), Unsafe, &again, Wait(ms(160))),
            ("throttled again, told much", answered(429, 3200, Some("900")), Safe, &again, Wait(ms(900))),
            ("throttled too often", answered(429, 3200, Some("1")), Safe, &spent, Propagate),
            ("throttled too long", answered(429, 3200, Some("1")), Safe, &waited, Propagate),
            ("region out of resources", answered(429, 3092, Some("1")), Safe, &fresh, Propagate),
            ("unavailable", answered(503, 0, None), Safe, &fresh, Propagate),
            ("never sent", broken(Refused, Sent::No), Unsafe, &fresh, OtherShard),
            ("read broke", broken(Closed, Sent::Unknown), Safe, &fresh, OtherShard),
            ("write broke", broken(Closed, Sent::Unknown), Unsafe, &fresh, Propagate),
            ("read broke twice", broken(Closed, Sent::Unknown), Safe, &moved, Propagate),
            ("no connection", broken(Connect, Sent::No), Safe, &fresh, Propagate),
            ("attempt timed out", broken(AttemptTimeout, Sent::Unknown), Safe, &fresh, Propagate),
            ("deadline", broken(Deadline, Sent::No), Safe, &fresh, Propagate),
            ("attempts used up", answered(429, 3200, Some("1")), Safe, &exhausted, Propagate),
        ];
        let rules = Retry::default();
        for (name, outcome, repeat, budget, expected) in cases {
            assert_eq!(verdict(&outcome, repeat, false, budget, &rules), expected, "{name}");
        }
    }

    #[test]
    fn what_breaks_at_gateway_two_goes_on_by_the_ordinary_gateway_if_that_is_safe() {
        use HttpErrorKind::{AttemptTimeout, Closed, Connect, Deadline, Protocol, Refused, Tls, TooLarge};
        use Repeat::{Safe, Unsafe};
        use Verdict::{OrdinaryGateway, OtherShard, Propagate, Wait};
        let fresh = Budget::default();
        let moved = Budget { has_changed_shard: true, ..Budget::default() };
        let exhausted = Budget { attempts: 20, ..Budget::default() };
        let cases: Vec<(Outcome, Repeat, &Budget, Verdict)> = vec![
            (answered(200, 0, None), Safe, &fresh, Propagate),
            (answered(503, 0, None), Unsafe, &fresh, OrdinaryGateway),
            (answered(410, 1002, None), Safe, &fresh, Propagate),
            (answered(429, 3200, Some("17")), Unsafe, &fresh, Wait(Duration::from_millis(17))),
            (broken(Connect, Sent::No), Unsafe, &fresh, OrdinaryGateway),
            (broken(Tls, Sent::No), Unsafe, &fresh, OrdinaryGateway),
            (broken(Protocol, Sent::No), Unsafe, &fresh, OrdinaryGateway),
            (broken(Protocol, Sent::Unknown), Safe, &fresh, OrdinaryGateway),
            (broken(Protocol, Sent::Unknown), Unsafe, &fresh, Propagate),
            (broken(Closed, Sent::Unknown), Safe, &fresh, OtherShard),
            (broken(Closed, Sent::Unknown), Safe, &moved, OrdinaryGateway),
            (broken(Closed, Sent::Unknown), Unsafe, &moved, Propagate),
            (broken(Refused, Sent::No), Unsafe, &moved, OrdinaryGateway),
            (broken(AttemptTimeout, Sent::Unknown), Safe, &fresh, OrdinaryGateway),
            (broken(AttemptTimeout, Sent::Unknown), Unsafe, &fresh, Propagate),
            (broken(Deadline, Sent::No), Safe, &fresh, Propagate),
            (broken(TooLarge, Sent::Unknown), Safe, &fresh, Propagate),
            (broken(Connect, Sent::No), Safe, &exhausted, Propagate),
        ];
        for (outcome, repeat, budget, expected) in cases {
            let told = verdict(&outcome, repeat, true, budget, &Retry::default());
            assert_eq!(told, expected, "{outcome:?} {repeat:?}");
        }
    }

    #[test]
    fn pauses_double_and_are_bounded() {
        let rules = Retry::default();
        let pauses: Vec<u128> = (0..9).map(|n| backoff(&rules, n).as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]);
        assert_eq!(backoff(&rules, u32::MAX), rules.backoff_max);
    }
}
