//! Documents that are where work is looked for and cannot be read: somebody else's, or damaged. A search passes them
//! over and goes on with the others.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::decode;
use crate::error::Fault;

/// Which of them were mentioned already: each is met again by every search.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    told: Mutex<HashSet<u64>>,
}

/// What is read of a row that cannot be read as what it should be.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Traces {
    id: serde_json::Value,
    instance_id: serde_json::Value,
    visible_at: f64,
}

impl Strays {
    /// Reads a row of a search. One that cannot be read is mentioned the first time it is met.
    pub(crate) fn read<T: serde::de::DeserializeOwned>(
        &self,
        operation: &'static str,
        row: &RawValue,
    ) -> Option<T> {
        match decode(row.get().as_bytes()) {
            Ok(row) => Some(row),
            Err(fault) => {
                self.meet(operation, row, &fault);
                None
            }
        }
    }

    /// A message whose text cannot be read is mentioned the first time it is met.
    pub(crate) fn pass_over(&self, operation: &'static str, instance: &str, id: &str, fault: &Fault) {
        if !self.is_new(&format!("{instance} {id}")) {
            return;
        }
        count(operation);
        tracing::warn!(
            operation, instance, id, %fault,
            "what is stored cannot be read and is passed over; a newer runtime may know its kind"
        );
    }

    /// A panic over what an instance has stored is mentioned once for each instance, and counted each time.
    pub(crate) fn panicked(&self, operation: &'static str, instance: &str, fault: &Fault) {
        metrics::counter!("duroxide_cdb_panics_total", "operation" => operation).increment(1);
        if self.is_new(&format!("panic {instance}")) {
            tracing::error!(operation, instance, %fault, "the others go on without this instance");
        }
    }

    /// A row that cannot be read is mentioned the first time it is met.
    pub(crate) fn meet(&self, operation: &'static str, row: &RawValue, fault: &Fault) {
        let traces = Traces::of(row);
        if !self.is_new(&traces.name(row)) {
            return;
        }
        count(operation);
        tracing::warn!(
            operation, instance = %traces.instance_id, id = %traces.id, %fault,
            "a document cannot be read and is passed over; `cdb why` tells more about its instance"
        );
    }

    /// Whether a document was not mentioned yet. After very many nothing is: they all have one cause.
    fn is_new(&self, name: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.len() < TOLD_MAX && told.insert(hasher.finish())
    }
}

fn count(operation: &'static str) {
    metrics::counter!("duroxide_cdb_unreadable_documents_total", "operation" => operation).increment(1);
}

impl Traces {
    fn of(row: &RawValue) -> Self {
        serde_json::from_str(row.get()).unwrap_or_default()
    }

    /// The same for every state of a document, if it has a name at all.
    fn name(&self, row: &RawValue) -> String {
        if self.id.is_null() { row.get().to_owned() } else { format!("{} {}", self.instance_id, self.id) }
    }
}

/// When a row of a search becomes visible, in whole milliseconds, whatever else is in it.
pub(crate) fn visible_at(row: &RawValue) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a search asks for times between zero and now"
    )]
    let whole = Traces::of(row).visible_at as u64;
    whole
}

const TOLD_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_document_that_cannot_be_read_is_mentioned_once_whatever_becomes_of_it() {
        let strays = Strays::default();
        let (one, changed) = (r#"{"id":"a","instanceId":"i"}"#, r#"{"id":"a","instanceId":"i","n":1}"#);
        let other = r#"{"id":"a","instanceId":"j"}"#;
        let told = [one, one, changed, other, "5", "5"].map(|text| {
            let row = row(text);
            strays.is_new(&Traces::of(&row).name(&row))
        });
        assert_eq!(told, [true, false, false, true, true, false]);
    }

    #[test]
    fn however_many_cannot_be_read_little_is_kept() {
        let strays = Strays::default();
        for n in 0..10 * TOLD_MAX {
            strays.is_new(&n.to_string());
        }
        assert_eq!(strays.told.lock().unwrap().len(), TOLD_MAX);
    }

    #[test]
    fn the_time_of_a_row_is_known_even_if_nothing_else_is() {
        assert_eq!(visible_at(&row(r#"{"visibleAt":17,"id":5}"#)), 17);
        assert_eq!(visible_at(&row(r#"{"visibleAt":17.9}"#)), 17);
        assert_eq!(visible_at(&row("[]")), 0);
    }
}
