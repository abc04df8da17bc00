//! The provider on the embedded emulator, over real sockets.

mod hello;
mod validation;
mod world;
