//! What earlier runs left behind.

use std::collections::BTreeMap;

use cosmos_driver::Query;
use duroxide::{Client, EventKind};

use super::bakery::{SCENARIOS, Scenario};
use super::board::{Origin, Phase, Row};
use crate::documents::Documents;
use crate::model::Queued;

/// What earlier runs left behind.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Instances of the demo, children included.
    pub(crate) instances: usize,
    /// The last run, if there was one.
    pub(crate) last: Option<Run>,
}

/// One run.
#[derive(Debug)]
pub(crate) struct Run {
    /// Counted from 1.
    pub(crate) number: u32,
    /// Its workflows as they are stored.
    pub(crate) rows: Vec<Row>,
    /// When one of them last moved; milliseconds since 1970.
    pub(crate) last_moved_ms: u64,
}

impl Past {
    /// Reads what is stored.
    pub(crate) async fn read(client: &Client, documents: &Documents) -> anyhow::Result<Self> {
        let ids = client.list_all_instances().await?;
        let mut runs: BTreeMap<u32, Vec<&'static Scenario>> = BTreeMap::new();
        let mut instances = 0;
        for id in &ids {
            instances += usize::from(id.starts_with(PREFIX));
            if let Some((number, scenario)) = parse(id) {
                runs.entry(number).or_default().push(scenario);
            }
        }
        let last = match runs.last_key_value() {
            Some((number, scenarios)) => Some(Run::read(client, documents, *number, scenarios, &ids).await?),
            None => None,
        };
        Ok(Self { instances, last })
    }

    /// The run that is to be finished, if the last one was not.
    pub(crate) fn unfinished(&self) -> Option<&Run> {
        self.last.as_ref().filter(|run| run.rows.iter().any(|row| row.origin != Origin::Earlier))
    }
}

impl Run {
    async fn read(
        client: &Client,
        documents: &Documents,
        number: u32,
        stored: &[&'static Scenario],
        ids: &[String],
    ) -> anyhow::Result<Self> {
        let mut rows = Vec::new();
        let mut last_moved_ms = 0;
        for scenario in &SCENARIOS {
            let instance = instance(number, scenario);
            if !stored.iter().any(|other| other.name == scenario.name) {
                rows.push(Row::new(instance, scenario, Origin::Started, 0));
                continue;
            }
            let info = client.get_instance_info(&instance).await?;
            last_moved_ms = last_moved_ms.max(info.updated_at);
            let output = info.output.unwrap_or_default();
            let phase = match info.status.as_str() {
                "Completed" => Phase::Completed(output),
                "Failed" => Phase::Failed(output),
                _ => Phase::Waiting,
            };
            let mut row = if phase.has_ended() {
                let mut row = Row::new(instance, scenario, Origin::Earlier, scenario.steps);
                row.took =
                    Some(std::time::Duration::from_millis(info.updated_at.saturating_sub(info.created_at)));
                row
            } else {
                let steps = steps_done(client, documents, &instance, ids).await?;
                Row::new(instance, scenario, Origin::Continued, steps)
            };
            row.phase = phase;
            rows.push(row);
        }
        Ok(Self { number, rows, last_moved_ms })
    }
}

/// The instance id of a workflow of a run.
pub(crate) fn instance(number: u32, scenario: &Scenario) -> String {
    format!("{PREFIX}{number}-{}", scenario.name)
}

/// Steps that are stored as done, of a workflow and its children: in the history, or as a result that waits for the
/// next turn.
async fn steps_done(
    client: &Client,
    documents: &Documents,
    instance: &str,
    ids: &[String],
) -> anyhow::Result<usize> {
    let children = format!("{instance}::");
    let family = ids.iter().filter(|id| *id == instance || id.starts_with(&children));
    let mut steps = 0;
    for id in family {
        for execution in client.list_executions(id).await? {
            let events = client.read_execution_history(id, execution).await?;
            steps += events
                .iter()
                .filter(|event| matches!(event.kind, EventKind::ActivityCompleted { .. }))
                .count();
        }
        let messages: Vec<Queued> = documents.query(id, Query::new(MESSAGES)).await?;
        steps += messages.iter().filter(|message| message.item().0 == "ActivityCompleted").count();
    }
    Ok(steps)
}

fn parse(id: &str) -> Option<(u32, &'static Scenario)> {
    let (number, name) = id.strip_prefix(PREFIX)?.split_once('-')?;
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name)?;
    Some((number.parse().ok()?, scenario))
}

const PREFIX: &str = "bakery-";
const MESSAGES: &str = "SELECT c.workItem FROM c WHERE c.type = 'orch_queue'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_ids_say_run_and_workflow() {
        let (number, scenario) = parse(&instance(12, &SCENARIOS[7])).unwrap();
        assert_eq!((number, scenario.name), (12, "bake"));
        for other in ["bakery-1-bake::sub::2", "bakery-x-bake", "order-1", "bakery-1"] {
            assert!(parse(other).is_none(), "{other}");
        }
    }
}
