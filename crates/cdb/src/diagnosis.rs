//! Why an instance does not move: a pure function from what is stored to sentences.

use duroxide::Event;
use serde::Serialize;
use serde_json::Value;

use crate::context::quoted;
use crate::ending::{Cause, Failure};
use crate::fleet::{Fleet, State};
use crate::model::{DeadLetter, Head, InWords as _, Intent, Manifest, Partition, Queued, kind};
use crate::output::{ago, plural, span};
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
    /// How it failed, if it did, and then how the child failed that this came from, down to where it began.
    pub(crate) failures: Vec<Failure>,
    /// Who runs work; nobody asks once a workflow has ended.
    pub(crate) fleet: Option<Fleet>,
    /// Milliseconds since 1970, by the service's clock.
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
    /// It has failed.
    Failed,
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
        Some(head) if head.has_ended() => ended(evidence, &head, &mut findings),
        Some(head) => running(evidence, &head, &mut findings),
    }
    if let Some(fleet) = &evidence.fleet {
        findings.push(owner(fleet, &evidence.instance));
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

/// How it ended, and where its failure began.
fn ended(evidence: &Evidence, head: &Head, findings: &mut Vec<Finding>) {
    let now = evidence.now_ms;
    let Some(first) = evidence.failures.first() else {
        findings.push(if head.status == "Failed" {
            failed("it has failed, and its history does not say how".to_owned())
        } else {
            fine(format!("it has ended: {}", head.status))
        });
        return;
    };
    if let Cause::Cancelled { reason } = &first.cause {
        findings.push(fine(format!("it was cancelled {}: {reason}", ago(first.at_ms, now))));
        return;
    }
    let mut finding = failed(format!("it failed {}: {}", ago(first.at_ms, now), first.error));
    finding.advice = Some(format!(
        "`cdb rerun {}` runs it again, as a new instance with the same input",
        quoted(&first.instance)
    ));
    findings.push(finding);
    for (place, failure) in evidence.failures.iter().enumerate() {
        let whose = if place == 0 { String::new() } else { format!("in {}: ", failure.instance) };
        let when = ago(failure.at_ms, now);
        let text = match &failure.cause {
            Cause::Activity { name, id, tries } => {
                let tried = if *tries > 1 { format!(", the last of {tries} tries") } else { String::new() };
                format!("{whose}activity {name} (#{id}) failed{tried}: {}", failure.error)
            }
            Cause::Child { instance, id } => {
                format!("{whose}its sub-orchestration {instance} (#{id}) failed")
            }
            Cause::Poison { attempts } => {
                format!("{whose}a message was given up after {attempts} attempts: {}", failure.error)
            }
            Cause::Cancelled { reason } => format!("{whose}it was cancelled {when}: {reason}"),
            Cause::Own => format!("{whose}its own code ended with this error {when}: {}", failure.error),
        };
        findings.push(failed(text));
    }
}

/// Who looks after the instance.
fn owner(fleet: &Fleet, instance: &str) -> Finding {
    let now = fleet.now_ms;
    let (slot, owner) = fleet.owner_of(instance);
    if let Some(nobody) =
        fleet.living().next().is_none().then(|| fleet.remarks().into_iter().next()).flatten()
    {
        return waiting(nobody, Some("`cdb runtimes` lists those that have told of themselves"));
    }
    let member = owner.and_then(|owner| fleet.member(owner));
    let Some(member) = member.filter(|member| member.state(now) != State::Ended) else {
        let who =
            owner.map_or_else(|| "nobody".to_owned(), |owner| format!("{owner:?}, whose lease has ended"));
        return waiting(
            format!("slot {slot}, which it is in, belongs to {who}"),
            Some("another member takes it over with its next heartbeat"),
        );
    };
    let place = Some(member.place()).filter(|place| !place.is_empty());
    let place = place.map(|place| format!(" on {place}")).unwrap_or_default();
    let text = format!(
        "slot {slot}, which it is in, is looked after by {:?}{place}, heard of {} ago",
        member.owner,
        span(member.silence(now))
    );
    if member.state(now) == State::Silent {
        let advice =
            format!("it should have told of itself: others take over in {}", span(member.lease_left(now)));
        return waiting(text, Some(&advice));
    }
    if member.runs_turns() {
        return fine(text);
    }
    let text = format!("{text}; it runs no orchestrations");
    if fleet.living().any(|member| member.runs_turns()) {
        waiting(text, Some("a member that does takes what it passes over"))
    } else {
        stuck(text, "no living member runs orchestrations: start a runtime that does")
    }
}

/// What to do about something that nobody takes.
fn nobody_takes_it(evidence: &Evidence, otherwise: &str) -> String {
    let fleet = evidence.fleet.as_ref();
    let is_nobody_there =
        fleet.is_some_and(|fleet| fleet.living().next().is_none() && !fleet.members.is_empty());
    if is_nobody_there {
        "no runtime takes it, because none runs on this container: start one".to_owned()
    } else {
        format!("no runtime takes it: {otherwise}")
    }
}

/// No turn has been committed yet.
fn unstarted(evidence: &Evidence, findings: &mut Vec<Finding>) {
    let messages: Vec<Queued> = evidence.partition.of(kind::MESSAGE);
    let head = evidence.partition.head().unwrap_or_default();
    for message in &messages {
        findings.push(queued_message(evidence, &head, message));
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
        findings.push(queued_message(evidence, head, message));
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

fn queued_message(evidence: &Evidence, head: &Head, message: &Queued) -> Finding {
    let now = evidence.now_ms;
    let what = message.describe();
    let attempts = head.attempts_of(&message.id).max(message.attempt_count);
    let tried =
        if attempts > 0 { format!(", {} so far", plural(attempts, "attempt")) } else { String::new() };
    let since = message.waits_since();
    if attempts > 0 && !head.is_locked(now) {
        let name = message.item().1.get("orchestration").and_then(Value::as_str).map(str::to_owned);
        let name = name.unwrap_or_else(|| head.orchestration_name.clone());
        let again = if message.visible_at > now {
            format!(", again {}", in_future(message.visible_at, now))
        } else {
            String::new()
        };
        let text = format!("{what} waits since {}{tried}{again}", ago(since, now));
        let advice = format!(
            "a runtime takes it and puts it back: it has no orchestration {name:?} registered, or not in this version, \
             or the turn fails; its log says which. {GIVEN_UP}"
        );
        return if attempts >= TRIED_MANY { stuck(text, &advice) } else { waiting(text, Some(&advice)) };
    }
    if message.visible_at > now {
        return waiting(format!("{what} waits, visible {}{tried}", in_future(message.visible_at, now)), None);
    }
    let text = format!("{what} waits since {}{tried}", ago(since, now));
    if head.is_locked(now) || now.saturating_sub(since) < PATIENCE_MS {
        return waiting(text, None);
    }
    let otherwise = match head.pinned_version {
        Some([major, minor, patch]) => format!(
            "is one running, with handler {:?} registered, and does it support duroxide {major}.{minor}.{patch}, which \
             this execution is pinned to?",
            head.orchestration_name
        ),
        None => "is one running on this container?".to_owned(),
    };
    stuck(text, &nobody_takes_it(evidence, &otherwise))
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
    let tried = plural(item.attempt_count, "attempt");
    if item.is_locked(now) {
        let until = item.locked_until.map_or_else(String::new, |until| in_future(until, now));
        return waiting(
            format!("{name} is being run by a worker, {tried}, lock until {until} unless renewed"),
            None,
        );
    }
    let since = item.waits_since();
    if item.visible_at > now || item.attempt_count >= TRIED_MANY {
        let again = if item.visible_at > now { in_future(item.visible_at, now) } else { "now".to_owned() };
        let text = format!("{name} waits since {}, {tried}, again {again}", ago(since, now));
        let advice = format!(
            "a worker takes it and puts it back: it has no activity {:?} registered, or it dies while it runs it; its \
             log says which. {GIVEN_UP}",
            span.name
        );
        let is_hopeless = item.attempt_count >= TRIED_MANY;
        return if is_hopeless { stuck(text, &advice) } else { waiting(text, Some(&advice)) };
    }
    let text = format!("{name} is queued since {}, {tried}", ago(since, now));
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
    let tag = item.tag.as_deref();
    let living: Vec<_> = evidence.fleet.iter().flat_map(Fleet::living).collect();
    if !living.is_empty() && !living.iter().any(|member| member.runs(tag)) {
        let which = tag.map(|tag| format!(" of tag {tag:?}")).unwrap_or_default();
        return stuck(text, &format!("no living member runs activities{which}: start a runtime that does"));
    }
    if now.saturating_sub(since) < PATIENCE_MS {
        return waiting(text, None);
    }
    let tag = tag.map(|tag| format!(" with tag {tag:?}")).unwrap_or_default();
    let otherwise = format!("is one running{tag} that has {:?} registered, and is it idle?", span.name);
    stuck(text, &nobody_takes_it(evidence, &otherwise))
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

fn failed(text: String) -> Finding {
    Finding { level: Level::Failed, text, advice: None }
}

fn stuck(text: String, advice: &str) -> Finding {
    Finding { level: Level::Stuck, text, advice: Some(advice.to_owned()) }
}

/// What waits longer than this although nothing holds it is stuck.
const PATIENCE_MS: u64 = 10_000;
/// What was tried so often will hardly succeed the next time.
const TRIED_MANY: u32 = 3;
/// What duroxide does with what nobody can run.
const GIVEN_UP: &str = "After 10 attempts, unless the runtime is set otherwise, it fails";

#[cfg(test)]
#[path = "diagnosis_tests.rs"]
mod tests;
