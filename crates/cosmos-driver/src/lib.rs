//! A lean Cosmos DB NoSQL driver with control over every request.
//!
//! It speaks the gateway protocol over HTTP/2 (several connections per endpoint) or HTTP/1.1, and the frames of Gateway
//! 2.0 where an account has it; fails over between regions, hedges slow reads, respects sessions and deadlines, and never
//! repeats a write that may have happened unless that is harmless or allowed. It is not an object mapper: items are JSON bytes, with `serde` on top.
//!
//! Life of a call: a handle ([`Container`], [`Database`]) checks limits and builds an operation; the operation
//! pipeline routes, attempts, decides and applies until there is an answer; an attempt builds, signs and sends one
//! request; the transport carries it on one of the endpoint's connections.
//!
//! ```
//! use cosmos_driver::{CallOptions, ContainerProperties, Credential, Driver, ItemOptions, Query, QueryOptions, Scope};
//! use serde_json::{Value, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let emulator = cosmos_emulator::Emulator::start(cosmos_emulator::Config::default())?;
//! let driver = Driver::builder(emulator.endpoint(), Credential::emulator()).build().await?;
//! driver.create_database("shop", CallOptions::default()).await?;
//! let orders = ContainerProperties::new("orders", &["/customer"]);
//! driver.database("shop").create_container(&orders, None, CallOptions::default()).await?;
//! let orders = driver.container("shop", "orders")?;
//!
//! let order = json!({ "id": "1", "customer": "ada", "total": 12 });
//! let created = orders.create_item("ada", &order, ItemOptions::default()).await?;
//! println!("{} request units", created.charge());
//!
//! let query = Query::new("SELECT * FROM c WHERE c.total > @least").with("@least", 10);
//! let found: Vec<Value> = orders.query(query, Scope::Container, QueryOptions::default()).collect().await?;
//! assert_eq!(found.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! | feature | adds |
//! |---|---|
//! | `fault-injection` | `fault`: rules that break requests below the connection pools |
//! | `entra` | `Credential::token`: Microsoft Entra tokens through `azure_core` |
//! | `identity` | `Credential::identity`: those of the identities that `azure_identity` finds on a machine |

mod attempt;
mod batch;
mod body;
mod builder;
mod bulk;
mod change_feed;
mod clock;
mod config;
mod container;
mod credential;
mod database;
mod diagnostics;
mod driver;
#[cfg(feature = "entra")]
mod entra;
mod error;
#[cfg(feature = "identity")]
mod identity;
mod limits;
mod metadata;
mod meters;
mod operation;
mod options;
mod patch;
mod proxy;
mod query;
mod read_many;
mod request;
mod response;
mod routing;
mod throughput;
mod transport;

pub use batch::{Batch, BatchResponse, BatchResult};
pub use builder::Builder;
pub use bulk::{Bulk, BulkResponse};
pub use change_feed::{ChangeFeed, ChangeFeedStart, ChangePage};
pub use config::{
    Breaker, Certificates, Config, Connections, Environment, Hedging, HedgingMode, HedgingSwitch,
    Negotiation, Regions, Requirements, Retry, Sharding, Timeouts,
};
pub use container::properties::{ContainerProperties, PartitionKeyPaths};
pub use container::{Container, FeedRange, ToBody};
pub use cosmos_wire::partition_key::PartitionKey;
pub use credential::Credential;
pub use database::Database;
pub use diagnostics::{Attempt, Context, Delivery, Diagnostics, LateCharge, Protocol};
pub use driver::Driver;
pub use error::{Error, ErrorKind};
#[cfg(feature = "identity")]
pub use identity::Identity;
pub use options::{
    CallOptions, Consistency, ContentResponse, ItemOptions, OnUnknown, ReadConsistencyStrategy, Throughput,
};
pub use patch::Patch;
pub use proxy::{Proxy, ProxyServer};
pub use query::{Page, Pager, Query, QueryOptions, Scope};
pub use read_many::ManyItems;
pub use response::Response;
pub use transport::{
    CustomTransport, EvictionReason, Exchange, PoolSnapshot, ShardSnapshot, TransportError, TransportPlug,
};

/// Rules that break requests on purpose, below the connection pools.
#[cfg(feature = "fault-injection")]
pub mod fault {
    pub use crate::transport::fault::{Fault, Faults, Rule, RuleGuard};
}
