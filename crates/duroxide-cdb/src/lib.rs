//! The Cosmos DB storage provider of [duroxide](https://crates.io/crates/duroxide).
//!
//! Durable orchestrations with Azure Cosmos DB as the only infrastructure: every rule of duroxide's storage contract,
//! each turn committed in exactly one transactional batch, and every unanswered request settled before a call returns.
//!
//! ```no_run
//! # async fn example() -> Result<(), duroxide::providers::ProviderError> {
//! let provider = duroxide_cdb::CosmosDBProvider::new("https://account.documents.azure.com", "key", "flows").await?;
//! # drop(provider);
//! # Ok(())
//! # }
//! ```
//!
//! What it is not: a queue or a database of its own. It needs one container with the partition key `/instanceId`,
//! which it creates, or checks, when it is opened. Containers written by the public crate up to 0.1.10 are opened and
//! their running orchestrations are carried on.

mod admin;
mod bootstrap;
mod cache;
mod claims;
mod clock;
mod codec;
mod config;
mod contain;
mod core;
mod documents;
mod elders;
mod error;
mod finder;
mod fleet;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod habits;
mod history;
#[doc(hidden)]
pub mod inspect;
mod keeper;
mod layout;
mod lease;
mod ledger;
mod load;
mod looks;
mod membership;
mod operate;
mod orchestration;
mod outbox;
mod outbox_faults;
mod parallel;
mod poll;
mod provider;
mod queries;
mod queue;
mod reconciler;
mod retention;
mod session;
mod slot_leases;
mod slots;
mod staging;
mod status;
mod store;
mod telemetry;
mod token;
mod weather;
mod work;

pub use admin::bulk::{BulkMode, BulkProgress};
pub use bootstrap::container_definition;
#[cfg(feature = "aes-gcm")]
pub use codec::AesGcmCodec;
pub use codec::{CodecError, OpenError, PayloadCodec, open_payload, sealed_with};
pub use config::CosmosDBProviderConfig;
pub use cosmos_driver;
pub use documents::{FORMAT_VERSION, is_reserved, kind, unpack, unpack_events, unreadable};
pub use error::{is_access_refused, is_damage};
pub use fleet::{
    CosmosLeaseProvider, InMemoryLeaseProvider, LeaseProvider, MemberReport, NoLeases, OtherShare,
    ServedWork, Serves, SlotShare,
};
pub use keeper::{RetentionProgress, RetentionRow};
pub use ledger::{LedgerSnapshot, Spending};
pub use outbox::DeadLetterInfo;
pub use outbox_faults::OutboxFaultInjector;
pub use provider::CosmosDBProvider;
pub use retention::{Ending, Retention, RetentionError, RetentionRule, may_expire};
pub use slots::{SlotSet, of as slot_of};
