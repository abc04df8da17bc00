//! What the activities of the flows did, and whether that is what duroxide promises: each runs at least once, and its
//! completion is recorded exactly once.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use duroxide::{ActivityContext, Client, Event, EventKind};

/// What happened outside of the store.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) failures_left: AtomicU64,
    /// Activities that wait to be cancelled.
    pub(crate) waiting: AtomicU64,
    /// Those of them that were told that they are.
    pub(crate) told: AtomicU64,
    runs: Mutex<Vec<Run>>,
}

impl Effects {
    /// Takes note that an activity begins.
    pub(crate) fn begin(&self, context: &ActivityContext, input: &str) {
        let activity = Activity {
            instance: context.instance_id().to_owned(),
            execution: context.execution_id(),
            name: context.activity_name().to_owned(),
            input: input.to_owned(),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970");
        let begun_ms = u64::try_from(now.as_millis()).expect("it is before the end of time");
        self.runs.lock().expect("never poisoned").push(Run { activity, begun_ms });
    }

    /// How often activities of this name were begun.
    pub(crate) fn runs(&self, name: &str) -> usize {
        let runs = self.runs.lock().expect("never poisoned");
        runs.iter().filter(|run| run.activity.name == name).count()
    }

    /// Whether the activities ran as the record allows.
    pub(crate) fn check(&self, recorded: &[Event], reruns: Reruns) -> Result<(), String> {
        judge(recorded, &self.runs.lock().expect("never poisoned"), reruns)
    }
}

/// What tells an activity of an execution from others: the flows give no two of them the same input.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Activity {
    instance: String,
    execution: u64,
    name: String,
    input: String,
}

#[derive(Debug, Clone)]
struct Run {
    activity: Activity,
    begun_ms: u64,
}

/// When an activity may run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reruns {
    /// Never: nobody lost its lock.
    Never,
    /// Until its completion is recorded: whoever ran it before is dead.
    UntilRecorded,
    /// At any time: whoever lost its lock may begin before it learns of it.
    Always,
}

/// Whether these runs are what a history allows.
fn judge(recorded: &[Event], runs: &[Run], reruns: Reruns) -> Result<(), String> {
    let mut runs_of: BTreeMap<&Activity, Vec<u64>> = BTreeMap::new();
    for run in runs {
        runs_of.entry(&run.activity).or_default().push(run.begun_ms);
    }
    let mut completions: BTreeMap<(&str, u64, u64), Vec<u64>> = BTreeMap::new();
    let mut completed = Vec::new();
    for event in recorded {
        let execution = (event.instance_id.as_str(), event.execution_id);
        match &event.kind {
            EventKind::ActivityCompleted { .. } | EventKind::ActivityFailed { .. } => {
                let source = event.source_event_id.unwrap_or_default();
                completions.entry((execution.0, execution.1, source)).or_default().push(event.timestamp_ms);
            }
            EventKind::OrchestrationCompleted { .. } => completed.push(execution),
            _ => {}
        }
    }
    for event in recorded {
        let EventKind::ActivityScheduled { name, input, .. } = &event.kind else { continue };
        let (instance, execution) = (event.instance_id.as_str(), event.execution_id);
        let activity =
            Activity { instance: instance.to_owned(), execution, name: name.clone(), input: input.clone() };
        let begun = runs_of.remove(&activity).unwrap_or_default();
        let ends = completions.remove(&(instance, execution, event.event_id)).unwrap_or_default();
        let ended = match ends[..] {
            // One that its orchestration did not wait for may not even have begun.
            [] if !completed.contains(&(instance, execution)) => u64::MAX,
            [ended] if !begun.is_empty() => ended,
            [_] => return Err(format!("{activity:?} is completed and never ran")),
            _ => return Err(format!("{activity:?} has {} completions", ends.len())),
        };
        let wrong = match reruns {
            Reruns::Never => begun.len() > 1,
            Reruns::UntilRecorded => begun.iter().any(|begun| *begun > ended),
            Reruns::Always => false,
        };
        if wrong {
            return Err(format!(
                "{activity:?} began at {begun:?} and its completion was recorded at {ended}"
            ));
        }
    }
    match (runs_of.into_keys().next(), completions.into_keys().next()) {
        (None, None) => Ok(()),
        (Some(activity), _) => Err(format!("{activity:?} ran and was not scheduled, or not only once")),
        (None, Some(completion)) => Err(format!("{completion:?} completed and was not scheduled")),
    }
}

/// The history of an instance and of all below it, all executions.
pub(crate) async fn recorded(client: &Client, instance: &str) -> Result<Vec<Event>, String> {
    let said = |error: duroxide::ClientError| error.to_string();
    let mut events = Vec::new();
    for id in client.get_instance_tree(instance).await.map_err(said)?.all_ids {
        for execution in client.list_executions(&id).await.map_err(said)? {
            events.extend(client.read_execution_history(&id, execution).await.map_err(said)?);
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64, source: Option<u64>, at: u64, kind: EventKind) -> Event {
        Event { timestamp_ms: at, ..Event::with_event_id(id, "a", 1, source, kind) }
    }

    fn scheduled(id: u64, input: &str) -> Event {
        let kind = EventKind::ActivityScheduled {
            name: "Echo".to_owned(),
            input: input.to_owned(),
            session_id: None,
            tag: None,
        };
        event(id, None, 1, kind)
    }

    fn completed(id: u64, source: u64, at: u64) -> Event {
        event(id, Some(source), at, EventKind::ActivityCompleted { result: String::new() })
    }

    fn over(id: u64) -> Event {
        event(id, None, 99, EventKind::OrchestrationCompleted { output: String::new() })
    }

    fn run(input: &str, begun_ms: u64) -> Run {
        let (instance, name) = ("a".to_owned(), "Echo".to_owned());
        Run { activity: Activity { instance, execution: 1, name, input: input.to_owned() }, begun_ms }
    }

    #[test]
    fn an_activity_that_ran_and_completed_once_is_right() {
        let recorded = [scheduled(2, "x"), completed(3, 2, 50), over(4)];
        assert_eq!(judge(&recorded, &[run("x", 40)], Reruns::Never), Ok(()));
    }

    #[test]
    fn a_second_run_is_allowed_as_far_as_the_fault_explains_it() {
        let recorded = [scheduled(2, "x"), completed(3, 2, 50), over(4)];
        let before = [run("x", 40), run("x", 45)];
        let after = [run("x", 40), run("x", 60)];
        assert!(judge(&recorded, &before, Reruns::Never).is_err());
        assert_eq!(judge(&recorded, &before, Reruns::UntilRecorded), Ok(()));
        assert!(judge(&recorded, &after, Reruns::UntilRecorded).is_err());
        assert_eq!(judge(&recorded, &after, Reruns::Always), Ok(()));
    }

    #[test]
    fn what_was_lost_or_made_up_is_wrong_whatever_the_fault() {
        let never_ran = ([scheduled(2, "x"), completed(3, 2, 50), over(4)], vec![]);
        let never_ended = ([scheduled(2, "x"), scheduled(3, "y"), over(4)], vec![run("x", 40)]);
        let ended_twice = ([scheduled(2, "x"), completed(3, 2, 50), completed(4, 2, 51)], vec![run("x", 40)]);
        let unasked = ([scheduled(2, "x"), completed(3, 2, 50), over(4)], vec![run("x", 40), run("y", 40)]);
        for (recorded, runs) in [never_ran, never_ended, ended_twice, unasked] {
            assert!(judge(&recorded, &runs, Reruns::Always).is_err(), "{recorded:?}");
        }
    }

    #[test]
    fn an_activity_nobody_waited_for_need_not_have_run() {
        assert_eq!(judge(&[scheduled(2, "x")], &[], Reruns::Never), Ok(()));
        assert_eq!(judge(&[scheduled(2, "x")], &[run("x", 40)], Reruns::UntilRecorded), Ok(()));
    }
}
