//! The provider on the embedded emulator, over real sockets.

mod big;
mod budgets;
mod flows;
mod hello;
mod legacy;
mod samples;
mod single_faults;
mod stress;
mod sweep;
mod validation;
mod windows;
mod world;
