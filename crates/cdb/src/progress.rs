//! Progress on standard error: one line drawn over on a terminal, a line now and then elsewhere.

use std::time::{Duration, Instant};

use crate::output::{clip, is_error_terminal, say, say_over, span, terminal_columns};

/// How far a long command is.
#[derive(Debug)]
pub(crate) struct Progress {
    total: u64,
    done: u64,
    is_terminal: bool,
    told: Instant,
    write: fn(u64) -> String,
}

impl Progress {
    /// Nothing done of `total`.
    pub(crate) fn new(total: u64) -> Self {
        Self {
            total,
            done: 0,
            is_terminal: is_error_terminal(),
            told: Instant::now(),
            write: |count| count.to_string(),
        }
    }

    /// No time gone of `total` milliseconds.
    pub(crate) fn of_time(total_ms: u64) -> Self {
        Self { write: span, ..Self::new(total_ms) }
    }

    /// One more is done.
    pub(crate) fn advance(&mut self, what: &str) {
        self.set(self.done + 1, what);
    }

    /// This much is done.
    pub(crate) fn set(&mut self, done: u64, what: &str) {
        self.done = done;
        if self.is_terminal {
            let full = usize::try_from(done.min(self.total) * BAR as u64 / self.total.max(1)).unwrap_or(BAR);
            let bar = format!("{}{}", "━".repeat(full), "╌".repeat(BAR - full));
            let line = clip(
                &format!("{bar} {} of {}  {what}", (self.write)(done), (self.write)(self.total)),
                terminal_columns() - 1,
            );
            say_over(&line);
        } else if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            say(format!("{} of {}: {what}", (self.write)(done), (self.write)(self.total)));
        }
    }

    /// How much is done.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal && self.done > 0 {
            say_over("");
        }
    }
}

const BAR: usize = 24;
/// How often a log hears of it.
const TELL_EVERY: Duration = Duration::from_secs(1);
