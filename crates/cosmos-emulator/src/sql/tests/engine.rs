//! The scripts over the real engine, with its index and its continuations, on memory and disk at once.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use cosmos_wire::partition_key::PartitionKey;
use serde_json::json;

use super::super::Page;
use super::script::{now, scripts};
use crate::Clock;
use crate::engine::{Conditions, Engine, EngineOptions, ItemOp, ItemRequest, PageSize, QueryRequest, Scope};
use crate::storage::mirror::Mirror;
use crate::storage::{DiskStorage, Durability, MemoryStorage, Options};

#[test]
fn every_script_holds_over_the_engine() {
    for script in scripts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options { durability: Durability::OsBuffered, ..Options::default() };
        let disk = DiskStorage::open(folder.path(), options).expect("a new store opens");
        let storage = Arc::new(Mirror::new(MemoryStorage::new(), disk));
        let (clock, _hand) = Clock::manual(now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970"));
        let engine = Engine::open(storage, clock, EngineOptions::default()).expect("a new store opens");
        engine.create_database(br#"{"id":"d"}"#, None).expect("created");
        let composite = [[json!({"path": "/a"}), json!({"path": "/b", "order": "descending"})]];
        let body = json!({
            "id": "c",
            "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
            "indexingPolicy": {"compositeIndexes": composite},
        });
        engine.create_container("d", body.to_string().as_bytes(), None).expect("created");
        let container = engine.container("d", "c").expect("the container");
        for document in &script.documents {
            let request = ItemRequest {
                partition_key: Some(PartitionKey::undefined()),
                op: ItemOp::Create { body: Bytes::from(document.to_string()) },
                conditions: Conditions::default(),
                session_token: None,
            };
            engine.item(&container, request).expect("created");
        }
        script.run_with(&mut |ask| {
            let request = QueryRequest {
                text: ask.text.to_owned(),
                parameters: ask.parameters.to_vec(),
                scope: Scope::All,
                page_size: PageSize::AtMost(ask.limits.items_max),
                continuation: ask.continuation.map(str::to_owned),
                session_token: None,
                resume: None,
            };
            let page = engine.query(&container, request)?;
            Ok(Page { rows: page.rows, continuation: page.continuation, ..Page::default() })
        });
    }
}
