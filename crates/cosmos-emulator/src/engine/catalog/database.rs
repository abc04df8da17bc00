//! Databases.

use serde_json::{Value, json};

use super::offer::Offer;
use super::{Database, body, check_match, record, taken};
use crate::Failure;
use crate::engine::request::{ResourceFeed, ResourceReply, Throughput};
use crate::engine::{Engine, key, quota};
use crate::storage::{Batch, Change};

impl Engine {
    /// Creates a database from its body `{"id": ..}`.
    ///
    /// # Errors
    /// 400 for a body or throughput the service refuses, 409 for a name that is taken.
    pub fn create_database(
        &self,
        body: &[u8],
        throughput: Option<Throughput>,
    ) -> Result<ResourceReply, Failure> {
        let name = body::name(&body::object(body)?)?;
        let throughput = self.check_throughput(throughput)?;
        let mut control = self.control();
        if self.catalog().names.contains_key(&name) {
            return Err(taken());
        }
        let mut numbers = control.clone();
        numbers.database += 1;
        let now = self.clock().now_seconds();
        let rid = numbers.database_rid();
        let link = format!("dbs/{rid}/");
        let etag = numbers.next_etag(now);
        let offer = throughput.map(|throughput| {
            numbers.offer += 1;
            let etag = numbers.next_etag(now);
            let rid_text = rid.to_string();
            Offer {
                rid: numbers.offer_rid(),
                resource: link.clone(),
                resource_rid: rid_text,
                throughput,
                etag,
                timestamp: now,
            }
        });
        let document = json!({"id": name, "_rid": rid.to_string(), "_self": link, "_etag": etag, "_colls": "colls/",
            "_users": "users/", "_ts": now});
        let database = Database {
            number: numbers.database,
            name: name.clone(),
            rid,
            body: document.clone(),
            offer,
            containers: Default::default(),
            names: Default::default(),
            users: Default::default(),
            encryption_keys: Default::default(),
        };
        let batch = Batch {
            changes: vec![
                Change::Put(key::meta(), numbers.to_record().into()),
                Change::Put(key::database(database.number), record::database_record(&database).into()),
            ],
        };
        let ticket = self.commit(batch)?;
        let mut catalog = self.catalog_mut();
        catalog.names.insert(name, database.number);
        catalog.databases.insert(database.number, database);
        *control = numbers;
        Ok(ResourceReply {
            status: 201,
            body: document,
            etag,
            rid: rid.to_string(),
            charge: quota::METADATA,
            ticket: Some(ticket),
        })
    }

    /// Reads a database by name or resource id.
    ///
    /// # Errors
    /// 404.
    pub fn read_database(&self, database: &str) -> Result<ResourceReply, Failure> {
        let catalog = self.catalog();
        let database = catalog.database(database)?;
        Ok(ResourceReply {
            status: 200,
            body: database.body.clone(),
            etag: text(&database.body["_etag"]),
            rid: database.rid.to_string(),
            charge: quota::METADATA,
            ticket: None,
        })
    }

    /// All databases, in order of creation.
    ///
    /// # Errors
    /// None today.
    pub fn databases(&self) -> Result<ResourceFeed, Failure> {
        let resources = self.catalog().databases.values().map(|database| database.body.clone()).collect();
        Ok(ResourceFeed { rid: String::new(), resources, charge: quota::METADATA })
    }

    /// Removes a database and its containers; `if_match` is the etag header.
    ///
    /// # Errors
    /// 404, 412.
    pub fn delete_database(&self, database: &str, if_match: Option<&str>) -> Result<ResourceReply, Failure> {
        let control = self.control();
        let mut catalog = self.catalog_mut();
        let found = catalog.database(database)?;
        check_match(if_match, &text(&found.body["_etag"]))?;
        let number = found.number;
        let mut changes = vec![Change::Delete(key::database(number))];
        changes.extend(found.users.keys().map(|user| Change::Delete(key::user(number, *user))));
        let keys = found.encryption_keys.keys();
        changes.extend(keys.map(|own| Change::Delete(key::encryption_key(number, *own))));
        for container in found.containers.values() {
            changes.push(Change::Delete(key::container(container.number)));
            changes.extend(container.purges());
        }
        let ticket = self.commit(Batch { changes })?;
        let Some(gone) = catalog.databases.remove(&number) else { return Err(super::not_found()) };
        catalog.names.remove(&gone.name);
        drop(catalog);
        for container in gone.containers.values() {
            container.mark_deleted();
        }
        drop(control);
        Ok(ResourceReply {
            status: 204,
            body: Value::Null,
            etag: String::new(),
            rid: gone.rid.to_string(),
            charge: quota::METADATA,
            ticket: Some(ticket),
        })
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
