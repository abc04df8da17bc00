//! What must hold when everything has come to rest.

use std::collections::BTreeMap;

use cosmos_driver::{Container, QueryOptions, Scope};
use duroxide::providers::Provider;
use serde_json::Value;

use super::workload::{Effects, Job, Kind};

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding(pub String);

/// Document types that are work on its way; none may be left.
const IN_FLIGHT: [&str; 6] =
    ["orch_queue", "worker_queue", "outbox_intent", "manifest", "dead_letter", "staged"];

/// History without gaps or doubles, each step done, and as often as its instance asked for.
pub(crate) async fn histories(
    provider: &dyn Provider,
    jobs: &[Job],
    effects: &Effects,
) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for job in jobs {
        let instance = job.instance();
        let events = provider.read(&instance).await?;
        let ids: Vec<u64> = events.iter().map(duroxide::Event::event_id).collect();
        if ids != (1..=ids.len() as u64).collect::<Vec<_>>() {
            findings.push(Finding(format!("{instance}: event ids {ids:?}")));
        }
        let done = effects.lock().expect("no panic while counting");
        let prefix = format!("{instance}/");
        if job.kind != Kind::Mailbox
            && job.kind != Kind::Children
            && !done.keys().any(|key| key.starts_with(&prefix))
        {
            findings.push(Finding(format!("{instance}: completed without a step")));
        }
    }
    Ok(findings)
}

/// No message, intent or staged document is left, and nothing is locked.
pub(crate) async fn leftovers(container: &Container) -> anyhow::Result<Vec<Finding>> {
    let sql = "SELECT c.id, c.instanceId, c.type, c.lockToken, c.ttl, c.staged FROM c";
    let rows: Vec<Value> = container.query(sql, Scope::Container, QueryOptions::default()).collect().await?;
    let mut counts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in &rows {
        let kind = row["type"].as_str().unwrap_or("no type");
        // Tombstones of consumed messages keep their id and go by their TTL.
        let is_tombstone = row["ttl"].is_number();
        let id = format!("{}: {}", row["instanceId"], row["id"]);
        if IN_FLIGHT.contains(&kind) && !is_tombstone {
            counts.entry(kind.to_owned()).or_default().push(id);
        } else if row["staged"].is_number() {
            counts.entry("staged".to_owned()).or_default().push(id);
        } else if kind == "instance" && row["lockToken"].is_string() {
            counts.entry("lock".to_owned()).or_default().push(id);
        }
    }
    Ok(counts
        .into_iter()
        .map(|(kind, ids)| Finding(format!("{} × {kind} left: {}", ids.len(), ids[0])))
        .collect())
}
