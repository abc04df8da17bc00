//! The driver over real sockets: against the emulator, and against a make-believe account of several regions.

mod account;
mod bulk;
#[cfg(feature = "entra")]
mod entra;
mod failover;
mod hole;
mod items;
mod query;
mod resilience;
mod soak;
mod split;
mod transport;
mod world;
