//! What the driver knows about the account and its containers, and how it learns it.
//!
//! The account document is read when the driver is built, every few minutes after, and on demand when the service
//! says that something moved; containers and their ranges are read when first used and when the service says they
//! changed. Readers take snapshots; refreshes are single-flight.

pub(crate) mod account;
pub(crate) mod container;
pub(crate) mod ranges;
