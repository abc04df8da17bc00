//! A wire-compatible Cosmos DB NoSQL server, as a library and as `cdb emulator`.

pub mod clock;
pub mod engine;
mod failure;
pub mod sql;
pub mod storage;

pub use failure::Failure;
