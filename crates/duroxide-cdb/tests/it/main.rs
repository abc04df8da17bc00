//! The provider on the embedded emulator, over real sockets.

mod big;
mod flows;
mod hello;
mod samples;
mod single_faults;
mod stress;
mod sweep;
mod validation;
mod world;
