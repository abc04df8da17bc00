use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Done,
    Fail,
    FailUnknown,
    Failover,
    InPlace,
    Session,
    Reroute,
}

fn summary(action: &Action) -> Want {
    match action {
        Action::Complete => Want::Done,
        Action::Fail { is_unknown: true } => Want::FailUnknown,
        Action::Fail { is_unknown: false } => Want::Fail,
        Action::Retry { context, .. } => match context {
            Context::Failover => Want::Failover,
            Context::Session => Want::Session,
            Context::Rerouted => Want::Reroute,
            Context::Retry
            | Context::Initial
            | Context::Hedging
            | Context::OtherShard
            | Context::OrdinaryGateway => Want::InPlace,
        },
    }
}

fn region() -> Arc<str> {
    "East US".into()
}

fn view(region: &Arc<str>, is_read: bool, regions: usize) -> View<'_> {
    View {
        is_read,
        repeat: if is_read { Repeat::Safe } else { Repeat::Unsafe },
        regions,
        is_multi_write: false,
        may_have_moved: false,
        names_level: false,
        region,
        is_clock_off: false,
        now: Instant::now(),
    }
}

#[tokio::test(start_paused = true)]
async fn answers_of_a_fresh_operation() {
    use Want::{Done, Fail, FailUnknown, Failover, InPlace, Reroute, Session};
    // status, sub, read in two regions, write in two regions, read in one region
    let table = [
        (200, 0, Done, Done, Done),
        (201, 0, Done, Done, Done),
        (204, 0, Done, Done, Done),
        (207, 0, Done, Done, Done),
        (302, 0, Fail, Fail, Fail),
        (304, 0, Done, Done, Done),
        (400, 0, Fail, Fail, Fail),
        (400, 1001, Fail, Fail, Fail),
        (400, 1024, Reroute, Reroute, Reroute),
        (401, 0, Fail, Fail, Fail),
        (403, 0, Fail, Fail, Fail),
        (403, 3, Failover, Failover, Failover),
        (403, 1008, Failover, Failover, Failover),
        (404, 0, Fail, Fail, Fail),
        (404, 1002, Session, Session, Session),
        (404, 1003, Fail, Fail, Fail),
        (404, 1013, InPlace, InPlace, InPlace),
        (408, 0, Failover, FailUnknown, InPlace),
        (409, 0, Fail, Fail, Fail),
        (410, 0, Failover, Failover, InPlace),
        (410, 1000, Reroute, Reroute, Reroute),
        (410, 1002, Reroute, Reroute, Reroute),
        (410, 1007, Reroute, Reroute, Reroute),
        (410, 1008, Reroute, Reroute, Reroute),
        (412, 0, Fail, Fail, Fail),
        (413, 0, Fail, Fail, Fail),
        (423, 0, Fail, Fail, Fail),
        (429, 3200, Fail, Fail, Fail),
        (429, 3092, Failover, Failover, InPlace),
        (449, 0, InPlace, InPlace, InPlace),
        (500, 0, Failover, FailUnknown, InPlace),
        (501, 0, Fail, Fail, Fail),
        (502, 0, Failover, FailUnknown, InPlace),
        (503, 0, Failover, Failover, InPlace),
        (503, 1007, Failover, Failover, InPlace),
        (504, 0, Failover, FailUnknown, InPlace),
        (507, 0, Failover, FailUnknown, InPlace),
        (520, 0, Failover, FailUnknown, InPlace),
        (524, 0, Failover, FailUnknown, InPlace),
    ];
    let (east, state, rules) = (region(), RetryState::default(), Retry::default());
    for (code, sub, read, write, lone_read) in table {
        for (name, is_read, regions, expected) in
            [("read", true, 2, read), ("write", false, 2, write), ("lone read", true, 1, lone_read)]
        {
            let event = Event::Answered(Status::new(code, sub));
            let (action, _) = decide(event, &state, &view(&east, is_read, regions), &rules);
            assert_eq!(summary(&action), expected, "{code}/{sub} {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn broken_exchanges_of_a_fresh_operation() {
    use HttpErrorKind::{AttemptTimeout, Closed, Connect, Deadline, Protocol, Refused, Tls, TooLarge};
    use Want::{Fail, FailUnknown, Failover, InPlace};
    // kind, sent, read in two, unsafe write in two, conditional write in two, read in one
    let table = [
        (Connect, Sent::No, Failover, Failover, Failover, InPlace),
        (Tls, Sent::No, Failover, Failover, Failover, Fail),
        (Refused, Sent::No, Failover, Failover, Failover, InPlace),
        (Closed, Sent::No, Failover, Failover, Failover, InPlace),
        (Closed, Sent::Unknown, Failover, FailUnknown, Failover, InPlace),
        (Protocol, Sent::Unknown, Failover, FailUnknown, Failover, InPlace),
        (AttemptTimeout, Sent::No, Failover, Failover, Failover, InPlace),
        (AttemptTimeout, Sent::Unknown, Failover, FailUnknown, Failover, InPlace),
        (Deadline, Sent::No, Fail, Fail, Fail, Fail),
        (Deadline, Sent::Unknown, Fail, FailUnknown, FailUnknown, Fail),
        (TooLarge, Sent::Unknown, Fail, FailUnknown, FailUnknown, Fail),
    ];
    let (east, state, rules) = (region(), RetryState::default(), Retry::default());
    for (kind, sent, read, write, conditional, lone_read) in table {
        let safe_write = View { repeat: Repeat::Safe, ..view(&east, false, 2) };
        for (name, view, expected) in [
            ("read", view(&east, true, 2), read),
            ("write", view(&east, false, 2), write),
            ("conditional", safe_write, conditional),
            ("lone read", view(&east, true, 1), lone_read),
        ] {
            let (action, _) = decide(Event::Broken { kind, sent }, &state, &view, &rules);
            assert_eq!(summary(&action), expected, "{kind:?} {sent:?} {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn effects_follow_the_cause() {
    let (east, state, rules) = (region(), RetryState::default(), Retry::default());
    let effects = |event| decide(event, &state, &view(&east, true, 2), &rules).1;
    let none = Effects::default();
    let answered = |code, sub| Event::Answered(Status::new(code, sub));
    let cases = [
        (answered(200, 0), Effects { partition_succeeded: true, ..none }),
        (answered(404, 0), Effects { partition_succeeded: true, ..none }),
        (answered(429, 3200), none),
        (answered(403, 3), Effects { refresh_account: true, ..none }),
        (answered(403, 1008), Effects { refresh_account: true, ..none }),
        (answered(410, 1000), Effects { refresh_container: true, ..none }),
        (answered(410, 1002), Effects { refresh_ranges: true, ..none }),
        (answered(410, 1007), Effects { refresh_ranges: true, ..none }),
        (answered(503, 0), Effects { partition_failed: true, ..none }),
        (answered(500, 0), Effects { partition_failed: true, ..none }),
        (answered(520, 0), Effects { partition_failed: true, ..none }),
        (answered(302, 0), none),
        (answered(404, 1002), none),
        (
            Event::Broken { kind: HttpErrorKind::Connect, sent: Sent::No },
            Effects { endpoint_unavailable: true, refresh_account: true, ..none },
        ),
        (
            Event::Broken { kind: HttpErrorKind::Closed, sent: Sent::Unknown },
            Effects { partition_failed: true, ..none },
        ),
        (Event::Broken { kind: HttpErrorKind::Deadline, sent: Sent::Unknown }, none),
    ];
    for (event, expected) in cases {
        assert_eq!(effects(event), expected, "{event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cross_region_tries_are_bounded() {
    let (east, rules) = (region(), Retry::default());
    let mut state = RetryState::default();
    let mut tries = 0;
    loop {
        let event = Event::Answered(Status::new(503, 0));
        match decide(event, &state, &view(&east, true, 4), &rules).0 {
            Action::Retry { state: next, .. } => state = next,
            Action::Fail { .. } => break,
            Action::Complete => panic!("503 is not success"),
        }
        tries += 1;
    }
    assert_eq!(tries, 3);
    assert_eq!(state.tried.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn write_forbidden_is_insisted_on_for_five_seconds_in_all() {
    let (east, rules) = (region(), Retry::default());
    let mut state = RetryState::default();
    let begun = Instant::now();
    let mut now = begun;
    let event = Event::Answered(Status::new(403, 3));
    loop {
        let view = View { now, ..view(&east, false, 2) };
        match decide(event, &state, &view, &rules).0 {
            Action::Retry { state: next, delay, .. } => {
                state = next;
                now += delay + Duration::from_millis(1);
            }
            Action::Fail { is_unknown } => {
                assert!(!is_unknown);
                break;
            }
            Action::Complete => panic!("403 is not success"),
        }
    }
    let spent = now.duration_since(begun);
    assert!(spent >= Duration::from_secs(5) && spent < Duration::from_secs(8), "{spent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_retry_goes_to_the_write_region() {
    let (east, rules) = (region(), Retry::default());
    let event = Event::Answered(Status::new(404, 1002));
    let Action::Retry { state, delay, .. } =
        decide(event, &RetryState::default(), &view(&east, true, 2), &rules).0
    else {
        panic!("retried")
    };
    assert!(state.at_write_region && delay.is_zero());
    let multi = View { is_multi_write: true, ..view(&east, true, 2) };
    let Action::Retry { state, .. } = decide(event, &RetryState::default(), &multi, &rules).0 else {
        panic!("retried")
    };
    assert!(!state.at_write_region);
    assert_eq!(state.tried, std::slice::from_ref(&east));
    let spent = RetryState { sessions: rules.session_max, ..RetryState::default() };
    assert_eq!(summary(&decide(event, &spent, &view(&east, true, 2), &rules).0), Want::Fail);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_after_an_unknown_attempt_stays_unknown() {
    let (east, rules) = (region(), Retry::default());
    let state = RetryState { has_unknown: true, ..RetryState::default() };
    for code in [409, 412, 404] {
        let (action, _) =
            decide(Event::Answered(Status::new(code, 0)), &state, &view(&east, false, 1), &rules);
        assert_eq!(action, Action::Fail { is_unknown: true }, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_is_set_once() {
    let (east, rules) = (region(), Retry::default());
    let off = View { is_clock_off: true, ..view(&east, true, 1) };
    let event = Event::Answered(Status::new(403, 0));
    let (action, effects) = decide(event, &RetryState::default(), &off, &rules);
    assert!(effects.set_clock);
    let Action::Retry { state, .. } = action else { panic!("retried") };
    assert_eq!(summary(&decide(event, &state, &off, &rules).0), Want::Fail);
}

#[tokio::test(start_paused = true)]
async fn a_read_at_the_accounts_level_that_is_refused_finds_out_once_whether_that_has_changed() {
    let east = region();
    let named = View { names_level: true, ..view(&east, true, 2) };
    let fresh = RetryState::default();
    let refused = Event::Answered(Status::new(400, 0));
    let (action, effects) = decide(refused, &fresh, &named, &Retry::default());
    let Action::Retry { state, .. } = action else { panic!("{action:?}") };
    assert!(effects.refresh_account && state.has_checked_account);
    let (action, effects) = decide(refused, &state, &named, &Retry::default());
    assert_eq!(summary(&action), Want::Fail);
    assert!(!effects.refresh_account);
}

#[tokio::test(start_paused = true)]
async fn only_what_may_have_arrived_is_held_against_a_partition() {
    use HttpErrorKind::{AttemptTimeout, Closed, Connect, Protocol, Refused};
    let table = [
        (Connect, Sent::No, false),
        (Refused, Sent::No, false),
        (Closed, Sent::No, false),
        (AttemptTimeout, Sent::No, false),
        (Closed, Sent::Unknown, true),
        (Protocol, Sent::Unknown, true),
        (AttemptTimeout, Sent::Unknown, true),
    ];
    let (east, state, rules) = (region(), RetryState::default(), Retry::default());
    for (kind, sent, expected) in table {
        let (_, effects) = decide(Event::Broken { kind, sent }, &state, &view(&east, true, 2), &rules);
        assert_eq!(effects.partition_failed, expected, "{kind:?} {sent:?}");
    }
}
