//! Mending: through the provider where it has a way, else on the documents under their ETags.

use duroxide::EventKind;
use duroxide::providers::{Provider, WorkItem};

use super::Defect;
use crate::documents::{Documents, Written};
use crate::ending;

/// What would mend a defect.
#[derive(Debug, Clone)]
pub(crate) enum Repair {
    /// Remove a document that nothing points to.
    Remove { id: String, etag: String },
    /// Queue an activity again.
    Work(WorkItem),
    /// Queue a message again.
    Message(WorkItem),
    /// Send the result of a child to its parent again.
    Result { child: String, parent: String, execution: u64, event: u64 },
    /// Let a document stay until somebody removes it.
    Keep { id: String, etag: String },
    /// Count the history anew.
    Counters { id: String, etag: String, last_event_id: u64, event_count: u64, event_bytes: u64 },
}

/// Mends one defect; false if what is stored has changed meanwhile.
pub(crate) async fn carry_out(
    defect: &Defect,
    repair: &Repair,
    documents: &Documents,
    provider: &dyn Provider,
) -> anyhow::Result<bool> {
    match repair {
        Repair::Remove { id, etag } => {
            Ok(documents.delete(&defect.instance, id, etag).await? == Written::Done)
        }
        Repair::Work(item) => {
            provider.enqueue_for_worker(item.clone()).await?;
            Ok(true)
        }
        Repair::Message(item) => {
            provider.enqueue_for_orchestrator(item.clone(), None).await?;
            Ok(true)
        }
        Repair::Result { child, parent, execution, event } => {
            let history = provider.read(child).await?;
            let item = match ending::terminal(&history).map(|event| &event.kind) {
                Some(EventKind::OrchestrationCompleted { output }) => WorkItem::SubOrchCompleted {
                    parent_instance: parent.clone(),
                    parent_execution_id: *execution,
                    parent_id: *event,
                    result: output.clone(),
                },
                Some(EventKind::OrchestrationFailed { details }) => WorkItem::SubOrchFailed {
                    parent_instance: parent.clone(),
                    parent_execution_id: *execution,
                    parent_id: *event,
                    details: details.clone(),
                },
                _ => return Ok(false),
            };
            provider.enqueue_for_orchestrator(item, None).await?;
            Ok(true)
        }
        Repair::Keep { id, etag } => {
            let Some(mut document) = documents.read(&defect.instance, id).await? else { return Ok(false) };
            crate::archive::strip(&mut document);
            if let Some(fields) = document.as_object_mut() {
                fields.remove("ttl");
            }
            Ok(documents.replace(&defect.instance, id, &document, etag).await? == Written::Done)
        }
        Repair::Counters { id, etag, last_event_id, event_count, event_bytes } => {
            let Some(mut head) = documents.read(&defect.instance, id).await? else { return Ok(false) };
            crate::archive::strip(&mut head);
            head["lastEventId"] = (*last_event_id).into();
            head["eventCount"] = (*event_count).into();
            head["eventBytes"] = (*event_bytes).into();
            Ok(documents.replace(&defect.instance, id, &head, etag).await? == Written::Done)
        }
    }
}
