//! An account described in a JSON file: its regions, its promises, and what it holds when it is new.
//!
//! ```
//! use cosmos_emulator::{Blueprint, Config, Emulator};
//!
//! let blueprint = Blueprint::parse(r#"{
//!     "regions": ["East US", "West US"],
//!     "writeMode": "single",
//!     "consistency": "Session",
//!     "databases": [{
//!         "id": "shop",
//!         "containers": [{"id": "orders", "partitionKey": {"paths": ["/customer"]}, "throughput": 400}]
//!     }],
//!     "seedItems": [{"database": "shop", "container": "orders", "items": [{"id": "1", "customer": "Ann"}]}]
//! }"#)?;
//! let emulator = Emulator::start(Config::default().with_blueprint(blueprint))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::{Config, Consistency, ReplicationDelay, WriteMode};
use crate::engine::{Conditions, Engine, ItemOp, ItemRequest, Throughput};
use crate::failure::Failure;

/// An account as a JSON file describes it. What is absent stays as the configuration has it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Blueprint {
    #[serde(default)]
    regions: Vec<RegionEntry>,
    write_mode: Option<Writes>,
    #[serde(default, deserialize_with = "level")]
    consistency: Option<Consistency>,
    throttling: Option<bool>,
    serverless: Option<bool>,
    partitions: Option<u32>,
    replication_delay_ms: Option<u64>,
    #[serde(default)]
    replication_delays: Vec<Delay>,
    #[serde(default)]
    databases: Vec<DatabaseEntry>,
    #[serde(default)]
    seed_items: Vec<Seeds>,
}

/// What is wrong with a blueprint, or with an account made by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlueprintError(String);

impl fmt::Display for BlueprintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BlueprintError {}

/// A region by its name alone, or with room for more.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum RegionEntry {
    Name(String),
    Object(NamedRegion),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedRegion {
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Writes {
    #[serde(alias = "Single")]
    Single,
    #[serde(alias = "multi", alias = "Multi", alias = "Multiple")]
    Multiple,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Delay {
    from: Option<String>,
    to: Option<String>,
    delay_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DatabaseEntry {
    id: String,
    throughput: Option<u64>,
    autoscale_max_throughput: Option<u64>,
    #[serde(default)]
    containers: Vec<ContainerEntry>,
}

/// A container: what the service's own container documents have, and throughput.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerEntry {
    id: String,
    throughput: Option<u64>,
    autoscale_max_throughput: Option<u64>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seeds {
    database: String,
    container: String,
    items: Vec<Map<String, Value>>,
}

impl Blueprint {
    /// Reads a blueprint.
    ///
    /// # Errors
    /// When it is not JSON, names something unknown, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, BlueprintError> {
        let blueprint: Self =
            serde_json::from_str(text).map_err(|error| BlueprintError(error.to_string()))?;
        blueprint.check()?;
        Ok(blueprint)
    }

    fn check(&self) -> Result<(), BlueprintError> {
        let names = self.region_names();
        for (index, name) in names.iter().enumerate() {
            if name.trim().is_empty() || names[..index].iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return Err(BlueprintError(format!("regions: {name:?} is empty or there twice")));
            }
        }
        for seeds in &self.seed_items {
            let is_known = self.databases.iter().any(|database| {
                database.id == seeds.database
                    && database.containers.iter().any(|container| container.id == seeds.container)
            });
            if !is_known {
                return Err(BlueprintError(format!(
                    "seedItems: databases has no container {:?} in {:?}",
                    seeds.container, seeds.database
                )));
            }
        }
        Ok(())
    }

    fn region_names(&self) -> Vec<String> {
        let name = |region: &RegionEntry| match region {
            RegionEntry::Name(name) => name.clone(),
            RegionEntry::Object(region) => region.name.clone(),
        };
        self.regions.iter().map(name).collect()
    }

    /// Lays what the blueprint says over a configuration.
    pub(crate) fn lay_over(&self, config: &mut Config) {
        if !self.regions.is_empty() {
            config.regions = self.region_names();
        }
        match self.write_mode {
            Some(Writes::Single) => config.write_mode = WriteMode::Single,
            Some(Writes::Multiple) => config.write_mode = WriteMode::Multiple,
            None => {}
        }
        config.consistency = self.consistency.unwrap_or(config.consistency);
        config.throttling = self.throttling.unwrap_or(config.throttling);
        config.serverless = self.serverless.unwrap_or(config.serverless);
        config.partitions = self.partitions.or(config.partitions);
        if let Some(delay) = self.replication_delay_ms {
            config.replication_delays.push(ReplicationDelay::everywhere(Duration::from_millis(delay)));
        }
        config.replication_delays.extend(self.replication_delays.iter().map(|rule| ReplicationDelay {
            from: rule.from.clone(),
            to: rule.to.clone(),
            delay: Duration::from_millis(rule.delay_ms),
        }));
    }

    /// Makes what is missing of the databases, containers and items. What is there stays as it is.
    pub(crate) fn plant(&self, engine: &Engine) -> Result<(), BlueprintError> {
        for database in &self.databases {
            let body = serde_json::json!({"id": database.id}).to_string();
            let throughput = offer(database.throughput, database.autoscale_max_throughput);
            missing(engine.create_database(body.as_bytes(), throughput).map(drop), &database.id)?;
            for container in &database.containers {
                let mut body = container.rest.clone();
                body.insert("id".to_owned(), container.id.clone().into());
                let body = Value::Object(body).to_string();
                let throughput = offer(container.throughput, container.autoscale_max_throughput);
                let made = engine.create_container(&database.id, body.as_bytes(), throughput).map(drop);
                missing(made, &format!("{}/{}", database.id, container.id))?;
            }
        }
        self.seed_items.iter().try_for_each(|seeds| seeds.plant(engine))
    }
}

impl Seeds {
    fn plant(&self, engine: &Engine) -> Result<(), BlueprintError> {
        let place = format!("{}/{}", self.database, self.container);
        let hub = engine.topology().hub;
        let container = engine
            .container_in(hub, &self.database, &self.container)
            .map_err(|failure| explain(&failure, &place))?;
        for item in &self.items {
            let document = Value::Object(item.clone());
            let request = ItemRequest {
                partition_key: Some(container.partition_key().extract(&document)),
                op: ItemOp::Create { body: Bytes::from(document.to_string()) },
                conditions: Conditions::default(),
                session_token: None,
            };
            let id = item.get("id").and_then(Value::as_str).unwrap_or("without id");
            missing(engine.item(&container, request).map(drop), &format!("{place}/{id}"))?;
        }
        Ok(())
    }
}

/// What is there already is as good as made.
fn missing(made: Result<(), Failure>, what: &str) -> Result<(), BlueprintError> {
    match made {
        Err(failure) if failure.status != 409 => Err(explain(&failure, what)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn explain(failure: &Failure, what: &str) -> BlueprintError {
    BlueprintError(format!("{what} cannot be made ({}): {}", failure.status, failure.message))
}

fn offer(manual: Option<u64>, autoscale_max: Option<u64>) -> Option<Throughput> {
    autoscale_max.map(|max| Throughput::Autoscale(max, None)).or(manual.map(Throughput::Manual))
}

fn level<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Consistency>, D::Error> {
    let text = String::deserialize(input)?;
    Consistency::parse(&text).map(Some).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "consistency {text:?} is none of Eventual, ConsistentPrefix, Session, BoundedStaleness, Strong"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        for (text, reason) in [
            ("{", "EOF"),
            (r#"{"region": []}"#, "unknown field `region`"),
            (r#"{"regions": ["A", "a"]}"#, "there twice"),
            (r#"{"consistency": "Sometimes"}"#, "none of Eventual"),
            (r#"{"writeMode": "none"}"#, "unknown variant `none`"),
            (r#"{"seedItems": [{"database": "d", "container": "c", "items": []}]}"#, "no container \"c\""),
        ] {
            let error = Blueprint::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_blueprint_is_laid_over_a_configuration() {
        let blueprint = Blueprint::parse(
            r#"{"regions": ["A", {"name": "B"}], "writeMode": "multiple", "consistency": "eventual",
                "throttling": true, "replicationDelayMs": 5,
                "replicationDelays": [{"from": "A", "to": "B", "delayMs": 50}]}"#,
        )
        .unwrap();
        let mut config = Config::default();
        blueprint.lay_over(&mut config);
        assert_eq!(config.regions, ["A", "B"]);
        assert_eq!((config.write_mode, config.consistency), (WriteMode::Multiple, Consistency::Eventual));
        assert!(config.throttling && !config.serverless);
        assert_eq!(config.replication_delays.len(), 2);
    }
}
