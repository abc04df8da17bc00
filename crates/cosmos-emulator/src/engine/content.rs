//! What a write puts in the place of an item. Nearly all of it is made before the partition is held, where only one
//! writer can be: the text, and what the index will say.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::container::{Container, Shape};
use super::document::{self, Draft, Stamp};
use super::index::terms::{self, Terms};

/// A new content for an item.
pub(crate) struct Content {
    pub(crate) id: String,
    pub(crate) document: Value,
    /// The value of the store up to what the write adds.
    text: Vec<u8>,
    foreseen: Option<Foreseen>,
}

/// Terms of the index, if the policy and the second stay what they are.
struct Foreseen {
    shape: Arc<Shape>,
    timestamp: u64,
    terms: Terms,
}

impl Content {
    pub(crate) fn new(container: &Container, shape: &Arc<Shape>, draft: Draft, timestamp: u64) -> Self {
        let Draft { id, fields, ttl } = draft;
        let text = document::begin_stored(container, &fields, ttl);
        let document = Value::Object(fields);
        // Composites may contain the resource id, which the write decides.
        let foreseen = shape.policy.composites.is_empty().then(|| Foreseen {
            terms: terms::terms(&document, timestamp, 0, &shape.policy, &shape.tracked),
            shape: Arc::clone(shape),
            timestamp,
        });
        Self { id, document, text, foreseen }
    }

    /// The value of the store. Whoever asked for it has it: there is no second.
    pub(crate) fn take_stored(&mut self, container: &Container, stamp: Stamp) -> Bytes {
        document::finish_stored(std::mem::take(&mut self.text), container, stamp)
    }

    /// What the index says of it.
    pub(crate) fn take_terms(&mut self, shape: &Arc<Shape>, timestamp: u64, rid: u64) -> Terms {
        match self.foreseen.take() {
            Some(foreseen) if foreseen.timestamp == timestamp && Arc::ptr_eq(&foreseen.shape, shape) => {
                foreseen.terms
            }
            Some(_) | None => terms::terms(&self.document, timestamp, rid, &shape.policy, &shape.tracked),
        }
    }
}
