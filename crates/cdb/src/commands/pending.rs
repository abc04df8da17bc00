//! An instance that was started and that no runtime has taken: all there is of it is its start.

use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::commands::show::cut;
use crate::listing::Status;
use crate::model::{Partition, Queued, kind, text_of};
use crate::output::{Line, Output, ago, line, utc};

/// A start that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pending {
    id: String,
    orchestration: String,
    version: String,
    input: String,
    parent: Option<String>,
    sent_at: u64,
    attempts: u32,
    /// Whether texts are shown whole.
    is_full: bool,
}

impl Pending {
    /// The start that waits in a partition whose instance has not begun.
    pub(super) fn of(partition: &Partition, id: &str, is_full: bool) -> Option<Self> {
        let attempts = |item: &Queued| {
            let of_head = partition.head().map_or(0, |head| head.attempts_of(&item.id));
            item.attempt_count.max(of_head)
        };
        partition.of::<Queued>(kind::MESSAGE).iter().find_map(|item| {
            let (name, fields) = item.item();
            let text = |field: &str| text_of(&fields, field).to_owned();
            (name == "StartOrchestration").then(|| Self {
                id: id.to_owned(),
                orchestration: text("orchestration"),
                version: text("version"),
                input: text("input"),
                parent: fields.get("parent_instance").and_then(Value::as_str).map(str::to_owned),
                sent_at: item.enqueued_at,
                attempts: attempts(item),
                is_full,
            })
        })
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "instance": self.id,
            "orchestration": self.orchestration,
            "version": self.version,
            "status": Status::Pending.name(),
            "input": self.input,
            "output": null,
            "customStatus": null,
            "createdAt": self.sent_at,
            "updatedAt": self.sent_at,
            "parent": self.parent,
            "attempts": self.attempts,
            "children": [],
            "kv": {},
            "executions": [],
            "timeline": null,
        })
    }

    pub(super) fn print(&self, output: Output) -> anyhow::Result<()> {
        let style = output.style;
        let status = style.status(Status::Pending.name());
        let version = if self.version.is_empty() { String::new() } else { format!(" {}", self.version) };
        output.line(line![
            style.bold(&self.id),
            "  ",
            status,
            format!("  {}{version}", self.orchestration)
        ])?;
        let fact =
            |name: &str, text: Line| output.line(line!["  ", style.dim(&format!("{name:<9}")), " ", text]);
        fact("sent", format!("{} UTC ({})", utc(self.sent_at), ago(self.sent_at, now_ms())).into())?;
        if let Some(parent) = &self.parent {
            fact("parent", parent.into())?;
        }
        for (place, part) in cut(output, &self.input, self.is_full).iter().enumerate() {
            fact(if place == 0 { "input" } else { "" }, part.into())?;
        }
        output.line("")?;
        let attempts = match self.attempts {
            0 => "no runtime has taken it yet".to_owned(),
            count => format!("taken {count} times and put back each time"),
        };
        output.line(format!("It has not begun: {attempts}. `cdb why` says more."))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_waits_is_what_there_is_to_show() {
        let item = json!({"StartOrchestration": {"instance": "o1", "orchestration": "order", "input": "rye",
            "version": "2.0.0", "parent_instance": null, "parent_id": null, "execution_id": 1}});
        let queued = json!({"id": "m1", "instanceId": "o1", "type": "orch_queue", "workItem": item.to_string(),
            "visibleAt": 5, "enqueuedAt": 3, "attemptCount": 2});
        let other = json!({"id": "m0", "instanceId": "o1", "type": "orch_queue", "visibleAt": 1, "enqueuedAt": 1,
            "workItem": r#"{"ExternalRaised":{"instance":"o1","name":"x","data":""}}"#});
        let pending = Pending::of(&Partition::new(vec![other.clone(), queued]), "o1", false).unwrap();
        assert_eq!((pending.orchestration.as_str(), pending.input.as_str()), ("order", "rye"));
        assert_eq!((pending.sent_at, pending.attempts, pending.version.as_str()), (3, 2, "2.0.0"));
        assert_eq!(Pending::of(&Partition::new(vec![other]), "o1", false), None);
    }
}
