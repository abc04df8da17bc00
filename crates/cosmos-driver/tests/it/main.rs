//! The driver over real sockets: against the emulator with its regions, faults and connections, and against a
//! make-believe account where the emulator is too well behaved.

mod account;
mod bulk;
mod dates;
#[cfg(feature = "entra")]
mod entra;
mod failover;
mod globe;
mod hole;
mod hostile;
mod items;
mod merge;
mod query;
mod ranges;
mod requirements;
mod resilience;
mod soak;
mod split;
mod transport;
mod world;
