//! The driver: what all handles share.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderValue;

use crate::attempt::sign::Dates;
use crate::builder::Builder;
use crate::clock::Clock;
use crate::config::Config;
use crate::container::Container;
use crate::credential::Credential;
use crate::database::Database;
use crate::error::Error;
use crate::metadata::account::{Caretaker, RefreshLimit};
use crate::metadata::container::ContainerCell;
use crate::meters::Meters;
use crate::operation::threshold::{HedgeBudget, LatencyBook};
use crate::options::CallOptions;
use crate::response::Response;
use crate::routing::Router;
use crate::transport::{PoolSnapshot, Transport};

/// A connection to one account. Cheap to clone; the last clone closes its connections.
#[derive(Clone, Debug)]
pub struct Driver {
    pub(crate) core: Arc<Core>,
    _caretaker: Arc<Caretaker>,
}

/// Everything operations share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) credential: Credential,
    pub(crate) user_agent: HeaderValue,
    pub(crate) dates: Dates,
    pub(crate) transport: Transport,
    pub(crate) router: Router,
    pub(crate) refresh_limit: RefreshLimit,
    pub(crate) latencies: LatencyBook,
    pub(crate) hedge_budget: HedgeBudget,
    pub(crate) meters: Meters,
    pub(crate) plans: crate::query::Plans,
    pub(crate) containers: ArcSwap<BTreeMap<(String, String), Arc<ContainerCell>>>,
}

impl Core {
    /// The shared knowledge about a container name.
    pub(crate) fn cell(&self, database: &str, id: &str) -> Result<Arc<ContainerCell>, Error> {
        let key = (database.to_owned(), id.to_owned());
        if let Some(cell) = self.containers.load().get(&key) {
            return Ok(cell.clone());
        }
        let fresh = Arc::new(ContainerCell::new(database, id)?);
        self.containers.rcu(|cells| {
            let mut cells = BTreeMap::clone(cells);
            cells.entry(key.clone()).or_insert_with(|| fresh.clone());
            cells
        });
        Ok(self.containers.load().get(&key).cloned().unwrap_or(fresh))
    }
}

impl Driver {
    /// Starts building a driver for the account at `endpoint`.
    pub fn builder(endpoint: impl Into<String>, credential: Credential) -> Builder {
        Builder::new(endpoint.into(), credential)
    }

    pub(crate) fn new(core: Arc<Core>) -> Self {
        let caretaker = Arc::new(Caretaker::start(&core));
        Self { core, _caretaker: caretaker }
    }

    /// A database by name. Nothing is sent.
    #[must_use]
    pub fn database(&self, id: impl Into<String>) -> Database {
        Database::new(self.clone(), id.into())
    }

    /// A container by name. Nothing is sent.
    ///
    /// # Errors
    /// When one of the names cannot be one.
    pub fn container(&self, database: &str, id: &str) -> Result<Container, Error> {
        Ok(Container::new(self.clone(), self.core.cell(database, id)?))
    }

    /// Creates a database; an existing one is a conflict.
    ///
    /// # Errors
    /// As any operation.
    pub async fn create_database(&self, id: &str, options: CallOptions) -> Result<Response, Error> {
        self.database(id).create(options).await
    }

    /// One page of the account's databases.
    ///
    /// # Errors
    /// As any operation.
    pub async fn list_databases(
        &self,
        continuation: Option<&str>,
        options: CallOptions,
    ) -> Result<Response, Error> {
        crate::database::list_databases(self, continuation, &options).await
    }

    /// What the connections are doing, per endpoint.
    #[must_use]
    pub fn connections(&self) -> Vec<PoolSnapshot> {
        self.core.transport.snapshot()
    }

    /// The regions reads go to, best first.
    #[must_use]
    pub fn read_regions(&self) -> Vec<String> {
        self.core.router.account().reads.iter().map(|endpoint| endpoint.region.to_string()).collect()
    }

    /// The regions writes go to, best first.
    #[must_use]
    pub fn write_regions(&self) -> Vec<String> {
        self.core.router.account().writes.iter().map(|endpoint| endpoint.region.to_string()).collect()
    }

    /// The Gateway 2.0 endpoints the account advertises; empty when it has none.
    #[must_use]
    pub fn gateway2_endpoints(&self) -> Vec<String> {
        self.core.router.account().gateway2.announced.clone()
    }

    /// Those of them that operations on items use now: they may be asked, and have answered.
    #[must_use]
    pub fn gateway2_in_use(&self) -> Vec<String> {
        self.core.router.account().gateway2.in_use().map(|address| format!("{address}/")).collect()
    }

    /// Reads the account's regions again now.
    ///
    /// # Errors
    /// When no endpoint answers.
    pub async fn refresh_account(&self) -> Result<(), Error> {
        crate::metadata::account::refresh(&self.core).await
    }
}
