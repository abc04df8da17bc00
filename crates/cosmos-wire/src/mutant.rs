//! Bugs on purpose, by number, so that the simulation can show that it finds them.
//!
//! They exist only with the feature `mutants`, which `cosmos-sim` enables and nothing else may; in every other build
//! [`mutant!`](crate::mutant) is the constant `false`, and what depends on it is not compiled in. `cosmos-sim mutants` has
//! the list.

#[cfg(feature = "mutants")]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(feature = "mutants")]
static ACTIVE: AtomicU32 = AtomicU32::new(0);

/// Builds in one bug for this process; 0 for none.
#[cfg(feature = "mutants")]
pub fn activate(number: u32) {
    ACTIVE.store(number, Ordering::Relaxed);
}

/// Whether this is the bug that is built in.
#[cfg(feature = "mutants")]
pub fn is(number: u32) -> bool {
    ACTIVE.load(Ordering::Relaxed) == number
}

/// Whether a bug, by its number, is built in.
#[cfg(feature = "mutants")]
#[macro_export]
macro_rules! mutant {
    ($number:literal) => {
        $crate::mutant::is($number)
    };
}

/// Whether a bug, by its number, is built in.
#[cfg(not(feature = "mutants"))]
#[macro_export]
macro_rules! mutant {
    ($number:literal) => {
        false
    };
}
