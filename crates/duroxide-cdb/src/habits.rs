//! Which activities end quickly.
//!
//! The lock of a quick activity is kept in memory, and is over before it would have to be written. For one that takes long
//! this saves nothing, and rests on something: while it runs, tasks of this process have to write the lock. Code that computes
//! for seconds, or waits without `await`, keeps them from it if it occupies all threads of the process, and another process
//! would run the activity a second time. So an activity is locked in writing from the beginning until one of its name has
//! ended quickly in this process, and again once one has not.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The names of activities whose last run here was quick.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    quick: Mutex<HashSet<String>>,
}

impl Habits {
    pub(crate) fn is_quick(&self, name: &str) -> bool {
        self.lock().contains(name)
    }

    /// Notes how the last activity of a name went.
    pub(crate) fn note(&self, name: &str, was_quick: bool) {
        let mut quick = self.lock();
        if !was_quick {
            quick.remove(name);
        } else if !quick.contains(name) {
            if quick.len() >= NAMES_MAX {
                // Names are made by code, so there are few. Where they are not, locks are written.
                quick.clear();
            }
            quick.insert(name.to_owned());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.quick.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const NAMES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quick_while_its_last_run_was() {
        let habits = Habits::default();
        assert!(!habits.is_quick("a"), "who knows");
        habits.note("a", true);
        assert!(habits.is_quick("a") && !habits.is_quick("b"));
        habits.note("a", false);
        assert!(!habits.is_quick("a"));
        (0..3 * NAMES_MAX).for_each(|n| habits.note(&n.to_string(), true));
        assert!(habits.lock().len() <= NAMES_MAX);
    }
}
