//! The store as it ought to be: what committed turns wrote, event by event, what they scheduled and what they sent.
//!
//! An example. p1 is given the first turn of `chain-0`, with no history. It commits events 1 and 2 and an activity, the
//! answer is lost, and p1 dies: its commit is a draft, which the store may have or not. p2 is given the turn next. If
//! p2 sees events 1 and 2, the draft was committed. If it sees none, it never will be, and whoever is then given that
//! activity before p2 has scheduled it was given something that nobody wrote. Anything else p2 sees is a finding.

use std::collections::{BTreeMap, BTreeSet};

use duroxide::providers::{KvEntry, OrchestrationItem, ScheduledActivityIdentifier, WorkItem};
use duroxide::{Event, EventKind};
use tokio::time::Instant;

/// All instances of a world.
#[derive(Debug, Default)]
pub(crate) struct Ideal {
    instances: BTreeMap<String, Instance>,
    /// Turns that were handed out and not known to be committed or refused, by their token.
    drafts: BTreeMap<String, Draft>,
    /// Turns that turned out not to have been committed; nobody may be told that they were.
    refused: BTreeSet<String>,
    /// Activities of committed turns, and whether anybody was given them.
    scheduled: BTreeMap<String, Scheduled>,
    /// Activities that somebody was given, whoever scheduled them.
    given: BTreeSet<String>,
    /// The names of messages that somebody sent.
    sent: BTreeSet<String>,
    findings: Vec<String>,
}

#[derive(Debug, Default)]
struct Instance {
    executions: BTreeMap<u64, Vec<Event>>,
    /// It was written or deleted by somebody who is not watched: the next look is believed.
    is_unknown: bool,
    /// So it was once: what it had before is not known.
    has_past: bool,
}

#[derive(Clone, Debug)]
struct Draft {
    instance: String,
    fetched_at: Instant,
    /// None until its commit is sent.
    turn: Option<Turn>,
}

/// What a turn writes.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) execution: u64,
    pub(crate) events: Vec<Event>,
    pub(crate) work: Vec<WorkItem>,
    pub(crate) messages: Vec<WorkItem>,
    pub(crate) cancelled: Vec<ScheduledActivityIdentifier>,
}

#[derive(Debug)]
struct Scheduled {
    /// Somebody was given it, or nobody needs to be any more.
    is_over: bool,
    is_cancelled: bool,
}

impl Ideal {
    /// What must not be, since the last time it was asked.
    pub(crate) fn take_findings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.findings)
    }

    /// Whoever writes or deletes this instance is not watched.
    pub(crate) fn is_changed_unseen(&mut self, instance: &str) {
        self.drafts.retain(|_, draft| draft.instance != instance);
        let forgotten = Instance { is_unknown: true, has_past: true, ..Instance::default() };
        self.instances.insert(instance.to_owned(), forgotten);
    }

    /// Somebody who is not a turn sends a message: a client, or an activity that completes.
    pub(crate) fn sends(&mut self, item: &WorkItem) {
        self.sent.extend(message(item));
    }

    /// A turn was handed out. `locked_after` is when its process began to ask, if its lock is written: one that is in memory
    /// keeps nobody from committing.
    pub(crate) fn hands_out_turn(
        &mut self,
        item: &OrchestrationItem,
        token: &str,
        locked_after: Option<Instant>,
    ) {
        let (instance, execution) = (&item.instance, item.execution_id);
        if let Some(error) = &item.history_error {
            self.findings.push(format!("{instance}: history of {execution} cannot be read: {error}"));
            return;
        }
        self.sees(instance, execution, &item.history, locked_after);
        self.check_key_values(item);
        for name in item.messages.iter().filter_map(message) {
            if !self.is_sent(&name) {
                self.findings.push(format!("{name} is read, and nobody sent it"));
            }
        }
        let draft = Draft { instance: instance.clone(), fetched_at: Instant::now(), turn: None };
        self.drafts.insert(token.to_owned(), draft);
    }

    /// Somebody looks at an execution. Who holds its lock since after `locked_after` knows that no earlier draft of which
    /// nothing is seen can be committed any more.
    pub(crate) fn sees(
        &mut self,
        instance: &str,
        execution: u64,
        events: &[Event],
        locked_after: Option<Instant>,
    ) {
        let known = self.instances.entry(instance.to_owned()).or_default();
        if std::mem::take(&mut known.is_unknown) {
            known.executions.insert(execution, events.to_vec());
            return;
        }
        self.settle_before(instance, execution);
        loop {
            let known = self.known(instance, execution);
            if known.starts_with(events) {
                if let (Some(after), true) = (locked_after, known.len() == events.len()) {
                    self.refuse(instance, after);
                }
                return;
            }
            let count = known.len();
            let Some(token) =
                events.starts_with(known).then(|| self.draft_of(instance, execution, events)).flatten()
            else {
                let line = format!(
                    "{instance}/{execution}: {} events are there, {count} were committed, and the first of them that \
                     nobody wrote is {:?}",
                    events.len(),
                    events
                        .iter()
                        .zip(known.iter().map(Some).chain(std::iter::repeat(None)))
                        .find_map(|(event, known)| (Some(event) != known).then_some(event))
                );
                self.findings.push(line);
                return;
            };
            self.apply(&token);
        }
    }

    fn known(&self, instance: &str, execution: u64) -> &[Event] {
        let known = self.instances.get(instance).and_then(|known| known.executions.get(&execution));
        known.map(Vec::as_slice).unwrap_or_default()
    }

    /// The draft that explains what is seen beyond what is known.
    fn draft_of(&self, instance: &str, execution: u64, events: &[Event]) -> Option<String> {
        let beyond = &events[self.known(instance, execution).len()..];
        let mut drafts = self.drafts.iter().filter(|(_, draft)| draft.instance == instance);
        let found = drafts.find(|(_, draft)| {
            draft.turn.as_ref().is_some_and(|turn| {
                turn.execution == execution && !turn.events.is_empty() && beyond.starts_with(&turn.events)
            })
        });
        found.map(|(token, _)| token.clone())
    }

    /// An execution is there only if the one before it ended, so whatever draft ended that was committed.
    fn settle_before(&mut self, instance: &str, execution: u64) {
        let ends_earlier = |draft: &Draft| {
            let turn = draft.turn.as_ref().filter(|turn| turn.execution < execution);
            draft.instance == instance
                && turn.is_some_and(|turn| turn.events.last().is_some_and(|last| is_end(&last.kind)))
        };
        let tokens: Vec<String> = self
            .drafts
            .iter()
            .filter(|(_, draft)| ends_earlier(draft))
            .map(|(token, _)| token.clone())
            .collect();
        for token in tokens {
            let turn = self.drafts.get(&token).and_then(|draft| draft.turn.as_ref());
            let follows = turn.is_some_and(|turn| {
                let known = self.known(instance, turn.execution).len() as u64;
                turn.events.first().is_some_and(|first| first.event_id == known + 1)
            });
            if follows {
                self.apply(&token);
            }
        }
    }

    /// Drafts of turns that ended before somebody else got the lock, and that are not seen, are gone.
    fn refuse(&mut self, instance: &str, before: Instant) {
        let is_gone = |draft: &Draft| {
            let is_empty = draft.turn.as_ref().is_none_or(|turn| turn.events.is_empty());
            draft.instance == instance && draft.fetched_at < before && !is_empty
        };
        let gone: Vec<String> =
            self.drafts.iter().filter(|(_, draft)| is_gone(draft)).map(|(token, _)| token.clone()).collect();
        for token in gone {
            self.drafts.remove(&token);
            self.refused.insert(token);
        }
    }

    /// The commit of a turn is sent.
    pub(crate) fn drafts_turn(&mut self, token: &str, turn: Turn) {
        let Some(mut draft) = self.drafts.remove(token) else { return };
        // A turn that could not be committed may be committed as failed, with the same token: both are drafts.
        if draft.turn.is_some() {
            let earlier = Draft { turn: draft.turn.take(), ..draft.clone() };
            self.drafts.insert(format!("{token} #{}", self.drafts.len()), earlier);
        }
        draft.turn = Some(turn);
        self.drafts.insert(token.to_owned(), draft);
    }

    /// The process was told that its turn is committed.
    pub(crate) fn commits_turn(&mut self, token: &str) {
        if self.refused.contains(token) {
            self.findings.push(format!("turn {token} is said to be committed, and others did not see it"));
        }
        self.apply(token);
    }

    /// A draft is part of the store.
    fn apply(&mut self, token: &str) {
        let Some(Draft { instance, turn: Some(turn), .. }) = self.drafts.remove(token) else { return };
        let known = self.instances.entry(instance.clone()).or_default();
        let events = known.executions.entry(turn.execution).or_default();
        let next = events.len() as u64 + 1;
        if let Some(first) = turn.events.first().filter(|first| first.event_id != next) {
            let (execution, id) = (turn.execution, first.event_id);
            self.findings.push(format!(
                "{instance}/{execution}: a turn that begins with event {id} is committed where event {next} comes next"
            ));
        }
        events.extend(turn.events);
        for item in &turn.work {
            self.scheduled.insert(activity(item), Scheduled { is_over: false, is_cancelled: false });
        }
        self.sent.extend(turn.messages.iter().filter_map(message));
        for gone in &turn.cancelled {
            let name = format!("activity {}/{}/{}", gone.instance, gone.execution_id, gone.activity_id);
            if let Some(scheduled) = self.scheduled.get_mut(&name) {
                (scheduled.is_over, scheduled.is_cancelled) = (true, true);
            }
        }
    }

    /// Whether a committed turn cancelled an activity.
    pub(crate) fn is_cancelled(&self, activity: &str) -> bool {
        self.scheduled.get(activity).is_some_and(|scheduled| scheduled.is_cancelled)
    }

    /// An activity was handed out: only a committed turn can have scheduled it.
    pub(crate) fn hands_out_work(&mut self, item: &WorkItem) {
        let name = activity(item);
        let is_drafted = self.is_drafted(|turn| turn.work.contains(item));
        self.given.insert(name.clone());
        let has_past = instance_of(item)
            .and_then(|instance| self.instances.get(instance))
            .is_some_and(|known| known.has_past);
        match self.scheduled.get_mut(&name) {
            Some(scheduled) => scheduled.is_over = true,
            None if has_past || is_drafted => {}
            None => self.findings.push(format!("{name} is handed out, and no committed turn scheduled it")),
        }
    }

    fn is_sent(&self, name: &str) -> bool {
        let sends = |turn: &Turn| turn.messages.iter().filter_map(message).any(|sent| sent == name);
        self.sent.contains(name) || self.is_drafted(sends)
    }

    /// Whether a turn that may be committed does that. Two turns that do the same may both be drafts: which of them it was
    /// is seen when somebody looks at the history.
    fn is_drafted(&self, does: impl Fn(&Turn) -> bool) -> bool {
        self.drafts.values().any(|draft| draft.turn.as_ref().is_some_and(&does))
    }

    /// A turn is handed out with the key-values that earlier executions left.
    fn check_key_values(&mut self, item: &OrchestrationItem) {
        let Some(known) = self.instances.get(&item.instance) else { return };
        let is_over = item.history.last().is_some_and(|last| is_end(&last.kind));
        if is_over || known.has_past {
            return;
        }
        let earlier = known.executions.range(..item.execution_id).flat_map(|(_, events)| events);
        let (right, seen) = (key_values(earlier), plain(&item.kv_snapshot));
        if right != seen {
            self.findings.push(format!("{}: key-values {seen:?}, not {right:?}", item.instance));
        }
    }

    /// Key-values and custom status that an instance must have in the end.
    pub(crate) fn left_by(&self, instance: &str) -> Option<(BTreeMap<String, String>, Option<String>)> {
        let known = self.instances.get(instance)?;
        if known.has_past {
            return None;
        }
        let events = || known.executions.values().flatten();
        let mut status = None;
        for event in events() {
            match &event.kind {
                EventKind::CustomStatusUpdated { status: new } => status.clone_from(new),
                EventKind::OrchestrationStarted { initial_custom_status: Some(initial), .. } => {
                    status = Some(initial.clone());
                }
                _ => {}
            }
        }
        Some((key_values(events()), status))
    }

    /// How many events of an execution were committed.
    pub(crate) fn count(&self, instance: &str, execution: u64) -> usize {
        self.known(instance, execution).len()
    }

    /// The executions of an instance that were committed.
    pub(crate) fn executions_of(&self, instance: &str) -> Vec<u64> {
        self.instances
            .get(instance)
            .map(|known| known.executions.keys().copied().collect())
            .unwrap_or_default()
    }

    /// Activities that were scheduled, not cancelled, and never handed to anybody.
    pub(crate) fn forgotten(&self) -> Vec<String> {
        let ended = |name: &str| {
            let instance = name.trim_start_matches("activity ").rsplitn(3, '/').nth(2).unwrap_or_default();
            self.instances.get(instance).is_none_or(|known| known.has_past)
        };
        let forgotten = self
            .scheduled
            .iter()
            .filter(|(name, scheduled)| !scheduled.is_over && !self.given.contains(*name) && !ended(name));
        forgotten.map(|(name, _)| format!("{name} was scheduled, and nobody was ever given it")).collect()
    }

    /// How many events and activities were committed: what the world's work amounts to.
    pub(crate) fn amount(&self) -> (usize, usize) {
        let events = self.instances.values().flat_map(|known| known.executions.values()).map(Vec::len).sum();
        (events, self.scheduled.len())
    }
}

fn is_end(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::OrchestrationCompleted { .. }
            | EventKind::OrchestrationFailed { .. }
            | EventKind::OrchestrationContinuedAsNew { .. }
    )
}

fn key_values<'a>(events: impl Iterator<Item = &'a Event>) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for event in events {
        match &event.kind {
            EventKind::KeyValueSet { key, value, .. } => {
                values.insert(key.clone(), value.clone());
            }
            EventKind::KeyValueCleared { key } => {
                values.remove(key);
            }
            EventKind::KeyValuesCleared => values.clear(),
            _ => {}
        }
    }
    values
}

fn plain(snapshot: &std::collections::HashMap<String, KvEntry>) -> BTreeMap<String, String> {
    snapshot.iter().map(|(key, entry)| (key.clone(), entry.value.clone())).collect()
}

fn instance_of(item: &WorkItem) -> Option<&str> {
    match item {
        WorkItem::ActivityExecute { instance, .. } => Some(instance),
        _ => None,
    }
}

/// The name of a message of which there is one in a world. Instances that are deleted and started again have some twice.
pub(crate) fn message(item: &WorkItem) -> Option<String> {
    let (instance, name) = match item {
        WorkItem::StartOrchestration { instance, execution_id, .. } => {
            (instance, format!("start of execution {execution_id}"))
        }
        WorkItem::ContinueAsNew { instance, input, .. } => {
            (instance, format!("next execution, with {input:.64}"))
        }
        WorkItem::ActivityCompleted { instance, execution_id, id, .. }
        | WorkItem::ActivityFailed { instance, execution_id, id, .. } => {
            (instance, format!("result of activity {execution_id}/{id}"))
        }
        WorkItem::TimerFired { instance, execution_id, id, .. } => {
            (instance, format!("timer {execution_id}/{id}"))
        }
        WorkItem::SubOrchCompleted { parent_instance, parent_execution_id, parent_id, .. }
        | WorkItem::SubOrchFailed { parent_instance, parent_execution_id, parent_id, .. } => {
            (parent_instance, format!("result of child {parent_execution_id}/{parent_id}"))
        }
        WorkItem::QueueMessage { instance, name, data } => (instance, format!("letter {name}/{data}")),
        _ => return None,
    };
    (!instance.starts_with("deleted")).then(|| format!("{instance}: {name}"))
}

/// Whether a message may be read twice where nobody heard that it arrived: a second start changes nothing, so the one that a
/// client sent leaves no tombstone.
pub(crate) fn is_harmless(item: &WorkItem) -> bool {
    matches!(item, WorkItem::StartOrchestration { instance, parent_instance: None, .. } if !instance.contains("-alone-"))
}

pub(crate) fn activity(item: &WorkItem) -> String {
    match item {
        WorkItem::ActivityExecute { instance, execution_id, id, .. } => {
            format!("activity {instance}/{execution_id}/{id}")
        }
        other => format!("work {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64) -> Event {
        Event::with_event_id(id, "i", 1, None, EventKind::TimerCreated { fire_at_ms: id })
    }

    fn given(history: &[Event]) -> OrchestrationItem {
        OrchestrationItem {
            instance: "i".to_owned(),
            orchestration_name: "chain".to_owned(),
            execution_id: 1,
            version: "1.0.0".to_owned(),
            history: history.to_vec(),
            messages: Vec::new(),
            history_error: None,
            kv_snapshot: std::collections::HashMap::new(),
        }
    }

    fn work() -> WorkItem {
        WorkItem::ActivityExecute {
            instance: "i".to_owned(),
            execution_id: 1,
            id: 2,
            name: "step".to_owned(),
            input: String::new(),
            session_id: None,
            tag: None,
        }
    }

    fn turn(events: &[Event]) -> Turn {
        Turn {
            execution: 1,
            events: events.to_vec(),
            work: vec![work()],
            messages: Vec::new(),
            cancelled: Vec::new(),
        }
    }

    /// The first turn was given to `one`, who sent its commit and heard nothing.
    fn drafted() -> Ideal {
        let mut ideal = Ideal::default();
        ideal.hands_out_turn(&given(&[]), "one", None);
        ideal.drafts_turn("one", turn(&[event(1), event(2)]));
        ideal
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_without_an_answer_is_known_by_what_the_next_one_sees() {
        let mut ideal = drafted();
        tokio::time::sleep(std::time::Duration::from_secs(9)).await;
        ideal.hands_out_turn(&given(&[event(1), event(2)]), "two", Some(Instant::now()));
        ideal.hands_out_work(&work());
        assert_eq!((ideal.count("i", 1), ideal.take_findings()), (2, Vec::new()));
        assert_eq!(ideal.forgotten(), Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_turn_scheduled_that_was_never_committed_is_nobodys_to_do() {
        let mut ideal = drafted();
        tokio::time::sleep(std::time::Duration::from_secs(9)).await;
        ideal.hands_out_turn(&given(&[]), "two", Some(Instant::now()));
        assert_eq!(ideal.take_findings(), Vec::<String>::new());
        ideal.hands_out_work(&work());
        assert_eq!(ideal.take_findings().len(), 1, "nobody scheduled it");
        ideal.commits_turn("one");
        assert_eq!(ideal.take_findings().len(), 1, "nobody saw it");
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_nobody_wrote_and_events_that_are_missing_are_found() {
        let mut ideal = drafted();
        ideal.commits_turn("one");
        for wrong in [vec![event(1), event(3)], vec![event(1), event(2), event(3)]] {
            ideal.sees("i", 1, &wrong, None);
            assert_eq!(ideal.take_findings().len(), 1, "{wrong:?}");
        }
        ideal.hands_out_turn(&given(&[event(1), event(2)]), "two", None);
        ideal.drafts_turn("two", turn(&[event(4)]));
        ideal.commits_turn("two");
        assert_eq!(ideal.take_findings().len(), 1, "event 3 comes next");
    }

    #[tokio::test(start_paused = true)]
    async fn an_activity_that_nobody_is_given_is_forgotten() {
        let mut ideal = drafted();
        ideal.commits_turn("one");
        assert_eq!(ideal.forgotten().len(), 1);
    }
}
