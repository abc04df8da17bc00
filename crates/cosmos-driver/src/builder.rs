//! From configuration to driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderValue;

use crate::attempt::sign::Dates;
use crate::clock::Clock;
use crate::config::{
    Breaker, Config, Connections, Hedging, Regions, Requirements, Retry, Sharding, Timeouts, variable,
};
use crate::credential::Credential;
use crate::driver::{Core, Driver};
use crate::error::Error;
use crate::metadata::account::{RefreshLimit, refresh};
use crate::meters::Meters;
use crate::operation::threshold::{HedgeBudget, LatencyBook};
use crate::routing::account::AccountRoutes;
use crate::routing::{Endpoint, Router};
use crate::transport::{Address, CustomTransport, Transport, TransportPlug};

/// Collects what a driver needs. Made by [`Driver::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    endpoint: String,
    credential: Credential,
    config: Config,
    #[cfg(feature = "fault-injection")]
    faults: Arc<crate::transport::fault::Faults>,
}

impl Builder {
    pub(crate) fn new(endpoint: String, credential: Credential) -> Self {
        Self {
            endpoint,
            credential,
            config: Config::default(),
            #[cfg(feature = "fault-injection")]
            faults: Arc::default(),
        }
    }

    /// Replaces the whole configuration.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets where requests go.
    pub fn regions(mut self, regions: Regions) -> Self {
        self.config.regions = regions;
        self
    }

    /// Sets the regions to use, best first.
    pub fn preferred_regions(mut self, regions: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.config.regions.preferred = regions.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how long things may take.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.config.timeouts = timeouts;
        self
    }

    /// Sets how often things are tried.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.config.retry = retry;
        self
    }

    /// Sets sockets, TLS and protocol.
    pub fn connections(mut self, connections: Connections) -> Self {
        self.config.connections = connections;
        self
    }

    /// Sets connections per endpoint and their health.
    pub fn sharding(mut self, sharding: Sharding) -> Self {
        self.config.sharding = sharding;
        self
    }

    /// Sets hedging.
    pub fn hedging(mut self, hedging: Hedging) -> Self {
        self.config.hedging = hedging;
        self
    }

    /// Sets the partition circuit breaker.
    pub fn breaker(mut self, breaker: Breaker) -> Self {
        self.config.breaker = breaker;
        self
    }

    /// Sets what the account must promise.
    pub fn requirements(mut self, requirements: Requirements) -> Self {
        self.config.requirements = requirements;
        self
    }

    /// Names the application in the user agent.
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.config.application_name = Some(name.into());
        self
    }

    /// Carries requests by a transport of your own, in place of sockets.
    pub fn transport(mut self, transport: impl CustomTransport + 'static) -> Self {
        self.config.transport = Some(TransportPlug::new(transport));
        self
    }

    /// Lays the environment over the configuration; see [`Config::with_env`].
    ///
    /// # Errors
    /// When a variable is set to nonsense.
    pub fn with_env(mut self) -> Result<Self, Error> {
        self.config = self.config.with_env()?;
        Ok(self)
    }

    /// Installs fault rules below the connection pools.
    #[cfg(feature = "fault-injection")]
    pub fn faults(mut self, faults: Arc<crate::transport::fault::Faults>) -> Self {
        self.faults = faults;
        self
    }

    /// Reads the account and starts the driver. Needs a tokio runtime with timers and sockets.
    ///
    /// # Errors
    /// When the configuration is invalid, no endpoint of the account answers, or the account does not promise what is
    /// required.
    pub async fn build(mut self) -> Result<Driver, Error> {
        self.config = self.config.filled(variable)?;
        self.config.validate()?;
        self.config.bound();
        let address = Address::parse(&self.endpoint)?;
        let clock = Clock::new(self.config.seed);
        let transport = Transport::new(
            &self.config.connections,
            self.config.transport.clone(),
            &self.config.sharding,
            clock.clone(),
            #[cfg(feature = "fault-injection")]
            self.faults,
        )?;
        let default = Arc::new(Endpoint { region: "default".into(), address });
        let core = Arc::new(Core {
            user_agent: user_agent(self.config.application_name.as_deref())?,
            hedge_budget: HedgeBudget::new(&self.config.hedging),
            config: self.config,
            clock,
            credential: self.credential,
            dates: Dates::default(),
            transport,
            router: Router::new(AccountRoutes::bootstrap(default)),
            refresh_limit: RefreshLimit::new(),
            latencies: LatencyBook::default(),
            meters: Meters::new(),
            plans: crate::query::Plans::default(),
            containers: ArcSwap::from_pointee(BTreeMap::new()),
        });
        refresh(&core).await?;
        if let Some(unmet) = core.router.account().unmet(core.config.requirements) {
            return Err(Error::account_unfit(unmet));
        }
        Ok(Driver::new(core))
    }
}

fn user_agent(application: Option<&str>) -> Result<HeaderValue, Error> {
    let own = concat!("cosmos-driver/", env!("CARGO_PKG_VERSION"));
    match application {
        None => Ok(HeaderValue::from_static(own)),
        Some(name) => HeaderValue::try_from(format!("{own} {name}")).map_err(|_| {
            Error::configuration(format!("application name {name:?} cannot be sent in a header"))
        }),
    }
}
