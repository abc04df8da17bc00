//! The `cdb` binary as people and scripts run it.

mod archive;
mod caring;
mod costs;
mod crash;
mod demo;
mod emulator;
mod entra;
mod environment;
mod errors;
mod figures;
mod fleet;
#[cfg(target_os = "linux")]
mod full;
mod hostile;
mod looking;
mod mending;
mod pages;
mod process;
mod removing;
mod sending;
mod stage;
mod stress;
mod terminal;
mod tidy;
mod trying;
mod unreadable;
