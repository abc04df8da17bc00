//! What the workflows do to the world. An activity runs at least once: after a crash, or a lost lock, it runs again. So each
//! call of the outside carries a key that is the same every time, by which the outside knows that it has done it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use duroxide::ActivityContext;
use duroxide::runtime::registry::ActivityRegistry;

/// The warehouse, the bank, the carrier: here a list in memory of what was asked for.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    done: Arc<Mutex<BTreeMap<String, String>>>,
    /// Names of calls that are refused.
    refused: Arc<Mutex<Vec<String>>>,
}

impl Outside {
    /// Does it, unless this key was there before.
    fn call(&self, name: &str, order: &str, what: &str) -> Result<String, String> {
        if self.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|refused| refused == name) {
            return Err(format!("{name} was refused"));
        }
        let key = format!("{order}/{name}");
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = done.insert(key.clone(), what.to_owned()).is_none();
        tracing::info!(key, what, is_new, "called");
        Ok(key)
    }

    /// Refuses calls of this name from now on.
    pub fn refuse(&self, name: &str) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
    }

    /// The names of what was done for an order, in alphabetical order.
    #[must_use]
    pub fn done_for(&self, order: &str) -> Vec<String> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let prefix = format!("{order}/");
        done.keys().filter_map(|key| key.strip_prefix(&prefix)).map(str::to_owned).collect()
    }
}

/// One activity for each call.
#[must_use]
pub fn activities(outside: &Outside) -> ActivityRegistry {
    let mut builder = ActivityRegistry::builder();
    for name in ["Reserve", "Charge", "Ship", "Release", "Refund", "Ask"] {
        let outside = outside.clone();
        builder = builder.register(name, move |context: ActivityContext, what: String| {
            let outside = outside.clone();
            async move { outside.call(name, context.instance_id(), &what) }
        });
    }
    builder.build()
}
