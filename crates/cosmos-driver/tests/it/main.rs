//! The driver against the emulator, over real sockets.

mod account;
mod items;
