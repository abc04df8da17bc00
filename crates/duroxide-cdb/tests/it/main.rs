//! The provider on the embedded emulator, over real sockets.

mod big;
mod budgets;
mod cut;
mod deaths;
mod effects;
mod fleet;
#[cfg(unix)]
mod fleet_processes;
mod flows;
mod hello;
mod kills;
mod layers;
mod legacy;
mod minimum;
mod obstacles;
mod overload;
mod remains;
mod retention;
mod samples;
mod scale;
#[cfg(feature = "aes-gcm")]
mod sealed;
mod single_faults;
mod stress;
mod sweep;
mod tap;
mod telling;
mod trouble;
mod validation;
mod windows;
mod world;
