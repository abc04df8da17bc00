//! The engine as a whole, on two stores that must agree.
#![allow(clippy::needless_pass_by_value, reason = "calls with json!() read better")]

mod batch;
mod catalog;
mod feed;
mod history;
mod items;
mod model;
mod moment;
mod order;
mod pages;
mod query;
mod regions;
mod script;
mod split;
mod users;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::partition_key::PartitionKey;
use serde_json::{Value, json};

use super::*;
use crate::clock::ManualClock;
use crate::storage::mirror::Mirror;
use crate::storage::{DiskStorage, Durability, MemoryStorage, Options};

/// 2026-11-15, in seconds.
const START: u64 = 1_794_700_800;

/// Pages that no query of these tests has.
const PAGES_MAX: usize = 200;

/// An account with the database `d` and the container `c`, and a clock that stands still.
struct World {
    engine: Engine,
    hand: ManualClock,
    folder: Option<tempfile::TempDir>,
}

impl World {
    /// On memory and disk at once, partition key `/pk`.
    fn new() -> Self {
        Self::with(json!({}))
    }

    /// The same, with more properties of the container.
    fn with(properties: Value) -> Self {
        Self::with_options(properties, EngineOptions::default())
    }

    fn with_options(properties: Value, options: EngineOptions) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let disk = DiskStorage::open(folder.path(), fast()).expect("a new store opens");
        let storage = Arc::new(Mirror::new(MemoryStorage::new(), disk));
        Self::on(storage, Some(folder), properties, options)
    }

    /// In memory only, for many documents.
    fn in_memory(properties: Value) -> Self {
        Self::on(Arc::new(MemoryStorage::new()), None, properties, EngineOptions::default())
    }

    /// On disk only, for many documents.
    fn on_disk(properties: Value) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let disk = DiskStorage::open(folder.path(), fast()).expect("a new store opens");
        Self::on(Arc::new(disk), Some(folder), properties, EngineOptions::default())
    }

    fn on(
        storage: Arc<dyn Storage>,
        folder: Option<tempfile::TempDir>,
        properties: Value,
        options: EngineOptions,
    ) -> Self {
        let (clock, hand) = Clock::manual(Duration::from_secs(START));
        let engine = Engine::open(storage, clock, options).expect("a new store opens");
        engine.create_database(br#"{"id":"d"}"#, None).expect("created");
        let world = Self { engine, hand, folder };
        world.create_container("c", properties).expect("created");
        world
    }

    /// The same account, read back from its folder.
    fn reopened(self) -> Self {
        let Self { engine, hand, folder } = self;
        let (clock, options) = (engine.clock().clone(), engine.options().clone());
        drop(engine);
        let path = folder.as_ref().expect("only a store on disk is opened again").path();
        let storage = Arc::new(DiskStorage::open(path, fast()).expect("the store opens again"));
        Self { engine: Engine::open(storage, clock, options).expect("the data is read again"), hand, folder }
    }

    fn create_container(&self, name: &str, properties: Value) -> Result<ResourceReply, Failure> {
        self.engine.create_container("d", container_body(name, properties).as_bytes(), None)
    }

    fn replace_container(&self, properties: Value) -> Result<ResourceReply, Failure> {
        self.engine.replace_container("d", "c", container_body("c", properties).as_bytes(), None)
    }

    fn container(&self) -> Arc<Container> {
        self.engine.container("d", "c").expect("the container is there")
    }

    fn item(&self, pk: &str, op: ItemOp) -> Result<ItemReply, Failure> {
        self.item_if(pk, op, Conditions::default())
    }

    fn item_if(&self, pk: &str, op: ItemOp, conditions: Conditions) -> Result<ItemReply, Failure> {
        let request = ItemRequest { partition_key: Some(key(pk)), op, conditions, session_token: None };
        self.engine.item(&self.container(), request)
    }

    fn create(&self, document: Value) -> Result<ItemReply, Failure> {
        self.item(&pk_of(&document), ItemOp::Create { body: text(&document) })
    }

    fn upsert(&self, document: Value) -> Result<ItemReply, Failure> {
        self.item(&pk_of(&document), ItemOp::Upsert { body: text(&document) })
    }

    fn read(&self, pk: &str, id: &str) -> Result<ItemReply, Failure> {
        self.item(pk, ItemOp::Read { id: id.into() })
    }

    fn delete(&self, pk: &str, id: &str) -> Result<ItemReply, Failure> {
        self.item(pk, ItemOp::Delete { id: id.into() })
    }

    fn patch(&self, pk: &str, id: &str, operations: Value) -> Result<ItemReply, Failure> {
        let patch = Patch::from_value(operations)?;
        self.item(pk, ItemOp::Patch { id: id.into(), patch })
    }

    /// All rows of a query, read page by page.
    fn query(&self, scope: &Scope, text: &str) -> Result<Vec<Value>, Failure> {
        self.query_pages(scope, text, PageSize::DEFAULT).map(|(rows, _)| rows)
    }

    /// All rows of a query and how many documents were read for them.
    fn query_pages(
        &self,
        scope: &Scope,
        text: &str,
        page_size: PageSize,
    ) -> Result<(Vec<Value>, u64), Failure> {
        let (mut rows, mut visited, mut continuation) = (Vec::new(), 0, None);
        loop {
            let page = self.engine.query(
                &self.container(),
                QueryRequest {
                    text: text.into(),
                    parameters: Vec::new(),
                    scope: scope.clone(),
                    page_size,
                    continuation,
                    session_token: None,
                    resume: None,
                },
            )?;
            rows.extend(page.rows);
            visited += page.documents_visited;
            continuation = page.continuation;
            if continuation.is_none() {
                return Ok((rows, visited));
            }
        }
    }

    /// The ids that a query brings in pages of so many rows; `meanwhile` happens behind the first of them.
    fn ids_around(&self, scope: &Scope, text: &str, rows: usize, meanwhile: impl FnOnce()) -> Vec<String> {
        let (mut found, mut continuation, mut meanwhile) = (Vec::new(), None, Some(meanwhile));
        for _ in 0..PAGES_MAX {
            let request = QueryRequest {
                text: text.into(),
                parameters: Vec::new(),
                scope: scope.clone(),
                page_size: PageSize::AtMost(rows),
                continuation,
                session_token: None,
                resume: None,
            };
            let page = self.engine.query(&self.container(), request).expect("served");
            found.extend(page.rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()));
            if let Some(meanwhile) = meanwhile.take() {
                meanwhile();
            }
            continuation = page.continuation;
            if continuation.is_none() {
                return found;
            }
        }
        panic!("the pages have no end: {found:?}");
    }

    fn ids(&self, scope: &Scope, text: &str) -> Vec<String> {
        let rows = self.query(scope, text).unwrap_or_else(|failure| panic!("{text}: {failure:?}"));
        rows.iter().map(|row| row["id"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

fn container_body(name: &str, properties: Value) -> String {
    let mut body = json!({"id": name, "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    for (name, value) in properties.as_object().expect("properties are an object") {
        body[name] = value.clone();
    }
    body.to_string()
}

fn fast() -> Options {
    Options { durability: Durability::OsBuffered, ..Options::default() }
}

fn key(pk: &str) -> PartitionKey {
    PartitionKey::new(vec![pk.into()])
}

fn in_key(pk: &str) -> Scope {
    Scope::PartitionKey(key(pk))
}

fn text(document: &Value) -> Bytes {
    Bytes::from(document.to_string())
}

fn pk_of(document: &Value) -> String {
    document["pk"].as_str().unwrap_or_default().to_owned()
}

fn body(reply: &ItemReply) -> Value {
    serde_json::from_slice(&reply.body).expect("bodies are JSON")
}

fn status<T>(result: Result<T, Failure>) -> (u16, u32) {
    match result {
        Ok(_) => (0, 0),
        Err(failure) => (failure.status, failure.sub_status),
    }
}

fn if_match(etag: &str) -> Conditions {
    Conditions { if_match: Some(etag.into()), if_none_match: None }
}

fn if_none_match(etag: &str) -> Conditions {
    Conditions { if_match: None, if_none_match: Some(etag.into()) }
}
