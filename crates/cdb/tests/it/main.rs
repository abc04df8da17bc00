//! The `cdb` binary as people and scripts run it.

mod archive;
mod crash;
mod demo;
mod emulator;
mod errors;
#[cfg(target_os = "linux")]
mod full;
mod hostile;
mod looking;
mod mending;
mod process;
mod removing;
mod sending;
mod stage;
mod stress;
mod terminal;
mod tidy;
mod unreadable;
