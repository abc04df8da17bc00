//! What trees of instances hold, counted by a few queries however many trees there are.

use std::collections::BTreeMap;

use cosmos_driver::Query;
use serde::Deserialize;

use crate::commands::delete::{Tally, count};
use crate::documents::Documents;

/// All heads, by parent, and what waits for each.
#[derive(Debug, Default)]
pub(crate) struct Census {
    heads: BTreeMap<String, Facts>,
    children: BTreeMap<String, Vec<String>>,
    messages: BTreeMap<String, u64>,
}

/// What a head says of its instance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Facts {
    instance_id: String,
    parent_instance_id: Option<String>,
    status: String,
    /// Heads of the public crate up to 0.1.10 do not count.
    execution_count: Option<u64>,
    total_event_count: Option<u64>,
}

impl Census {
    /// Reads every head once.
    pub(crate) async fn take(documents: &Documents) -> anyhow::Result<Self> {
        let heads: Vec<Facts> = documents.query_all(Query::new(HEADS)).await?;
        let waiting: Vec<String> = documents.query_all(Query::new(WAITING)).await?;
        Ok(Self::new(heads, waiting))
    }

    fn new(heads: Vec<Facts>, waiting: Vec<String>) -> Self {
        let mut census = Self::default();
        for instance in waiting {
            *census.messages.entry(instance).or_default() += 1;
        }
        for head in heads {
            if let Some(parent) = &head.parent_instance_id {
                census.children.entry(parent.clone()).or_default().push(head.instance_id.clone());
            }
            census.heads.insert(head.instance_id.clone(), head);
        }
        census
    }

    /// What an instance's tree holds, and a member of it that is running.
    pub(crate) async fn tree(
        &self,
        documents: &Documents,
        root: &str,
    ) -> anyhow::Result<(Tally, Option<String>)> {
        let mut tree = Tally::default();
        let mut running = None;
        for member in self.members(root) {
            let Some(head) = self.heads.get(member) else { continue };
            match (head.execution_count, head.total_event_count) {
                (Some(executions), Some(events)) => tree.add(&Tally {
                    instances: 1,
                    executions: executions.max(1),
                    events,
                    messages: self.messages.get(member).copied().unwrap_or(0),
                }),
                _ => tree.add(&count(documents, member).await?),
            }
            if !["Completed", "Failed"].contains(&head.status.as_str()) {
                running = Some(member.to_owned());
            }
        }
        Ok((tree, running))
    }

    /// An instance and its descendants. A circle is no family, but it comes to an end.
    fn members<'a>(&'a self, root: &'a str) -> Vec<&'a str> {
        let mut members = vec![root];
        let mut next = 0;
        while let Some(parent) = members.get(next).copied() {
            next += 1;
            for child in self.children.get(parent).into_iter().flatten() {
                if !members.contains(&child.as_str()) {
                    members.push(child);
                }
            }
        }
        members
    }
}

const HEADS: &str = "SELECT c.instanceId, c.parentInstanceId, c.status, c.executionCount, c.totalEventCount FROM c \
    WHERE c.type = 'instance'";
const WAITING: &str = "SELECT VALUE c.instanceId FROM c WHERE c.type IN ('orch_queue', 'worker_queue')";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_an_instance_with_all_that_descend_from_it() {
        let head = |id: &str, parent: Option<&str>| Facts {
            instance_id: id.to_owned(),
            parent_instance_id: parent.map(str::to_owned),
            ..Facts::default()
        };
        let heads = vec![
            head("a", None),
            head("b", Some("a")),
            head("c", Some("b")),
            head("x", None),
            head("y", Some("y")),
        ];
        let census = Census::new(heads, vec!["b".to_owned(), "b".to_owned()]);
        assert_eq!(census.members("a"), ["a", "b", "c"]);
        assert_eq!((census.members("x"), census.members("y")), (vec!["x"], vec!["y"]));
        assert_eq!(census.messages["b"], 2);
    }
}
