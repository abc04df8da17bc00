//! Containers: create, read, replace, delete, and their partition-key ranges.

use std::sync::Arc;

use cosmos_wire::epk::EpkRange;
use cosmos_wire::status::Status;
use serde_json::{Map, Value, json};

use super::body::{self, ContainerBody};
use super::offer::{self, Offer};
use super::{check_match, encryption, owner_not_found, record, taken, vector};
use crate::Failure;
use crate::engine::container::{Container, Identity, IndexState, Shape};
use crate::engine::key::Segment;
use crate::engine::partition::{Counters, Lineage, Partition};
use crate::engine::region::RegionId;
use crate::engine::request::{RangesReply, ResourceFeed, ResourceReply, Throughput};
use crate::engine::script::schema_of;
use crate::engine::{Engine, key, quota};
use crate::storage::{Batch, Change};

impl Engine {
    /// Creates a container.
    ///
    /// # Errors
    /// 400 for a body or throughput the service refuses, 404/1003 without database, 409 for a name that is taken.
    pub fn create_container(
        &self,
        database: &str,
        body: &[u8],
        throughput: Option<Throughput>,
    ) -> Result<ResourceReply, Failure> {
        let body = body::container(body)?;
        let throughput = self.check_throughput(throughput)?;
        let mut control = self.control();
        let mut catalog = self.catalog_mut();
        let owner = catalog.database(database).map_err(owner_not_found)?;
        encryption::check_keys(body.fields.get("clientEncryptionPolicy").unwrap_or(&Value::Null), owner)?;
        if owner.names.contains_key(&body.name) {
            return Err(taken());
        }
        let sharing = owner.containers.values().filter(|container| container.shape().offer.is_none()).count();
        if owner.offer.is_some() && throughput.is_none() && sharing >= SHARING_MAX {
            return Err(Failure::new(
                403,
                format!("The database shares its throughput among at most {SHARING_MAX} containers; give this one its own."),
            )
            .with_sub_status(Status::SHARED_THROUGHPUT_CONTAINER_COUNT_EXCEEDED.sub));
        }
        let mut numbers = control.clone();
        numbers.container += 1;
        let now = self.clock().now_seconds();
        let rid = numbers.container_rid(owner.rid);
        let link = format!("dbs/{}/colls/{rid}/", owner.rid);
        let etag = numbers.next_etag(now);
        let has_none = owner.offer.is_some() || self.options().serverless;
        let throughput = throughput.or(if has_none { None } else { Some(offer::DEFAULT) });
        let offer = throughput.map(|throughput| {
            numbers.offer += 1;
            let etag = numbers.next_etag(now);
            let (resource, resource_rid) = (link.clone(), rid.to_string());
            Offer { rid: numbers.offer_rid(), resource, resource_rid, throughput, etag, timestamp: now }
        });
        let count =
            self.options().partitions.unwrap_or(throughput.map_or(1, offer::partitions_at_creation)).max(1);
        let ContainerBody { name, fields, definition, policy, default_ttl, retention, unique_keys } = body;
        let topology = self.topology();
        let partitions = |region: RegionId| -> Vec<_> {
            EpkRange::equal(definition.version(), count)
                .into_iter()
                .zip(0..)
                .map(|(range, id)| {
                    let segment = Segment { container: region.replica_of(numbers.container), range: id };
                    Arc::new(Partition::new(
                        segment,
                        range,
                        Lineage::default(),
                        Counters::of_replica(segment),
                    ))
                })
                .collect()
        };
        let elsewhere = topology
            .live()
            .filter(|region| region.id != RegionId::FIRST)
            .map(|region| (region.id, partitions(region.id)))
            .collect();
        let partitions = partitions(RegionId::FIRST);
        let document = complete(fields, &rid.to_string(), &link, &etag, now);
        let shape = Shape {
            schema: schema_of(&document, &[]),
            scripts: Arc::new([]),
            body: document.clone(),
            etag: etag.clone(),
            tracked: policy.explicit.clone(),
            policy,
            index: IndexState::Ready,
            default_ttl,
            retention: self.retention(retention),
            unique_keys,
            offer,
            partitions,
            elsewhere,
            partitions_version: 1,
            moving: None,
        };
        let changes = vec![
            Change::Put(key::meta(), numbers.to_record().into()),
            Change::Put(
                key::container(numbers.container),
                record::container_record(owner.number, &shape).into(),
            ),
        ];
        let identity = Identity {
            number: numbers.container,
            rid,
            database: owner.number,
            database_rid: owner.rid,
            name: name.clone(),
            database_name: owner.name.clone(),
            definition,
        };
        let (owner, ticket) = (owner.number, self.commit(Batch { changes })?);
        if let Some(owner) = catalog.databases.get_mut(&owner) {
            owner.names.insert(name, numbers.container);
            owner.containers.insert(numbers.container, Arc::new(Container::new(identity, shape)));
        }
        *control = numbers;
        Ok(reply(201, document, etag, rid.to_string(), Some(ticket)))
    }

    /// Reads a container by names or resource ids.
    ///
    /// # Errors
    /// 404.
    pub fn read_container(&self, database: &str, container: &str) -> Result<ResourceReply, Failure> {
        let found = Arc::clone(self.catalog().database(database)?.container(container)?);
        let shape = found.shape();
        Ok(reply(200, shape.body.clone(), shape.etag.clone(), found.rid(), None))
    }

    /// All containers of a database, in order of creation.
    ///
    /// # Errors
    /// 404/1003 without database.
    pub fn containers(&self, database: &str) -> Result<ResourceFeed, Failure> {
        let catalog = self.catalog();
        let database = catalog.database(database).map_err(owner_not_found)?;
        let resources =
            database.containers.values().map(|container| container.shape().body.clone()).collect();
        Ok(ResourceFeed { rid: database.rid.to_string(), resources, charge: quota::METADATA })
    }

    /// Replaces what can be changed of a container. A new indexing policy or time to live builds the index anew
    /// before this returns.
    ///
    /// # Errors
    /// 400 for what cannot be changed, 404, 412.
    pub fn replace_container(
        &self,
        database: &str,
        container: &str,
        body: &[u8],
        if_match: Option<&str>,
    ) -> Result<ResourceReply, Failure> {
        let body = body::container(body)?;
        let mut control = self.control();
        let found = Arc::clone(self.catalog().database(database)?.container(container)?);
        let old = found.shape();
        check_match(if_match, &old.etag)?;
        check_unchanged(&found, &old, &body)?;
        if old.default_ttl != body.default_ttl {
            // What has expired would be seen again under another time to live.
            self.sweep_container(&found, usize::MAX)?;
        }
        let mut numbers = control.clone();
        let now = self.clock().now_seconds();
        let etag = numbers.next_etag(now);
        let link = old.body["_self"].as_str().unwrap_or_default().to_owned();
        let document = complete(body.fields, &found.rid(), &link, &etag, now);
        let same_policy = old.policy == body.policy;
        // One that was not finished is begun again.
        let is_whole = old.index == IndexState::Ready;
        let rebuild = !same_policy || !is_whole || old.default_ttl != body.default_ttl;
        let shape = Shape {
            schema: schema_of(&document, &old.scripts),
            body: document.clone(),
            etag: etag.clone(),
            tracked: if same_policy { old.tracked.clone() } else { body.policy.explicit.clone() },
            policy: body.policy,
            index: if rebuild { IndexState::Building } else { IndexState::Ready },
            default_ttl: body.default_ttl,
            retention: self.retention(body.retention),
            ..(*old).clone()
        };
        self.commit(Batch { changes: vec![Change::Put(key::meta(), numbers.to_record().into())] })?;
        *control = numbers;
        let ticket = self.reshape(&found, &shape)?;
        Ok(reply(200, document, etag, found.rid(), Some(ticket)))
    }

    /// Removes a container and its items.
    ///
    /// # Errors
    /// 404, 412.
    pub fn delete_container(
        &self,
        database: &str,
        container: &str,
        if_match: Option<&str>,
    ) -> Result<ResourceReply, Failure> {
        let control = self.control();
        let mut catalog = self.catalog_mut();
        let owner = catalog.database(database)?;
        let found = Arc::clone(owner.container(container)?);
        check_match(if_match, &found.shape().etag)?;
        let owner = owner.number;
        let mut changes = vec![Change::Delete(key::container(found.number))];
        changes.extend(found.purges());
        let ticket = self.commit(Batch { changes })?;
        if let Some(owner) = catalog.databases.get_mut(&owner) {
            owner.containers.remove(&found.number);
            owner.names.remove(found.name());
        }
        drop(catalog);
        found.mark_deleted();
        drop(control);
        Ok(reply(204, Value::Null, String::new(), found.rid(), Some(ticket)))
    }

    /// The container a request is for, by names or resource ids.
    ///
    /// # Errors
    /// 404/1003 when it or its database is not there.
    pub fn container(&self, database: &str, container: &str) -> Result<Arc<Container>, Failure> {
        let catalog = self.catalog();
        let database = catalog.database(database).map_err(owner_not_found)?;
        database.container(container).map(Arc::clone).map_err(owner_not_found)
    }

    /// The same container as a region has it.
    ///
    /// # Errors
    /// 404/1003 when it or its database is not there.
    pub fn container_in(
        &self,
        region: RegionId,
        database: &str,
        container: &str,
    ) -> Result<Arc<Container>, Failure> {
        let container = self.container(database, container)?;
        if region == RegionId::FIRST { Ok(container) } else { Ok(Arc::new(container.in_region(region))) }
    }

    /// The partition-key ranges, or 304 if `if_none_match` is the current etag.
    ///
    /// # Errors
    /// 404 when the container is gone.
    pub fn ranges(&self, container: &Container, if_none_match: Option<&str>) -> Result<RangesReply, Failure> {
        let shape = self.current_shape(container)?;
        let etag = shape.partitions_etag();
        if if_none_match.is_some_and(|seen| crate::engine::document::etag_matches(seen, &etag)) {
            return Ok(RangesReply { status: 304, ranges: Vec::new(), etag, charge: quota::METADATA });
        }
        // Whoever knows an earlier state gets what is new since; the parents of that tell what is gone.
        let seen = if_none_match.and_then(|etag| etag.trim().trim_matches('"').parse::<u64>().ok());
        let seen = seen.filter(|seen| *seen < shape.partitions_version).unwrap_or(0);
        let fraction = 1.0 / shape.partitions.len() as f64;
        let fraction = crate::engine::json::normal_number(fraction).map_or(Value::Null, Value::Number);
        let ranges = shape
            .partitions_in(container.region)
            .iter()
            .filter(|partition| seen == 0 || partition.lineage.born > seen)
            .map(|partition| {
                let rid = container.rid.partition_key_range(u64::from(partition.id()) + 2).to_string();
                let container_link = shape.body["_self"].as_str().unwrap_or_default();
                json!({
                    "_rid": rid,
                    "id": partition.id().to_string(),
                    "_etag": shape.etag,
                    "minInclusive": partition.range.min.to_hex(),
                    "maxExclusive": partition.range.max.to_hex(),
                    "ridPrefix": partition.id(),
                    "_self": format!("{container_link}pkranges/{rid}/"),
                    "throughputFraction": fraction,
                    "status": if partition.check_gate().is_ok() { "online" } else { "splitting" },
                    "parents": partition.lineage.parents,
                    "ownedArchivalPKRangeIds": [],
                    "_ts": shape.body["_ts"],
                    "lsn": partition.lsn(),
                })
            })
            .collect();
        Ok(RangesReply { status: 200, ranges, etag, charge: quota::METADATA })
    }
}

fn reply(
    status: u16,
    body: Value,
    etag: String,
    rid: String,
    ticket: Option<crate::storage::Ticket>,
) -> ResourceReply {
    ResourceReply { status, body, etag, rid, charge: quota::METADATA, ticket }
}

fn complete(mut fields: Map<String, Value>, rid: &str, link: &str, etag: &str, now: u64) -> Value {
    fields.insert("_rid".into(), json!(rid));
    fields.insert("_ts".into(), json!(now));
    fields.insert("_self".into(), json!(link));
    fields.insert("_etag".into(), json!(etag));
    for (name, value) in [
        ("_docs", "docs/"),
        ("_sprocs", "sprocs/"),
        ("_triggers", "triggers/"),
        ("_udfs", "udfs/"),
        ("_conflicts", "conflicts/"),
    ] {
        fields.insert(name.into(), json!(value));
    }
    Value::Object(fields)
}

/// Containers that can share the throughput of their database.
const SHARING_MAX: usize = 25;

fn check_unchanged(container: &Container, old: &Shape, new: &ContainerBody) -> Result<(), Failure> {
    if new.name != container.name() {
        return Err(Failure::bad_request(format!(
            "The 'id' of a container cannot be changed: the body says '{}', the address '{}'.",
            new.name,
            container.name()
        )));
    }
    if new.definition != *container.partition_key() {
        return Err(Failure::bad_request("Document collection partition key cannot be changed."));
    }
    vector::check_unchanged(&old.body, &new.fields)?;
    encryption::check_unchanged(&old.body, &new.fields)?;
    if new.unique_keys != old.unique_keys {
        return Err(Failure::bad_request(
            "The unique keys of a container cannot be changed after it was created.",
        ));
    }
    Ok(())
}
