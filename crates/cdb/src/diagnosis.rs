//! Why an instance does not move: a pure function from what is stored to sentences.

use duroxide::Event;
use serde::Serialize;
use serde_json::Value;

use crate::model::{DeadLetter, Head, Intent, Manifest, Partition, Queued, kind};
use crate::output::{ago, span};
use crate::timeline::{self, Span, SpanKind};

/// What is known when the question is asked.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// Instance id.
    pub(crate) instance: String,
    /// Its partition.
    pub(crate) partition: Partition,
    /// History of the current execution, or why it cannot be read.
    pub(crate) history: Result<Vec<Event>, String>,
    /// Messages of other instances on their way to it.
    pub(crate) arriving: Vec<Intent>,
    /// Dead letters addressed to it, or sent by it.
    pub(crate) dead_letters: Vec<DeadLetter>,
    /// Status of the children it waits for.
    pub(crate) children: Vec<(String, Option<String>)>,
    /// Owners of the sessions its activities wait for: session, owner, until.
    pub(crate) sessions: Vec<(String, String, u64)>,
    /// Milliseconds since 1970.
    pub(crate) now_ms: u64,
}

/// One sentence of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// How bad it is.
    pub(crate) level: Level,
    /// What is so.
    pub(crate) text: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Fine,
    /// It waits for something that will come by itself, or from outside.
    Waiting,
    /// It looks stuck.
    Stuck,
}

/// The answer, most important first.
pub(crate) fn diagnose(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    match evidence.partition.head() {
        None => unstarted(evidence, &mut findings),
        Some(head) if head.kind == kind::DELETING => findings.push(stuck(
            "it is being deleted".to_owned(),
            "a provider's background sweep finishes it; `cdb delete` does so at once",
        )),
        Some(head) if !head.started && !head.is_legacy() => {
            lock(&head, evidence.now_ms, &mut findings);
            unstarted(evidence, &mut findings);
        }
        Some(head) if head.has_ended() => {
            findings.push(fine(format!("it has ended: {}", head.status)));
        }
        Some(head) => running(evidence, &head, &mut findings),
    }
    leftovers(evidence, &mut findings);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// What the provider cannot read: it does not move past that.
pub(crate) fn unreadable(instance: &str, partition: &Partition) -> Vec<Finding> {
    let finding = |(id, kind, why): (String, String, String)| {
        stuck(
            format!("its document {id:?} ({kind}) cannot be read: {why}"),
            &format!("restore it from an export, or remove the instance: `cdb delete {instance:?} --force`"),
        )
    };
    partition.unreadable().into_iter().map(finding).collect()
}

/// No turn has been committed yet.
fn unstarted(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let messages: Vec<Queued> = evidence.partition.of(kind::MESSAGE);
    let head = evidence.partition.head().unwrap_or_default();
    for message in &messages {
        findings.push(queued_message(&head, message, evidence.now_ms));
    }
    let has_start = messages.iter().any(|message| message.item().0 == "StartOrchestration");
    if !has_start && evidence.arriving.is_empty() && !messages.is_empty() {
        findings.push(stuck(
            "it was never started: messages wait for an instance that does not exist".to_owned(),
            "start it with `cdb start`; a runtime drops such messages",
        ));
    }
}

fn running(evidence: &Evidence, head: &Head, findings: &mut Vec<Finding>) {
    lock(head, evidence.now_ms, findings);
    let messages: Vec<Queued> = evidence.partition.of(kind::MESSAGE);
    for message in messages
        .iter()
        .filter(|message| message.item().0 != "TimerFired" || message.visible_at <= evidence.now_ms)
    {
        findings.push(queued_message(head, message, evidence.now_ms));
    }
    let events = match &evidence.history {
        Ok(events) => events,
        Err(error) => {
            findings.push(stuck(
                format!("its history cannot be read: {error}"),
                "a newer duroxide may have written it, or it is damaged: `cdb fsck` says more",
            ));
            return;
        }
    };
    for span in timeline::open(&evidence.instance, events) {
        findings.push(match span.kind {
            SpanKind::Activity => activity(evidence, head, &span, &messages),
            SpanKind::Timer => timer(&span, &messages, evidence.now_ms),
            SpanKind::Event | SpanKind::Queue => outside(evidence, &span),
            SpanKind::Child => child(evidence, &span, &messages),
        });
    }
    let is_idle = messages.iter().all(|message| message.visible_at > evidence.now_ms);
    if findings.is_empty() && is_idle && !head.is_locked(evidence.now_ms) {
        findings.push(stuck(
            "it waits for nothing and nothing waits for it".to_owned(),
            "something was lost: `cdb fsck` says more",
        ));
    }
}

fn lock(head: &Head, now: u64, findings: &mut Vec<Finding>) {
    let (Some(until), Some(_)) = (head.locked_until, &head.lock_token) else { return };
    let owner = head.lock_owner.as_deref().unwrap_or("an older version");
    if until > now {
        findings.push(waiting(
            format!("a turn is being run: locked by {owner}, until {} unless renewed", in_future(until, now)),
            None,
        ));
    } else {
        findings.push(waiting(
            format!("its last lock, of {owner}, ended {} without a commit", ago(until, now)),
            Some("that process died or was too slow; the next runtime that looks takes over"),
        ));
    }
}

fn queued_message(head: &Head, message: &Queued, now: u64) -> Finding {
    let what = message.describe();
    let attempts = head.attempts_of(&message.id).max(message.attempt_count);
    let tried = if attempts > 0 { format!(", {attempts} attempts so far") } else { String::new() };
    if message.visible_at > now {
        let text = format!("{what} waits, visible {}{tried}", in_future(message.visible_at, now));
        let advice = (attempts > 0).then_some(
            "a runtime put it back: it has no handler of that name or version, or the turn failed; see its log",
        );
        return waiting(text, advice);
    }
    let text = format!("{what} waits since {}{tried}", ago(message.visible_at, now));
    if head.is_locked(now) || now.saturating_sub(message.visible_at) < PATIENCE_MS {
        return waiting(text, None);
    }
    match head.pinned_version {
        Some([major, minor, patch]) => stuck(
            text,
            &format!(
                "no runtime takes it: is one running, with handler {:?} registered, and does it support duroxide \
                 {major}.{minor}.{patch}, which this execution is pinned to?",
                head.orchestration_name
            ),
        ),
        None => stuck(text, "no runtime takes it: is one running on this container?"),
    }
}

fn activity(evidence: &Evidence, head: &Head, span: &Span, messages: &[Queued]) -> Finding {
    let now = evidence.now_ms;
    let name = format!("activity {} (#{})", span.name, span.id);
    let work: Vec<Queued> = evidence.partition.of(kind::WORK);
    let item = work.iter().find(|item| {
        item.activity_id == Some(span.id)
            && item.execution_id.is_none_or(|id| id == head.current_execution_id)
    });
    let Some(item) = item else {
        let has_result = messages.iter().any(|message| is_about(message, "id", span.id));
        return if has_result {
            waiting(format!("{name} is done; its result waits for the next turn"), None)
        } else {
            stuck(
                format!("{name} is neither queued nor done: it was lost"),
                "`cdb fsck --repair` queues it again",
            )
        };
    };
    let tried = format!("{} attempts", item.attempt_count);
    if item.is_locked(now) {
        let until = item.locked_until.map_or_else(String::new, |until| in_future(until, now));
        return waiting(
            format!("{name} is being run by a worker, {tried}, lock until {until} unless renewed"),
            None,
        );
    }
    let since = ago(item.visible_at.max(item.enqueued_at), now);
    if item.visible_at > now {
        let text = format!("{name} is put back, visible {}, {tried}", in_future(item.visible_at, now));
        return waiting(text, Some("its worker gave it up: see the worker's log"));
    }
    let text = format!("{name} is queued since {since}, {tried}");
    if let Some(session) = &item.session_id
        && let Some((_, owner, until)) = evidence.sessions.iter().find(|(id, ..)| id == session)
        && *until > now
    {
        let until = in_future(*until, now);
        return waiting(
            format!("{text}; only {owner} may run it, which owns session {session:?} until {until}"),
            Some("a busy owner takes it when it can; a dead one loses the session at that time"),
        );
    }
    if now.saturating_sub(item.visible_at) < PATIENCE_MS {
        return waiting(text, None);
    }
    let tag = item.tag.as_ref().map(|tag| format!(" with tag {tag:?}")).unwrap_or_default();
    stuck(
        text,
        &format!(
            "no worker takes it: is a runtime running{tag} that has {:?} registered, and is it idle?",
            span.name
        ),
    )
}

fn timer(span: &Span, messages: &[Queued], now: u64) -> Finding {
    let due = span.due_ms.unwrap_or(now);
    if due > now {
        return waiting(format!("timer #{} fires {}", span.id, in_future(due, now)), None);
    }
    let is_queued = messages.iter().any(|message| is_about(message, "id", span.id));
    if is_queued {
        return waiting(
            format!("timer #{} was due {} and waits for the next turn", span.id, ago(due, now)),
            None,
        );
    }
    stuck(
        format!("timer #{} was due {} and its message is gone", span.id, ago(due, now)),
        "`cdb fsck --repair` queues it again",
    )
}

fn outside(evidence: &Evidence, span: &Span) -> Finding {
    let id = &evidence.instance;
    let (text, command) = match span.kind {
        SpanKind::Queue => (format!("it waits for a message in queue {:?}", span.name), "enqueue"),
        SpanKind::Activity | SpanKind::Timer | SpanKind::Event | SpanKind::Child => {
            (format!("it waits for the event {:?}", span.name), "raise")
        }
    };
    let since = ago(span.began_ms, evidence.now_ms);
    let advice = format!("it comes from outside: `cdb {command} {id} {} DATA` sends one", span.name);
    waiting(format!("{text}, since {since}"), Some(&advice))
}

fn child(evidence: &Evidence, span: &Span, messages: &[Queued]) -> Finding {
    let name = format!("sub-orchestration {} (#{})", span.name, span.id);
    let status =
        evidence.children.iter().find(|(id, _)| *id == span.name).and_then(|(_, status)| status.as_deref());
    let has_result = messages.iter().any(|message| is_about(message, "parent_id", span.id));
    let intents: Vec<Intent> = evidence.partition.of(kind::INTENT);
    match status {
        Some("Running") => {
            waiting(format!("it waits for {name}"), Some(&format!("`cdb why {}` says more", span.name)))
        }
        Some(status) if has_result => {
            waiting(format!("{name} is {status}; its result waits for the next turn"), None)
        }
        Some(status) => {
            let is_arriving = evidence.arriving.iter().any(|intent| intent.instance_id == span.name);
            if is_arriving {
                waiting(format!("{name} is {status}; its result is on the way"), None)
            } else {
                stuck(format!("{name} is {status} and its result did not arrive"), "`cdb fsck` says more")
            }
        }
        None if intents.iter().any(|intent| intent.target_instance_id == span.name) => {
            waiting(format!("the start of {name} is on the way"), None)
        }
        None => stuck(
            format!("{name} does not exist (yet)"),
            &format!("`cdb why {}` shows whether its start waits there", span.name),
        ),
    }
}

fn leftovers(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let now = evidence.now_ms;
    let sending: Vec<Intent> = evidence.partition.of(kind::INTENT);
    for (intents, arrow) in [(&sending, "to"), (&evidence.arriving, "from")] {
        for intent in intents {
            let other = if arrow == "to" { &intent.target_instance_id } else { &intent.instance_id };
            let text = format!(
                "a message {arrow} {other} is undelivered since {}, {} attempts",
                ago(intent.created_at, now),
                intent.attempt_count
            );
            let is_late = now.saturating_sub(intent.created_at) > PATIENCE_MS;
            findings.push(if is_late {
                stuck(text, "a running provider delivers it within seconds: is one running?")
            } else {
                waiting(text, None)
            });
        }
    }
    for manifest in evidence.partition.of::<Manifest>(kind::MANIFEST) {
        let text = if manifest.committed {
            "a large turn is committed and not yet carried out in full"
        } else {
            "a large turn is prepared and not committed"
        };
        findings.push(waiting(
            text.to_owned(),
            Some("the next reader or a provider's sweep finishes or removes it"),
        ));
    }
    for letter in &evidence.dead_letters {
        findings.push(stuck(
            format!(
                "a dead letter from {} to {}: {}",
                letter.instance_id, letter.target_instance_id, letter.reason
            ),
            &format!("`cdb dead-letters show {}` shows it, `requeue` sends it again", letter.id),
        ));
    }
}

fn is_about(message: &Queued, field: &str, id: u64) -> bool {
    message.item().1.get(field).and_then(Value::as_u64) == Some(id)
}

fn in_future(then: u64, now: u64) -> String {
    if then > now { format!("in {}", span(then - now)) } else { "now".to_owned() }
}

fn fine(text: String) -> Finding {
    Finding { level: Level::Fine, text, advice: None }
}

fn waiting(text: String, advice: Option<&str>) -> Finding {
    Finding { level: Level::Waiting, text, advice: advice.map(str::to_owned) }
}

fn stuck(text: String, advice: &str) -> Finding {
    Finding { level: Level::Stuck, text, advice: Some(advice.to_owned()) }
}

/// What waits longer than this although nothing holds it is stuck.
const PATIENCE_MS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use duroxide::EventKind;
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_000_000;

    fn evidence(documents: Vec<Value>, kinds: Vec<EventKind>) -> Evidence {
        let mut events: Vec<Event> = Vec::new();
        for (index, kind) in kinds.into_iter().enumerate() {
            let mut event = Event::with_event_id(index as u64 + 1, "a", 1, None, kind);
            event.timestamp_ms = NOW - 60_000;
            events.push(event);
        }
        Evidence {
            instance: "a".to_owned(),
            partition: Partition::new(documents),
            history: Ok(events),
            arriving: Vec::new(),
            dead_letters: Vec::new(),
            children: Vec::new(),
            sessions: Vec::new(),
            now_ms: NOW,
        }
    }

    fn head(more: &Value) -> Value {
        let mut head = json!({"id": "a:instance", "instanceId": "a", "type": "instance", "formatVersion": 2,
            "started": true, "status": "Running", "orchestrationName": "Bake", "currentExecutionId": 1});
        head.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        head
    }

    fn work(more: &Value) -> Value {
        let mut item = json!({"id": "work:1:1", "instanceId": "a", "type": "worker_queue", "activityId": 1,
            "execution": 1, "visibleAt": NOW - 60_000, "enqueuedAt": NOW - 60_000, "attemptCount": 0,
            "workItem": "{}"});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        item
    }

    fn bake() -> EventKind {
        EventKind::ActivityScheduled {
            name: "Bake".into(),
            input: String::new(),
            session_id: None,
            tag: None,
        }
    }

    fn first(evidence: &Evidence) -> (Level, String) {
        let finding = diagnose(evidence).into_iter().next().expect("there is always an answer");
        (finding.level, finding.text)
    }

    #[test]
    fn an_activity_nobody_takes_is_stuck() {
        let (level, text) = first(&evidence(vec![head(&json!({})), work(&json!({}))], vec![bake()]));
        assert_eq!(
            (level, text.as_str()),
            (Level::Stuck, "activity Bake (#1) is queued since 1 m 00 s ago, 0 attempts")
        );
    }

    #[test]
    fn an_activity_that_is_being_run_is_not_stuck() {
        let locked = work(&json!({"lockToken": "t", "lockedUntil": NOW + 5000, "attemptCount": 2}));
        let (level, text) = first(&evidence(vec![head(&json!({})), locked], vec![bake()]));
        assert_eq!(level, Level::Waiting);
        assert!(text.contains("being run by a worker, 2 attempts, lock until in 5.0 s"), "{text}");
    }

    #[test]
    fn an_activity_without_an_item_or_a_result_is_lost() {
        let (level, text) = first(&evidence(vec![head(&json!({}))], vec![bake()]));
        assert!(level == Level::Stuck && text.ends_with("it was lost"), "{text}");
    }

    #[test]
    fn a_foreign_session_explains_the_wait() {
        let mut evidence =
            evidence(vec![head(&json!({})), work(&json!({"sessionId": "oven"}))], vec![bake()]);
        evidence.sessions.push(("oven".to_owned(), "node-7".to_owned(), NOW + 3000));
        let (level, text) = first(&evidence);
        assert!(level == Level::Waiting && text.contains("only node-7 may run it"), "{text}");
    }

    #[test]
    fn timers_events_and_queues_are_waited_for() {
        let kinds = vec![
            EventKind::TimerCreated { fire_at_ms: NOW + 90_000 },
            EventKind::ExternalSubscribed { name: "yes".into() },
            EventKind::QueueSubscribed { name: "orders".into() },
        ];
        let findings = diagnose(&evidence(vec![head(&json!({}))], kinds));
        let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(texts[0], "timer #1 fires in 1 m 30 s");
        assert_eq!(texts[1], "it waits for the event \"yes\", since 1 m 00 s ago");
        assert!(findings[1].advice.as_ref().unwrap().contains("cdb raise a yes DATA"));
        assert!(findings[2].advice.as_ref().unwrap().contains("cdb enqueue a orders DATA"));
        assert!(findings.iter().all(|finding| finding.level == Level::Waiting));
    }

    #[test]
    fn the_lock_holder_and_what_it_holds_are_named() {
        let message = json!({"id": "m", "instanceId": "a", "type": "orch_queue", "visibleAt": NOW - 20_000,
            "workItem": json!({"ActivityCompleted": {"instance": "a", "id": 1}}).to_string()});
        let head = head(&json!({"lockToken": "t", "lockedUntil": NOW + 2000, "lockOwner": "node-1",
            "batch": [{"id": "m", "n": 3}]}));
        let findings = diagnose(&evidence(vec![head, message], vec![bake()]));
        let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(texts[0], "a turn is being run: locked by node-1, until in 2.0 s unless renewed");
        assert_eq!(texts[1], "result of activity #1 waits since 20.0 s ago, 3 attempts so far");
    }

    #[test]
    fn children_late_messages_and_dead_letters_are_named() {
        let kinds = vec![EventKind::SubOrchestrationScheduled {
            name: "route".into(),
            instance: "sub::1".into(),
            input: String::new(),
        }];
        let intent = json!({"id": "intent:1:0", "instanceId": "a", "type": "outbox_intent",
            "targetInstanceId": "a::sub::1", "createdAt": NOW - 30_000, "attemptCount": 4});
        let mut evidence = evidence(vec![head(&json!({})), intent], kinds);
        evidence.dead_letters.push(DeadLetter { reason: "too large".into(), ..DeadLetter::default() });
        let texts: Vec<String> = diagnose(&evidence).into_iter().map(|finding| finding.text).collect();
        assert!(texts[0].contains("to a::sub::1 is undelivered since 30.0 s ago, 4 attempts"), "{texts:?}");
        assert!(texts[1].contains("too large"), "{texts:?}");
        assert!(
            texts[2].contains("the start of sub-orchestration a::sub::1 (#1) is on the way"),
            "{texts:?}"
        );
    }

    #[test]
    fn an_instance_that_waits_for_nothing_has_lost_something() {
        let (level, text) = first(&evidence(vec![head(&json!({}))], vec![]));
        assert_eq!((level, text.as_str()), (Level::Stuck, "it waits for nothing and nothing waits for it"));
        let (level, _) = first(&evidence(vec![head(&json!({"status": "Completed"}))], vec![]));
        assert_eq!(level, Level::Fine);
    }
}
