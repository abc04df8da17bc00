//! What the pages ask for, one file for each of them. Every answer says what it cost.

pub(super) mod act;
pub(super) mod care;
pub(super) mod emulator;
pub(super) mod explorer;
pub(super) mod instance;
pub(super) mod instances;
pub(super) mod lists;
pub(super) mod overview;

use serde_json::{Value, json};

use super::Store;
use crate::clock::now_ms;
use crate::documents::Documents;

/// An answer with the time and its cost, which is added to what this dashboard has spent.
fn told(store: &Store, documents: &Documents, mut answer: Value) -> Value {
    let (requests, units) = documents.meter().read();
    answer["now"] = json!(now_ms());
    answer["cost"] = json!({"requests": requests, "units": units, "spent": store.live.charge(units)});
    answer
}
