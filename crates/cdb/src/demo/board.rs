//! How far each workflow is, as this process sees it: no requests are spent on looking.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::bakery::Scenario;

/// The workflows of one run.
#[derive(Debug)]
pub(crate) struct Board {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    rows: Vec<Row>,
    /// Instances whose card was refused once.
    refused: BTreeSet<String>,
}

/// One workflow.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Instance id.
    pub(crate) instance: String,
    /// What it is.
    pub(crate) scenario: &'static Scenario,
    /// How far it is.
    pub(crate) phase: Phase,
    /// How it came into this run.
    pub(crate) origin: Origin,
    /// Steps done before this process looked.
    pub(crate) steps_before: usize,
    /// Steps that this process has done.
    pub(crate) steps_now: usize,
    /// When this process first saw it.
    pub(crate) since: Instant,
    /// How long it took in this process; its whole life for one that ended earlier.
    pub(crate) took: Option<Duration>,
}

/// How a workflow came into this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Started by it.
    Started,
    /// Unfinished when an earlier process stopped.
    Continued,
    /// Finished by an earlier process.
    Earlier,
}

/// How far a workflow is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody has run it in this process yet.
    Waiting,
    /// It has run and waits for something.
    Running,
    /// It has returned; its result is being written.
    Returned,
    /// It has ended well.
    Completed(String),
    /// It has ended badly.
    Failed(String),
}

impl Phase {
    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Completed(_) | Self::Failed(_) => true,
            Self::Waiting | Self::Running | Self::Returned => false,
        }
    }
}

impl Row {
    /// A workflow that starts now.
    pub(crate) fn new(
        instance: String,
        scenario: &'static Scenario,
        origin: Origin,
        steps_before: usize,
    ) -> Self {
        Self {
            instance,
            scenario,
            phase: Phase::Waiting,
            origin,
            steps_before,
            steps_now: 0,
            since: Instant::now(),
            took: None,
        }
    }

    /// Steps done, by whichever process.
    pub(crate) fn steps_done(&self) -> usize {
        match self.phase {
            Phase::Completed(_) => self.scenario.steps,
            Phase::Waiting | Phase::Running | Phase::Returned | Phase::Failed(_) => {
                (self.steps_before + self.steps_now).min(self.scenario.steps)
            }
        }
    }

    /// Time in this process so far.
    pub(crate) fn elapsed(&self) -> Duration {
        self.took.unwrap_or_else(|| self.since.elapsed())
    }
}

impl Board {
    /// The workflows of a run.
    pub(crate) fn new(rows: Vec<Row>) -> Self {
        Self { state: Mutex::new(State { rows, refused: BTreeSet::new() }), changed: Notify::new() }
    }

    /// All workflows as they are now.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.state().rows.clone()
    }

    /// Waits until something has changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A workflow's code has started to run.
    pub(crate) fn begun(&self, instance: &str) {
        self.update(instance, |row| {
            if row.phase == Phase::Waiting {
                row.phase = Phase::Running;
            }
        });
    }

    /// A workflow's code has returned.
    pub(crate) fn returned(&self, instance: &str) {
        self.update(instance, |row| {
            if !row.phase.has_ended() {
                row.phase = Phase::Returned;
            }
        });
    }

    /// An activity of a workflow, or of a child of it, is done.
    pub(crate) fn step_done(&self, instance: &str) {
        self.update(root(instance), |row| row.steps_now += 1);
    }

    /// The stored status says it has ended.
    pub(crate) fn ended(&self, instance: &str, phase: &Phase) {
        self.update(instance, |row| {
            row.took = Some(row.since.elapsed());
            row.phase = phase.clone();
        });
    }

    /// True once per instance.
    pub(crate) fn is_first_failure(&self, instance: &str) -> bool {
        self.state().refused.insert(instance.to_owned())
    }

    fn update(&self, instance: &str, change: impl FnOnce(&mut Row)) {
        if let Some(row) = self.state().rows.iter_mut().find(|row| row.instance == instance) {
            change(row);
        }
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The workflow a person started, of any of its children.
pub(crate) fn root(instance: &str) -> &str {
    instance.split_once("::").map_or(instance, |(root, _)| root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::bakery::SCENARIOS;

    #[test]
    fn steps_of_children_count_for_the_parent() {
        let board =
            Board::new(vec![Row::new("bakery-1-deliver".to_owned(), &SCENARIOS[1], Origin::Started, 0)]);
        board.step_done("bakery-1-deliver::sub::2");
        board.step_done("bakery-1-other");
        assert_eq!(board.rows()[0].steps_done(), 1);
    }

    #[test]
    fn a_replay_after_the_end_changes_nothing() {
        let board = Board::new(vec![Row::new("a".to_owned(), &SCENARIOS[0], Origin::Continued, 2)]);
        board.begun("a");
        board.ended("a", &Phase::Completed("fine".to_owned()));
        board.begun("a");
        board.returned("a");
        let row = &board.rows()[0];
        assert_eq!((row.phase.clone(), row.steps_done()), (Phase::Completed("fine".to_owned()), 3));
    }
}
