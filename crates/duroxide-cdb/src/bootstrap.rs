//! Opening the container: create it or check it, and make sure that its layout is one we can read.
//!
//! The account is looked at before anything else (`Store::connect`), then the container, then the stamp of its layout.
//! Only after all of them are found good is anything written.

use cosmos_driver::ContainerProperties;
use duroxide::providers::ProviderError;
use serde_json::{Value, json};

use crate::config::CosmosDBProviderConfig;
use crate::error::{Fault, Trouble};
use crate::layout::{Stamp, put_stamp};
use crate::store::{Backoff, Call, Store};

const OPERATION: &str = "new";

/// Connects, and creates or checks database, container and layout.
pub(crate) async fn open(config: &CosmosDBProviderConfig) -> Result<(Store, Option<Stamp>), ProviderError> {
    let call =
        Call { operation: OPERATION, deadline: tokio::time::Instant::now() + config.operation_timeout };
    let explain = |fault: Fault| explain(config, &fault);
    let mut backoff = Backoff::default();
    let store = loop {
        match Store::connect(config).await {
            Ok(store) => break store,
            Err(fault) if fault.may_pass_at_opening() && backoff.wait(call, &fault).await => {}
            Err(fault) => return Err(explain(fault)),
        }
    };
    let mut backoff = Backoff::default();
    loop {
        match prepare(&store, call, config).await {
            Ok(stamp) => return Ok((store, stamp)),
            // Many processes start at once: metadata requests are scarce, and others create what we want to create.
            Err(Obstacle::Fault(fault))
                if fault.may_pass_at_opening() && backoff.wait(call, &fault).await => {}
            Err(Obstacle::Fault(fault)) => return Err(explain(fault)),
            Err(Obstacle::Refused(sentence)) => return Err(ProviderError::permanent(OPERATION, sentence)),
        }
    }
}

enum Obstacle {
    Fault(Fault),
    Refused(String),
}

impl From<Fault> for Obstacle {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Obstacle {
    /// What only a key could have created or changed about a container.
    fn of_definition(fault: Fault, wanted: &ContainerProperties, config: &CosmosDBProviderConfig) -> Self {
        if !fault.needs_a_key {
            return Self::Fault(fault);
        }
        let definition = serde_json::to_string(&asked_for(wanted)).unwrap_or_default();
        Self::Refused(format!(
            "The container {} of the database {} is not there, or not as workflows need it, and tokens may not change \
             that. Create or change it so that it is {definition} (as `duroxide_cdb::container_definition` describes), or \
             open it once with a key.",
            config.container, config.database
        ))
    }
}

/// What is asked of a container, without what the service adds to its definition.
fn asked_for(definition: &ContainerProperties) -> ContainerProperties {
    let mut asked = definition.clone();
    asked.other.clear();
    asked.unique_key_policy = None;
    asked
}

fn explain(config: &CosmosDBProviderConfig, fault: &Fault) -> ProviderError {
    let sentence = format!("The account at {} could not be opened: {fault}.", config.endpoint);
    if fault.may_pass_at_opening() {
        ProviderError::retryable(OPERATION, sentence)
    } else {
        ProviderError::permanent(OPERATION, sentence)
    }
}

/// Returns the stamp that was found.
async fn prepare(
    store: &Store,
    call: Call,
    config: &CosmosDBProviderConfig,
) -> Result<Option<Stamp>, Obstacle> {
    let definition = match store.definition(call).await? {
        Some(definition) => definition,
        None => {
            let wanted = container_definition(&config.container);
            let ours = |fault| Obstacle::of_definition(fault, &wanted, config);
            existing_is_fine(store.create_database(call).await).map_err(ours)?;
            existing_is_fine(store.create_container(call, &wanted).await).map_err(ours)?;
            let created = store.definition(call).await?;
            created.ok_or_else(|| Fault::transient("the container is not there yet after it was created"))?
        }
    };
    check_key(&definition)?;
    check_unique_keys(&definition)?;
    let stamp = Stamp::read(store, call).await?;
    // Before the indexes: those of a newer layout are not for this version to change.
    if let Some(refusal) = stamp.as_ref().and_then(|stamp| stamp.document.refusal()) {
        return Err(Obstacle::Refused(refusal));
    }
    if let Some(better) = improved(&definition) {
        let replaced = store.replace_definition(call, &better).await;
        replaced.map_err(|fault| Obstacle::of_definition(fault, &better, config))?;
    }
    put_stamp(store, call, stamp.as_ref()).await?;
    Ok(stamp.map(|stamp| stamp.document))
}

fn existing_is_fine(outcome: Result<(), Fault>) -> Result<(), Fault> {
    match outcome {
        Err(fault) if fault.trouble == Trouble::Exists => Ok(()),
        outcome => outcome,
    }
}

/// The container as this crate creates it, for those who create it themselves: as JSON it is what the service's REST
/// interface and its templates take.
#[must_use]
pub fn container_definition(name: &str) -> ContainerProperties {
    ContainerProperties::new(name, &[KEY_PATH])
        .with_indexing_policy(indexing_policy())
        .with_default_ttl(ITEMS_SAY)
}

/// Only what a query filters or sorts by is indexed: every indexed term is paid for with every write.
fn indexing_policy() -> Value {
    let included: Vec<Value> = INDEXED.iter().map(|path| json!({ "path": format!("/{path}/?") })).collect();
    json!({
        "indexingMode": "consistent",
        "automatic": true,
        "includedPaths": included,
        "excludedPaths": [{ "path": "/*" }],
        "compositeIndexes": ORDERED.map(|paths| -> Vec<Value> {
            paths.iter().map(|path| json!({ "path": format!("/{path}"), "order": "ascending" })).collect()
        }),
    })
}

fn check_key(definition: &ContainerProperties) -> Result<(), Obstacle> {
    let paths = &definition.partition_key.paths;
    if *paths != [KEY_PATH] {
        return Err(Obstacle::Refused(format!(
            "The container {} has the partition key {}, not {KEY_PATH}: name another container.",
            definition.id,
            paths.join(", ")
        )));
    }
    // The service leaves the first version out.
    let version = definition.partition_key.version.unwrap_or(1);
    if version != KEY_VERSION {
        return Err(Obstacle::Refused(format!(
            "The container {} has a partition key of version {version}, not {KEY_VERSION}, so its instances are in \
             other places than this crate looks for them: name another container, or create one as \
             `duroxide_cdb::container_definition` describes.",
            definition.id
        )));
    }
    Ok(())
}

/// A conflict is understood as "a document with this id is there". With a unique key it could be any other document, and
/// what was to be written would be taken for written. Unique keys cannot be taken off a container.
fn check_unique_keys(definition: &ContainerProperties) -> Result<(), Obstacle> {
    let keys = definition.unique_key_policy.as_ref().and_then(|policy| policy["uniqueKeys"].as_array());
    let paths = keys.into_iter().flatten().filter_map(|key| key["paths"].as_array()).flatten();
    let paths: Vec<&str> = paths.filter_map(Value::as_str).collect();
    if paths.is_empty() {
        return Ok(());
    }
    Err(Obstacle::Refused(format!(
        "The container {} has the unique key {}, which may refuse documents of workflows, and it cannot be taken off: \
         name another container, or create one as `duroxide_cdb::container_definition` describes.",
        definition.id,
        paths.join(", ")
    )))
}

/// The definition with what it lacks: expiry of tombstones, and indexes for the queries.
fn improved(definition: &ContainerProperties) -> Option<ContainerProperties> {
    let mut better = definition.clone();
    // Any other value would let heads and histories expire, or keep tombstones for ever.
    better.default_ttl = Some(ITEMS_SAY);
    if !better.indexing_policy.as_ref().is_some_and(serves_the_queries) {
        better.indexing_policy = Some(indexing_policy());
    }
    (better != *definition).then_some(better)
}

/// Whether a policy indexes what queries filter by, with every write and by itself, and in the order they want.
fn serves_the_queries(policy: &Value) -> bool {
    // What the policy does not say is as the service has it by default.
    let mode = policy["indexingMode"].as_str().unwrap_or("consistent");
    let is_on = mode.eq_ignore_ascii_case("consistent") && policy["automatic"] != false;
    let paths = |name: &str| -> Vec<&str> {
        let paths = policy[name].as_array().map(Vec::as_slice).unwrap_or_default();
        paths.iter().filter_map(|path| path["path"].as_str()).collect()
    };
    let (included, excluded) = (paths("includedPaths"), paths("excludedPaths"));
    let is_indexed = |path: &&str| {
        let own = [format!("/{path}/?"), format!("/{path}/*")];
        let names = |list: &[&str]| own.iter().any(|own| list.contains(&own.as_str()));
        // The longer path counts.
        names(&included) || (included.contains(&"/*") && !names(&excluded))
    };
    is_on && INDEXED.iter().all(is_indexed) && serves_the_order(policy)
}

/// Whether a policy has the composite indexes that find due work without looking at what is due later or for others.
fn serves_the_order(policy: &Value) -> bool {
    let composites = policy["compositeIndexes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let serves = |composite: &Value, order: &[&str]| {
        let paths = composite.as_array().map(Vec::as_slice).unwrap_or_default();
        let names = paths.iter().map(|path| path["path"].as_str().unwrap_or_default());
        let ascending = paths.iter().all(|path| path["order"] != "descending");
        ascending && names.eq(order.iter().map(|path| format!("/{path}")))
    };
    ORDERED.iter().all(|order| composites.iter().any(|composite| serves(composite, order)))
}

const KEY_PATH: &str = "/instanceId";
/// Of the hash that slots are made of.
const KEY_VERSION: u8 = 2;
/// Items expire only when they say so themselves.
const ITEMS_SAY: i32 = -1;
/// What queries filter by. Each costs 8/21 RU with every write of a document that has it.
const INDEXED: [&str; 10] = [
    "type",
    "seq",
    "executionId",
    "eventId",
    "sinceTurn",
    "status",
    "sessionId",
    "ownedSession",
    "parentInstanceId",
    "sweepAt",
];
/// What is due, in order: all of it, and the work items of each lane.
const ORDERED: [&[&str]; 2] = [&["type", "visibleAt"], &["type", "lane", "visibleAt"]];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_of_ours_needs_no_change() {
        assert_eq!(improved(&container_definition("flows")), None);
    }

    #[test]
    fn expiry_and_indexes_are_added_where_they_are_missing() {
        let mut old = container_definition("flows");
        old.default_ttl = None;
        old.indexing_policy = Some(json!({ "includedPaths": [{ "path": "/type/?" }], "excludedPaths": [] }));
        let better = improved(&old).unwrap();
        assert_eq!(better.default_ttl, Some(ITEMS_SAY));
        assert_eq!(better, container_definition("flows"));
    }

    #[test]
    fn a_policy_that_indexes_late_or_not_by_itself_or_leaves_something_out_is_replaced() {
        let ours = container_definition("flows");
        let all = json!({
            "indexingMode": "consistent", "automatic": true, "includedPaths": [{ "path": "/*" }],
            "excludedPaths": [{ "path": "/\"_etag\"/?" }],
            "compositeIndexes": ours.indexing_policy.as_ref().unwrap()["compositeIndexes"],
        });
        let with = |change: &dyn Fn(&mut Value)| {
            let mut other = ours.clone();
            let mut policy = all.clone();
            change(&mut policy);
            other.indexing_policy = Some(policy);
            improved(&other)
        };
        assert_eq!(with(&|_| {}), None, "more than enough");
        assert_eq!(with(&|policy| policy["indexingMode"] = "lazy".into()), Some(ours.clone()));
        assert_eq!(with(&|policy| policy["indexingMode"] = "none".into()), Some(ours.clone()));
        assert_eq!(with(&|policy| policy["automatic"] = false.into()), Some(ours.clone()));
        let hole = json!([{ "path": "/status/?" }]);
        assert_eq!(with(&|policy| policy["excludedPaths"] = hole.clone()), Some(ours.clone()));
        let elsewhere = json!([{ "path": "/workItem/?" }]);
        assert_eq!(with(&|policy| policy["excludedPaths"] = elsewhere.clone()), None);
    }

    #[test]
    fn a_unique_key_is_refused_and_an_empty_policy_is_none() {
        let mut plain = container_definition("flows");
        plain.unique_key_policy = Some(json!({ "uniqueKeys": [] }));
        assert!(check_unique_keys(&plain).is_ok());
        let Err(Obstacle::Refused(sentence)) =
            check_unique_keys(&plain.with_unique_key(&["/email", "/name"]))
        else {
            panic!("not refused")
        };
        assert!(sentence.contains("/email, /name"), "{sentence}");
    }

    #[test]
    fn a_container_without_lanes_gets_their_index() {
        let mut earlier = container_definition("flows");
        let composites = &mut earlier.indexing_policy.as_mut().unwrap()["compositeIndexes"];
        composites.as_array_mut().unwrap().truncate(1);
        assert_eq!(improved(&earlier), Some(container_definition("flows")));
    }

    #[test]
    fn a_container_whose_items_expire_is_told_to_keep_them() {
        let mut fleeting = container_definition("flows");
        fleeting.default_ttl = Some(86_400);
        assert_eq!(improved(&fleeting), Some(container_definition("flows")));
    }

    #[test]
    fn another_partition_key_is_refused_in_one_sentence() {
        let foreign = ContainerProperties::new("things", &["/tenant"]);
        let Err(Obstacle::Refused(sentence)) = check_key(&foreign) else { panic!("not refused") };
        assert!(sentence.contains("/tenant") && sentence.contains("things"), "{sentence}");
    }

    #[test]
    fn a_partition_key_of_the_first_version_is_refused_also_where_the_version_is_left_out() {
        assert!(check_key(&container_definition("flows")).is_ok());
        for version in [None, Some(1)] {
            let mut earlier = container_definition("flows");
            earlier.partition_key.version = version;
            let Err(Obstacle::Refused(sentence)) = check_key(&earlier) else { panic!("not refused") };
            assert!(sentence.contains("version 1"), "{sentence}");
        }
    }

    #[test]
    fn the_guide_shows_the_definition() {
        let guide = include_str!("../../../docs/operations.md");
        let shown = guide.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let shown: Value = serde_json::from_str(shown).unwrap();
        let defined = serde_json::to_value(container_definition("duroxide")).unwrap();
        assert_eq!(shown, defined, "{defined:#}");
    }
}
