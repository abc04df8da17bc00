use duroxide::providers::SemverRange;

use super::*;

fn hint(instance: &str, id: &str, seq: u64, visible_at: u64) -> MessageHint {
    MessageHint { instance: instance.to_owned(), id: id.to_owned(), seq, visible_at }
}

/// What a dispatcher says that supports everything up to a version.
fn filter(max: &str) -> DispatcherCapabilityFilter {
    let range = SemverRange::new("0.0.0".parse().unwrap(), max.parse().unwrap());
    DispatcherCapabilityFilter { supported_duroxide_versions: vec![range] }
}

fn locked(until: u64, taken: &[&str]) -> Verdict {
    Verdict::Locked { until, taken: taken.iter().map(|id| (*id).to_owned()).collect(), left: Vec::new() }
}

#[test]
fn an_instance_is_handed_out_once_and_in_order() {
    let finder = TurnFinder::default();
    finder.hint(hint("b", "2", 2, 5));
    finder.hint(hint("a", "1", 1, 5));
    let first = finder.take(10).unwrap();
    assert_eq!(first.instance, "a");
    assert_eq!(finder.take(10).unwrap().instance, "b");
    assert!(finder.knows("b"), "a dropped candidate is put back");
    assert_eq!(finder.take(10).unwrap().instance, "b");
    drop(first);
}

#[test]
fn what_is_not_for_one_caller_is_there_for_another() {
    let finder = TurnFinder::default();
    finder.hint(hint("new", "1", 1, 5));
    finder.hint(hint("old", "2", 2, 7));
    let old = filter("0.1.32");
    finder.wake(Some(&old));
    finder.wake(None);
    let new = finder.take_for(10, Some(&old)).unwrap();
    finder.turned_away(&new.instance, Some([9, 0, 0]), 10);
    drop(new);
    assert_eq!(finder.next_at_for(Some(&old)), Some(7));
    let other = finder.take_for(10, Some(&old)).unwrap();
    assert_eq!(other.instance, "old");
    assert!(finder.take_for(10, Some(&old)).is_none());
    assert_eq!(finder.next_at_for(Some(&old)), None);
    assert_eq!(finder.take(10).unwrap().instance, "new");
}

#[test]
fn a_message_that_arrives_during_the_lock_waits_for_its_end() {
    let finder = TurnFinder::default();
    finder.hint(hint("a", "1", 1, 5));
    finder.take(10).unwrap().decide(locked(100, &["1"]));
    finder.hint(hint("a", "2", 2, 10));
    assert!(finder.take(50).is_none());
    finder.released("a", &["1".to_owned()]);
    assert_eq!(finder.take(50).unwrap().instance, "a");
}

#[test]
fn a_lock_that_expires_brings_the_instance_back() {
    let finder = TurnFinder::default();
    finder.hint(hint("a", "1", 1, 5));
    finder.take(10).unwrap().decide(locked(100, &["1"]));
    assert_eq!(finder.next_at(), Some(100));
    finder.extended("a", 200);
    assert!(finder.take(150).is_none());
    assert_eq!(finder.take(200).unwrap().instance, "a");
}

#[test]
fn everything_consumed_leaves_nothing_behind() {
    let finder = TurnFinder::default();
    finder.hint(hint("a", "1", 1, 5));
    finder.take(10).unwrap().decide(locked(100, &["1"]));
    finder.released("a", &["1".to_owned()]);
    assert!(!finder.knows("a"));
    assert_eq!(finder.next_at(), None);
}

#[test]
fn timers_wait_until_they_are_due_and_something_new_ends_a_rest() {
    let finder = TurnFinder::default();
    finder.hint(hint("a", "timer", 1, 1000));
    assert!(finder.take(999).is_none());
    let candidate = finder.take(1000).unwrap();
    candidate.decide(Verdict::Park { now: 1000 });
    assert!(finder.take(1001).is_none());
    finder.hint(hint("a", "start", 2, 1001));
    assert_eq!(finder.take(1001).unwrap().instance, "a");
}

#[test]
fn only_what_gives_an_idle_instance_something_to_do_is_news() {
    let finder = TurnFinder::default();
    assert!(finder.hint(hint("a", "1", 1, 5)));
    assert!(!finder.hint(hint("a", "1", 1, 5)), "it is known");
    assert!(!finder.hint(hint("a", "2", 2, 6)), "it comes with the first");
    assert!(finder.hint(hint("timer", "2", 2, 500)));
    assert!(finder.hint(hint("timer", "1", 1, 5)), "it comes before the timer");
    let candidate = finder.take(10).unwrap();
    assert!(!finder.hint(hint("a", "0", 0, 1)), "in hand");
    candidate.decide(locked(100, &["1"]));
    assert!(!finder.hint(hint("a", "3", 3, 7)), "locked");
}

#[test]
fn more_messages_than_a_turn_takes_do_not_end_the_wait_for_another_process() {
    let finder = TurnFinder::default();
    finder.hint(hint("a", "0", 0, 5));
    for n in 1..500 {
        if let Some(candidate) = finder.take(10) {
            candidate.decide(Verdict::RestUntil(1000));
        }
        finder.hint(hint("a", &n.to_string(), n, 5));
    }
    assert!(finder.take(10).is_none(), "it rests until the lock of the other process ends");
    assert_eq!(finder.take(1000).unwrap().instance, "a");
}

#[test]
fn what_a_search_meets_ends_no_wait_for_another_process_but_the_rest_of_who_had_nothing_to_do() {
    let finder = TurnFinder::default();
    finder.hint(hint("a", "0", 0, 5));
    finder.take(10).unwrap().decide(Verdict::RestUntil(1000));
    finder.sight(vec![hint("a", "1", 1, 5)], 10);
    assert!(finder.take(10).is_none());
    finder.hint(hint("a", "2", 2, 5));
    finder.take(10).unwrap().decide(Verdict::Park { now: 10 });
    finder.sight(vec![hint("a", "3", 3, 5)], 10);
    assert_eq!(finder.take(10).unwrap().instance, "a");
}

#[test]
fn of_many_that_may_be_for_others_the_first_are_read_together_and_the_last_is_tried() {
    let finder = TurnFinder::default();
    let old = filter("0.1.32");
    finder.wake(Some(&old));
    for n in 0..2000 {
        finder.hint(hint(&format!("{n:04}"), "1", n, 5));
    }
    assert!(finder.screen(10).is_none(), "nothing says that they are for others");
    let first = finder.take_for(10, Some(&old)).unwrap();
    finder.turned_away(&first.instance, Some([9, 0, 0]), 10);
    drop(first);
    assert!(!finder.knows("0000"), "no dispatcher here takes it");
    assert_eq!(finder.sight(vec![hint("0000", "1", 0, 5)], 11), 0, "a search meets it again");
    assert!(!finder.knows("0000"));
    let screening = finder.screen(10).unwrap();
    assert_eq!((screening.instances.len(), screening.instances[0].as_str()), (SCREENED_MAX, "0001"));
    assert!(finder.screen(10).is_none(), "one at a time");
    let last = finder.take_for(10, Some(&old)).unwrap();
    assert_eq!(last.instance, "1999");
    last.decide(locked(100, &["1"]));
    screening.done(|instance| Outline {
        version: (instance != "0008").then_some([9, 0, 0]),
        ..Outline::default()
    });
    assert_eq!(
        finder.take_for(10, Some(&old)).unwrap().instance,
        "0008",
        "the one that is for us goes first"
    );
    assert_eq!(lock(&finder.state).instances.len(), 2000 - SCREENED_MAX, "the others are not kept");
    let screening = finder.screen(10).unwrap();
    assert_eq!(screening.instances[0], "0501");
    screening.failed();
    assert_eq!(finder.take_for(10, Some(&old)).unwrap().instance, "0008");
}

#[test]
fn what_was_for_others_is_looked_at_again_when_something_new_arrives() {
    let finder = TurnFinder::default();
    let old = filter("0.1.32");
    finder.wake(Some(&old));
    finder.hint(hint("a", "1", 1, 5));
    let first = finder.take_for(10, Some(&old)).unwrap();
    finder.turned_away("a", Some([9, 0, 0]), 20);
    drop(first);
    assert_eq!(finder.sight(vec![hint("a", "1", 1, 5)], 20), 0);
    // It came while the head was read, which may not have shown it.
    assert_eq!(finder.sight(vec![hint("a", "2", 2, 15)], 20), 1);
    assert_eq!(finder.take_for(20, Some(&old)).unwrap().instance, "a");
}

#[test]
fn a_message_that_arrives_while_its_instance_is_loaded_is_not_forgotten() {
    let finder = TurnFinder::default();
    finder.hint(hint("a", "1", 1, 5));
    let candidate = finder.take(10).unwrap();
    finder.hint(hint("a", "2", 2, 8));
    candidate.saw(10, &HashSet::from(["1"]));
    candidate.decide(locked(100, &["1"]));
    finder.released("a", &["1".to_owned()]);
    assert_eq!(finder.take(10).unwrap().instance, "a");
}

#[test]
fn of_many_that_gave_trouble_one_is_tried_at_a_time_and_the_others_go_on() {
    let finder = TurnFinder::default();
    for n in 0..10 {
        finder.hint(hint(&format!("bad {n}"), "1", n, 5));
    }
    while let Some(bad) = finder.take(10) {
        bad.decide(Verdict::Trouble { now: 10 });
    }
    for n in 0..5 {
        finder.hint(hint(&format!("good {n}"), "1", 100 + n, 1000));
    }
    let bad = finder.take(1000).unwrap();
    assert_eq!(bad.instance, "bad 0");
    let good: Vec<Candidate> = std::iter::from_fn(|| finder.take(1000)).collect();
    assert_eq!(good.len(), 5);
    assert_eq!(finder.next_at(), None, "nobody waits for what may not be tried now");
    bad.decide(Verdict::Trouble { now: 1000 });
    assert_eq!(finder.next_at(), Some(210));
    let next = finder.take(1000).unwrap();
    assert_eq!(next.instance, "bad 1");
    drop(next);
    assert_eq!(finder.take(1000).unwrap().instance, "bad 1", "dropped, it makes room too");
}

#[test]
fn trouble_that_is_over_holds_nobody_up() {
    let finder = TurnFinder::default();
    for n in 0..10 {
        finder.hint(hint(&n.to_string(), "1", n, 5));
    }
    while let Some(all) = finder.take(10) {
        all.decide(Verdict::Trouble { now: 10 });
    }
    let mut at_a_time = Vec::new();
    while finder.next_at().is_some_and(|at| at <= 1000) {
        let taken: Vec<Candidate> = std::iter::from_fn(|| finder.take(1000)).collect();
        at_a_time.push(taken.len());
        taken.into_iter().for_each(|candidate| candidate.decide(locked(5000, &["1"])));
    }
    assert_eq!(at_a_time, [1, 2, 7]);
}

#[test]
fn what_only_waited_for_something_is_not_among_those_that_gave_trouble() {
    let finder = TurnFinder::default();
    finder.hint(hint("bad", "1", 1, 5));
    finder.hint(hint("early", "event", 2, 5));
    finder.take(10).unwrap().decide(Verdict::Trouble { now: 10 });
    finder.take(10).unwrap().decide(Verdict::Park { now: 10 });
    finder.hint(hint("early", "start", 3, 20));
    let bad = finder.take(1000).unwrap();
    let early = finder.take(1000).unwrap();
    assert_eq!((early.instance.as_str(), bad.instance.as_str()), ("bad", "early"));
}

#[test]
fn nothing_is_kept_where_nobody_asks() {
    let finder = TurnFinder::asleep();
    assert!(!finder.hint(hint("a", "1", 1, 5)));
    assert!(!finder.knows("a"));
    finder.wake(None);
    assert!(finder.hint(hint("a", "1", 1, 5)));
    assert!(finder.knows("a"));
}

#[test]
fn however_many_messages_an_instance_has_the_first_ones_are_kept() {
    let finder = TurnFinder::default();
    for n in 0..5000 {
        finder.hint(hint("a", &format!("timer {n}"), n, 1000 + n));
        assert!(lock(&finder.state).instances["a"].pending.len() <= PENDING_MAX);
    }
    assert_eq!(finder.next_at(), Some(1000));
    finder.hint(hint("a", "due", 5000, 5));
    assert_eq!(finder.take(10).unwrap().instance, "a");
}

#[test]
fn a_full_finder_keeps_what_may_be_tried_first() {
    let finder = TurnFinder::default();
    for n in 0..INSTANCES_MAX {
        finder.hint(hint(&n.to_string(), "timer", 1, 1_000_000));
    }
    assert!(finder.hint(hint("due", "start", 2, 5)));
    assert!(!finder.hint(hint("late", "timer", 2, 2_000_000)));
    assert_eq!(finder.take(10).unwrap().instance, "due");
    let state = lock(&finder.state);
    assert_eq!((state.instances.len(), state.agenda.len()), (INSTANCES_MAX, INSTANCES_MAX));
}

#[test]
fn what_a_load_did_not_see_is_forgotten_but_future_messages_are_kept() {
    let finder = TurnFinder::default();
    finder.hint(hint("a", "gone", 1, 5));
    finder.hint(hint("a", "timer", 2, 500));
    let candidate = finder.take(10).unwrap();
    candidate.saw(10, &HashSet::new());
    candidate.decide(Verdict::RestUntil(0));
    assert_eq!(finder.next_at(), Some(500));
}

#[test]
fn after_several_that_others_have_the_heads_of_many_are_read_together_and_those_locked_rest() {
    let finder = TurnFinder::default();
    for n in 0..40 {
        finder.hint(hint(&format!("{n:04}"), "m", n, 0));
    }
    for _ in 0..LOCKED_ROW {
        assert!(finder.screen(10).is_none(), "a few are tried one by one");
        let candidate = finder.take(10).unwrap();
        finder.found_locked(&candidate.instance, 10);
        candidate.decide(Verdict::RestUntil(1000));
    }
    let screening = finder.screen(10).expect("now they are read together");
    assert_eq!(screening.instances.len(), 40 - LOCKED_ROW as usize);
    screening.done(|instance| Outline {
        locked_until: if instance == "0030" { 0 } else { 100_000 },
        ..Outline::default()
    });
    let free = finder.take(10).expect("nobody has it");
    assert_eq!(free.instance, "0030");
    free.decide(Verdict::Locked { until: 500, taken: vec!["m".to_owned()], left: vec![] });
    assert!(finder.take(10).is_none(), "the others rest");
    assert!(finder.screen(10 + SCREENED_REST_MS).is_some(), "then their heads are read together again");
}

#[test]
fn what_is_new_is_asked_for_while_what_looks_like_news_is_for_others() {
    let finder = TurnFinder::default();
    let page = Seen { rows: 10, news: 10, next: 50, is_partial: false };
    finder.came(10_000, 0, page, None);
    assert_eq!(finder.latest(), None, "all of it may be for this process");
    finder.turned_away("a", Some([9, 0, 0]), 10_000);
    let left = finder.came(10_010, 50, Seen { next: 60, ..page }, None);
    assert!(left.is_barren && finder.latest().is_some_and(|from| from <= 10_010));
    finder.came(10_020, 0, Seen { next: 0, ..page }, None);
    assert_eq!(finder.latest(), None, "there is no more than one page");
}
