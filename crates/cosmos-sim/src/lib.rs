//! Driver, provider and emulator in one seeded world: several runtimes work on one container while requests fail,
//! processes die without a word and the server restarts from its folder. When the dust settles the checks look at
//! what is left.
//!
//! A seed fixes the work, the faults and the crashes; the interleaving is the machine's. A failing seed fails again
//! soon, if not at once.

mod check;
mod plan;
mod process;
pub mod soak;
mod workload;
mod world;

pub use check::Finding;
pub use plan::{Crash, Plan};
pub use world::{Outcome, run};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
