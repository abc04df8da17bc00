//! What happened in a world, line by line with virtual time, and one number that stands for all of it.

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::os;

/// Where lines go. Clones write to the same trace.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<Lines>>);

#[derive(Debug)]
struct Lines {
    hash: u64,
    count: u64,
    is_printed: bool,
}

impl Trace {
    /// A trace that is only counted and hashed, or printed as well.
    #[must_use]
    pub fn new(is_printed: bool) -> Self {
        Self(Arc::new(Mutex::new(Lines { hash: FNV_START, count: 0, is_printed })))
    }

    /// Adds a line.
    pub fn line(&self, text: Arguments<'_>) {
        let line = format!("{:>11.6} {text}\n", os::elapsed().as_secs_f64());
        let mut lines = self.lock();
        lines.hash = fnv(lines.hash, line.as_bytes());
        lines.count += 1;
        if lines.is_printed {
            // Whoever reads the trace may have seen enough of it.
            let _ = std::io::stdout().write_all(line.as_bytes());
        }
    }

    /// The number that stands for all lines so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().hash
    }

    /// How many lines there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.lock().count
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const FNV_START: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01B3;

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}
