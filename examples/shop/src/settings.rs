//! Settings, all of them from the environment: the same binary runs on a laptop and in a cluster.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::Provider;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use crate::workflows::Release;

/// What the programs are told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `COSMOS_ENDPOINT`, `COSMOS_KEY` or `COSMOS_ENTRA`, `COSMOS_DATABASE`, `COSMOS_CONTAINER`. With none of them set it
    /// is an emulator on this machine.
    pub store: CosmosDBProviderConfig,
    /// `SHOP_CONCURRENCY`: turns and activities at once, each (4).
    pub concurrency: usize,
    /// `SHOP_GRACE_SECONDS`: how long work in progress may take after SIGTERM (20). Stay below what the platform grants
    /// before it kills: 30 s in Kubernetes and Container Apps.
    pub grace: Duration,
    /// `SHOP_RELEASE`: which release's workflows are registered (1.1). It stands for an older build of this program.
    pub release: Release,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A sentence that names the variable.
    pub fn from_env() -> Result<Self, String> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let number = |name: &str, otherwise: u64| match set(name) {
            Some(text) => text.parse().map_err(|_| format!("{name} is {text:?}, which is no number")),
            None => Ok(otherwise),
        };
        Ok(Self {
            store: CosmosDBProviderConfig::from_env().map_err(|error| error.message)?,
            concurrency: usize::try_from(number("SHOP_CONCURRENCY", 4)?).unwrap_or(4).clamp(1, 64),
            grace: Duration::from_secs(number("SHOP_GRACE_SECONDS", 20)?),
            release: match set("SHOP_RELEASE").as_deref() {
                None | Some("1.1") => Release::Second,
                Some("1.0") => Release::First,
                Some(other) => return Err(format!("SHOP_RELEASE is {other:?}: it is 1.0 or 1.1")),
            },
        })
    }

    /// Opens the container; the first to come makes it, if it signs in with a key.
    ///
    /// # Errors
    /// What the account says.
    pub async fn open(&self) -> Result<Arc<dyn Provider>, String> {
        let provider = Box::pin(CosmosDBProvider::new_with_config(self.store.clone())).await;
        Ok(Arc::new(provider.map_err(|error| error.to_string())?))
    }
}
