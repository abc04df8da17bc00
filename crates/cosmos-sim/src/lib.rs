//! Driver, provider and emulator in one seeded world.
//!
//! [`world`] is the world that repeats itself: one thread, virtual time, a simulated network, and clocks and entropy of
//! its own ([`os`]). A seed is the run: the same requests in the same order, every time. [`real`] is the older kind,
//! over real sockets in real time, and [`soak`] the emulator alone.

pub mod fleet;
pub mod model;
pub mod mutants;
pub mod os;
pub mod real;
pub mod soak;
pub mod world;

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
