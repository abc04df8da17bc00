//! A container as the public crate 0.1.10 leaves it when its last process dies in the middle of its work.

use cosmos_driver::{CallOptions, ContainerProperties, Credential, Driver, ItemOptions};
use duroxide::providers::WorkItem;
use duroxide::{Event, EventKind};
use serde_json::{Value, json};

use super::net::{Network, endpoint};
use super::plan::Plan;
use super::process::{CONTAINER, DATABASE};
use super::watched::Witness;
use super::workload::Job;
use super::{OBSERVER, observe};
use crate::os;

/// How long the lock of the dead process lasts.
const LOCKED_MS: u64 = 4_000;

/// Makes the container and what is in it, if a job of the plan was begun by the public crate.
pub(super) async fn lay_out(network: &Network, plan: &Plan, witness: &Witness) -> anyhow::Result<()> {
    let jobs: Vec<&Job> = plan.jobs.iter().filter(|job| job.legacy().is_some()).collect();
    if jobs.is_empty() {
        return Ok(());
    }
    let mut config = cosmos_driver::Config::default();
    config.transport = Some(network.plug(OBSERVER));
    config.sharding.connections_max = 1;
    config.regions.trusted_domains = vec!["sim".to_owned()];
    let credential = Credential::key(network.emulator().key())?;
    let driver = Driver::builder(endpoint(plan.regions[0]), credential).config(config).build().await?;
    driver.create_database(DATABASE, CallOptions::default()).await?;
    let policy = json!({
        "indexingMode": "consistent",
        "automatic": true,
        "includedPaths": [{ "path": "/type/?" }, { "path": "/instanceId/?" }, { "path": "/visibleAt/?" }],
        "excludedPaths": [{ "path": "/*" }],
    });
    let properties = ContainerProperties::new(CONTAINER, &["/instanceId"]).with_indexing_policy(policy);
    driver.database(DATABASE).create_container(&properties, None, CallOptions::default()).await?;
    let container = observe(network, plan.regions[0], OBSERVER).await?;
    for job in jobs {
        for document in documents(job, witness) {
            let partition = document["instanceId"].as_str().unwrap_or_default();
            container.create_item(partition, &document, ItemOptions::default()).await?;
        }
    }
    Ok(())
}

/// One instance that runs and whose activity is queued, one whose start is queued, and one whose start the first was about
/// to send.
fn documents(job: &Job, witness: &Witness) -> Vec<Value> {
    let Some([running, queued, sent]) = job.legacy() else { return Vec::new() };
    let starts = [&queued, &sent].map(|instance| WorkItem::StartOrchestration {
        instance: instance.clone(),
        orchestration: job.kind.orchestration().to_owned(),
        input: job.input(),
        version: Some("1.0.0".to_owned()),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        execution_id: 1,
    });
    for instance in [&running, &queued, &sent] {
        witness.ideal(|ideal| ideal.is_changed_unseen(instance));
    }
    starts.iter().for_each(|start| witness.ideal(|ideal| ideal.sends(start)));
    let pending = WorkItem::ActivityExecute {
        instance: running.clone(),
        execution_id: 1,
        id: 2,
        name: "step".to_owned(),
        input: "0".to_owned(),
        session_id: None,
        tag: None,
    };
    let delivered = queue("orch_queue", "uuid-3", &sent, &starts[1], None);
    let mut all = vec![
        head(&running, job.number),
        queue("worker_queue", "uuid-1", &running, &pending, Some(2)),
        queue("orch_queue", "uuid-2", &queued, &starts[0], None),
        json!({
            "id": format!("intent:{running}:1:0"), "instanceId": running, "type": "outbox_intent",
            "targetInstanceId": sent, "targetDocumentType": "orch_queue", "payload": delivered.to_string(),
            "idempotencyKey": format!("{running}:1:0"), "status": "pending", "createdAt": 1500,
            "attemptCount": 0, "lastAttemptAt": null,
        }),
    ];
    all.extend(history(&running, job).iter().map(|event| {
        json!({
            "id": format!("{running}:history:1:{}", event.event_id), "instanceId": running, "type": "history",
            "executionId": 1, "eventId": event.event_id,
            "eventData": serde_json::to_string(event).unwrap_or_default(),
        })
    }));
    all
}

fn history(instance: &str, job: &Job) -> [Event; 2] {
    let started = EventKind::OrchestrationStarted {
        name: job.kind.orchestration().to_owned(),
        version: "1.0.0".to_owned(),
        input: job.input(),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        carry_forward_events: None,
        initial_custom_status: None,
    };
    let scheduled = EventKind::ActivityScheduled {
        name: "step".to_owned(),
        input: "0".to_owned(),
        session_id: None,
        tag: None,
    };
    [
        Event::with_event_id(1, instance, 1, None, started),
        Event::with_event_id(2, instance, 1, None, scheduled),
    ]
}

/// Every other head is still locked by the process that died.
fn head(instance: &str, number: usize) -> Value {
    let is_locked = number.is_multiple_of(2);
    let until = u64::try_from(os::WALL_START.as_millis()).unwrap_or_default() + LOCKED_MS;
    json!({
        "id": format!("{instance}:instance"), "instanceId": instance, "type": "instance",
        "orchestrationName": "chain", "orchestrationVersion": "1.0.0", "currentExecutionId": 1,
        "status": "Running", "output": null, "parentInstanceId": null, "pinnedDuroxideVersionPacked": 1032,
        "customStatus": null, "customStatusVersion": 0,
        "lockToken": is_locked.then_some("the dead"), "lockedUntil": is_locked.then_some(until),
        "createdAt": 1000, "updatedAt": 2000,
    })
}

fn queue(kind: &str, id: &str, instance: &str, item: &WorkItem, activity: Option<u64>) -> Value {
    json!({
        "id": id, "instanceId": instance, "type": kind,
        "workItem": serde_json::to_string(item).unwrap_or_default(),
        "dispatchSlot": 7, "visibleAt": 1500, "enqueuedAt": 1500, "lockToken": null, "lockedUntil": null,
        "attemptCount": 0, "executionId": activity.map(|_| 1), "activityId": activity, "sessionId": null,
    })
}
