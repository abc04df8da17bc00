//! What must hold: pure where it can be.

use std::collections::{BTreeMap, BTreeSet};

use cosmos_driver::{Container, QueryOptions, Scope};
use duroxide::{Event, EventKind};
use serde_json::Value;

use crate::os;

/// Document types that are work on its way; none may be left.
const IN_FLIGHT: [&str; 6] =
    ["orch_queue", "worker_queue", "outbox_intent", "manifest", "dead_letter", "staged"];

/// Longer than any work of a world, but for timers of weeks.
const AN_HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

/// One execution's history against what an ideal store would have: no gap, no double, nothing answered twice, nothing
/// answered that was not asked, and an end.
pub(crate) fn history(name: &str, events: &[Event]) -> Vec<String> {
    let mut findings = Vec::new();
    let ids: Vec<u64> = events.iter().map(Event::event_id).collect();
    if ids != (1..=ids.len() as u64).collect::<Vec<_>>() {
        findings.push(format!("{name}: event ids {ids:?}"));
    }
    let (mut asked, mut answered) = (BTreeMap::new(), BTreeSet::new());
    for event in events {
        if let Some(question) = question(&event.kind) {
            asked.insert(event.event_id, question);
        }
        let Some(answer) = answer(&event.kind) else { continue };
        let Some(source) = event.source_event_id else {
            findings.push(format!("{name}: event {} answers nothing", event.event_id));
            continue;
        };
        if asked.get(&source) != Some(&answer) {
            findings.push(format!(
                "{name}: event {} answers {source}, which asked for no {answer}",
                event.event_id
            ));
        }
        if !answered.insert(source) {
            findings.push(format!("{name}: event {source} is answered twice"));
        }
    }
    let begun =
        events.iter().filter(|event| matches!(event.kind, EventKind::OrchestrationStarted { .. })).count();
    let ended = events.iter().filter(|event| is_end(&event.kind)).count();
    if (begun, ended) != (1, 1) {
        findings.push(format!("{name}: begun {begun} times and ended {ended} times"));
    }
    findings
}

fn is_end(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::OrchestrationCompleted { .. }
            | EventKind::OrchestrationFailed { .. }
            | EventKind::OrchestrationContinuedAsNew { .. }
    )
}

fn question(kind: &EventKind) -> Option<&'static str> {
    match kind {
        EventKind::ActivityScheduled { .. } => Some("activity"),
        EventKind::TimerCreated { .. } => Some("timer"),
        EventKind::SubOrchestrationScheduled { .. } => Some("child"),
        _ => None,
    }
}

fn answer(kind: &EventKind) -> Option<&'static str> {
    match kind {
        EventKind::ActivityCompleted { .. } | EventKind::ActivityFailed { .. } => Some("activity"),
        EventKind::TimerFired { .. } => Some("timer"),
        EventKind::SubOrchestrationCompleted { .. } | EventKind::SubOrchestrationFailed { .. } => {
            Some("child")
        }
        _ => None,
    }
}

/// What is left in a container.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// What must not be.
    pub(crate) findings: Vec<String>,
    /// Until when at the latest something may stay that was prepared for a commit which never came, in milliseconds since
    /// the Unix epoch.
    pub(crate) prepared_until: Option<u64>,
}

/// No message, intent or staged document is left, and nothing is locked. What was prepared for a commit that did not come is
/// nobody's business for an hour: whoever prepared it may only be slow.
pub(crate) async fn leftovers(container: &Container) -> Result<Leftovers, cosmos_driver::Error> {
    let sql = "SELECT c.id, c.instanceId, c.type, c.lockToken, c.ttl, c.staged, c.visibleAt, c.commit, c.committed, \
               c.sweepAt FROM c";
    let now = os::WALL_START + os::elapsed();
    let soon = u64::try_from((now + AN_HOUR).as_millis()).unwrap_or(u64::MAX);
    let rows: Vec<Value> = container.query(sql, Scope::Container, QueryOptions::default()).collect().await?;
    let is_mark = |row: &&Value| row["committed"] == false && row["sweepAt"].is_number();
    let marks: BTreeMap<&str, u64> = rows
        .iter()
        .filter(is_mark)
        .filter_map(|row| Some((row["commit"].as_str()?, row["sweepAt"].as_u64()?)))
        .filter(|(_, sweep_at)| u128::from(*sweep_at) > now.as_millis())
        .collect();
    let is_prepared = |row: &Value| {
        let id = row["id"].as_str().unwrap_or_default();
        id.split(':').nth(1).is_some_and(|commit| marks.contains_key(commit))
    };
    let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in &rows {
        let kind = row["type"].as_str().unwrap_or("no type");
        if matches!(kind, "manifest" | "staged") && is_prepared(row) {
            continue;
        }
        // Tombstones of consumed messages keep their id and go by their TTL.
        let is_tombstone = row["ttl"].is_number();
        // A timer that nobody waits for any more stays until it fires.
        let is_for_later = row["visibleAt"].as_u64().is_some_and(|at| at > soon);
        let id = format!("{}: {}", row["instanceId"], row["id"]);
        if IN_FLIGHT.contains(&kind) && !is_tombstone && !is_for_later {
            left.entry(kind.to_owned()).or_default().push(id);
        } else if row["staged"].is_number() {
            left.entry("staged".to_owned()).or_default().push(id);
        } else if kind == "instance" && row["lockToken"].is_string() {
            left.entry("lock".to_owned()).or_default().push(id);
        }
    }
    let mut findings: Vec<String> =
        left.into_iter().map(|(kind, ids)| format!("{} × {kind} left: {}", ids.len(), ids[0])).collect();
    findings.extend(expiring(container, &rows).await?);
    Ok(Leftovers { findings, prepared_until: marks.values().copied().max() })
}

/// What the service would remove by itself is all there is of an instance that has ended: nothing is beside it that would be
/// left, or could come for the next instance of its name.
async fn expiring(container: &Container, rows: &[Value]) -> Result<Vec<String>, cosmos_driver::Error> {
    let sql = "SELECT * FROM c WHERE c.type = 'instance' AND c.ttl > 0";
    let heads: Vec<Value> = container.query(sql, Scope::Container, QueryOptions::default()).collect().await?;
    let mut findings = Vec::new();
    for head in &heads {
        let instance = &head["instanceId"];
        let stays = |row: &&Value| {
            row["instanceId"] == *instance && row["type"] != "instance" && row["type"] != "tombstone"
        };
        if let Some(other) = rows.iter().find(stays) {
            findings.push(format!("the head of {instance} expires and leaves {}", other["id"]));
        } else if !duroxide_cdb::may_expire(head) {
            findings.push(format!("the head of {instance} expires and must not: {head}"));
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64, source: Option<u64>, kind: EventKind) -> Event {
        Event::with_event_id(id, "i", 1, source, kind)
    }

    fn started() -> Event {
        let kind = EventKind::OrchestrationStarted {
            name: "n".into(),
            version: "1.0.0".into(),
            input: String::new(),
            parent_instance: None,
            parent_id: None,
            parent_execution_id: None,
            carry_forward_events: None,
            initial_custom_status: None,
        };
        event(1, None, kind)
    }

    fn timer(id: u64) -> Event {
        event(id, None, EventKind::TimerCreated { fire_at_ms: 1 })
    }

    fn fired(id: u64, source: u64) -> Event {
        event(id, Some(source), EventKind::TimerFired { fire_at_ms: 1 })
    }

    fn completed(id: u64) -> Event {
        event(id, None, EventKind::OrchestrationCompleted { output: String::new() })
    }

    #[test]
    fn a_good_history_has_no_findings() {
        assert_eq!(history("i", &[started(), timer(2), fired(3, 2), completed(4)]), Vec::<String>::new());
    }

    #[test]
    fn each_way_in_which_a_history_is_wrong_is_found() {
        let bad: [(&str, Vec<Event>); 5] = [
            ("gap", vec![started(), completed(3)]),
            ("answered twice", vec![started(), timer(2), fired(3, 2), fired(4, 2), completed(5)]),
            ("not asked", vec![started(), fired(2, 9), completed(3)]),
            ("no end", vec![started()]),
            ("two ends", vec![started(), completed(2), completed(3)]),
        ];
        for (what, events) in bad {
            assert!(!history("i", &events).is_empty(), "{what}");
        }
    }
}
