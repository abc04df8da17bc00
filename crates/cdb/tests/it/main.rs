//! The `cdb` binary as people and scripts run it.

mod crash;
mod emulator;
mod process;
