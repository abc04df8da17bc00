//! A wire-compatible Cosmos DB NoSQL server, as a library and as `cdb emulator`.
//!
//! [`Emulator::start`] serves an account on a free port of the loopback interface, [`Emulator::handle`] answers a
//! request without any socket. What an account holds survives in a folder, or lives in memory.
//!
//! ```
//! use cosmos_emulator::{Config, Emulator, FaultRule, Operation};
//!
//! let emulator = Emulator::start(Config::default())?;
//! assert!(emulator.endpoint().starts_with("http://127.0.0.1:"));
//!
//! // The next two reads are throttled; the rule ends with its guard.
//! let _fault = emulator.faults().add(FaultRule::status(429, 3200).on(Operation::ReadItem).times(2));
//! assert_eq!(emulator.ledger().snapshot().totals.requests, 0);
//! # Ok::<(), cosmos_emulator::StartError>(())
//! ```
//!
//! It is a development and single-node server; production is Azure Cosmos DB. It therefore refuses what the service
//! refuses: a query that works here and fails there is a bug here.

mod blueprint;
pub mod clock;
mod command;
mod config;
mod emulator;
pub mod engine;
mod failure;
mod fault;
mod flusher;
mod guard;
mod http;
mod lanes;
mod ledger;
mod management;
mod operation;
mod partitions;
mod private;
mod regions;
mod script;
mod server;
pub mod sql;
pub mod storage;
mod tls;

pub use blueprint::{Blueprint, BlueprintError};
pub use clock::{Clock, ManualClock};
pub use config::{Auth, Config, Consistency, Entra, Fsync, Gateway, ReplicationDelay, Store, Tls, WriteMode};
pub use emulator::{Emulator, StartError};
pub use engine::{
    NewPartition, PartitionOperation, PartitionReport, Phase, Progression, Reshaping, SplitMode,
};
pub use failure::{Failure, Origin};
pub use fault::{FaultGuard, FaultRule, FaultState, Faults, Verdict};
pub use guard::{Asked, Guard, Refusal};
pub use ledger::{Ledger, LedgerLine, LedgerSnapshot, RequestRecord, Totals};
pub use operation::Operation;
pub use regions::{Failover, Offline, RegionError, RegionState, Regions, ReplicationLag};
pub use server::{Limits, Reset};
pub use tls::TlsError;
