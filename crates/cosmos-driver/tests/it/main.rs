//! The driver over real sockets: against the emulator with its regions, faults and connections, and against a
//! make-believe account where the emulator is too well behaved.

mod account;
mod bulk;
mod dates;
mod diagnostics;
mod elastic;
#[cfg(feature = "entra")]
mod entra;
mod failover;
mod gateway2;
mod gateway2_hostile;
mod globe;
mod goaway;
mod hole;
mod hostile;
mod items;
mod merge;
mod partition_failover;
mod plug;
mod query;
mod racing;
mod ranges;
mod requirements;
mod resilience;
mod soak;
mod split;
mod strategy;
mod transport;
mod way;
mod world;
