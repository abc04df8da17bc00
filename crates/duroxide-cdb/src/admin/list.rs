//! Lists: ids only, all ranges in parallel, the newest first.

use duroxide::providers::ProviderError;
use serde::Deserialize;

use crate::core::Core;
use crate::documents::{Head, lenient};
use crate::error::{About, Fault};
use crate::queries::{self, Query};
use crate::store::Call;

/// What bulk operations choose by.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Facts {
    pub(crate) instance_id: String,
    #[serde(default)]
    pub(crate) created_at: u64,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) completed_at: Option<u64>,
    #[serde(default)]
    pub(crate) updated_at: u64,
    #[serde(default)]
    pub(crate) parent_instance_id: Option<String>,
}

impl Facts {
    /// The facts about a head that is at hand.
    pub(crate) fn of(head: &Head) -> Self {
        Self {
            instance_id: head.instance_id.clone(),
            created_at: head.created_at,
            status: head.status.clone(),
            completed_at: head.completed_at,
            updated_at: head.updated_at,
            parent_instance_id: head.parent_instance_id.clone(),
        }
    }
}

/// An instance in a list: it is one whatever else is in its head.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    instance_id: String,
    #[serde(default, deserialize_with = "lenient")]
    created_at: u64,
}

/// All instances, or those of one status.
pub(crate) async fn instances(core: &Core, status: Option<&str>) -> Result<Vec<String>, ProviderError> {
    let operation = if status.is_some() { "list_instances_by_status" } else { "list_instances" };
    let query = match status {
        Some(status) => Query::new(queries::INSTANCES_BY_STATUS).with("@status", status),
        None => Query::new(queries::INSTANCES),
    };
    let names = names(core, core.store.call(operation), &query).await;
    names.map_err(|fault| fault.surface(operation, About::All))
}

/// The instances a query finds, the newest first.
async fn names(core: &Core, call: Call, query: &Query) -> Result<Vec<String>, Fault> {
    let rows = core.store.query_all(call, query).await?;
    let named = rows.iter().filter_map(|row| core.strays.read::<Named>(call.operation, row));
    let mut named: Vec<Named> = named.collect();
    named.sort_by(|a, b| (b.created_at, &b.instance_id).cmp(&(a.created_at, &a.instance_id)));
    Ok(named.into_iter().map(|row| row.instance_id).collect())
}

/// The direct children of some instances, also those that were started a moment ago: one that is not seen would outlive
/// its parent when that is deleted.
pub(crate) async fn children(core: &Core, call: Call, parents: &[String]) -> Result<Vec<String>, Fault> {
    let mut children = Vec::new();
    for parents in parents.chunks(PARENTS_PER_QUERY) {
        let query = Query::new(queries::CHILDREN).for_latest().with("@parents", parents.to_vec());
        children.extend(names(core, call, &query).await?);
    }
    Ok(children)
}

/// The children of some instances, as those who delete them have to know them.
#[derive(Debug)]
pub(crate) struct Offspring {
    /// Those that are instances.
    pub(crate) begun: Vec<String>,
    /// Those whose start has arrived and has not been taken.
    pub(crate) unborn: Vec<String>,
}

/// The direct children of some instances, whether they have run or not. Starts are asked for first: one that is taken in
/// the meantime has made an instance by then.
pub(crate) async fn offspring(core: &Core, call: Call, parents: &[String]) -> Result<Offspring, Fault> {
    let mut unborn = Vec::new();
    for parents in parents.chunks(PARENTS_PER_QUERY) {
        let query = Query::new(queries::UNBORN).for_latest().with("@parents", parents.to_vec());
        for row in core.store.query_all(call, &query).await? {
            unborn.extend(core.strays.read::<String>(call.operation, &row));
        }
    }
    Ok(Offspring { unborn, begun: children(core, call, parents).await? })
}

/// An instance and all its descendants, parents before children, with one query per level.
pub(crate) async fn tree(core: &Core, call: Call, root: &str) -> Result<Vec<String>, Fault> {
    let mut all = vec![root.to_owned()];
    let mut seen: std::collections::HashSet<String> = all.iter().cloned().collect();
    let mut level = all.clone();
    while !level.is_empty() {
        level = children(core, call, &level).await?;
        level.retain(|child| seen.insert(child.clone()));
        all.extend(level.iter().cloned());
    }
    Ok(all)
}

const PARENTS_PER_QUERY: usize = 200;
