//! In which order instances are tried, and how many of those that gave trouble at a time.
//!
//! A try with a throttled or silent partition takes seconds. Those that nothing could be done with before are few at a
//! time, so that however many they are dispatchers are left for the others.

use std::collections::{BTreeSet, HashSet};

/// From when an instance may be tried, and the order of its first message.
pub(crate) type Turn = (u64, u64);

/// Instances by their turn.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    sound: BTreeSet<(u64, u64, String)>,
    troubled: BTreeSet<(u64, u64, String)>,
    probation: Probation,
}

/// Whether something could be done with an instance the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Sound,
    Troubled,
}

/// How a try with a troubled instance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trial {
    Passed,
    Failed,
    /// It says nothing about the instance.
    Moot,
}

impl Agenda {
    /// Puts an instance on.
    pub(crate) fn insert(&mut self, standing: Standing, (at, seq): Turn, instance: &str) {
        self.of(standing).insert((at, seq, instance.to_owned()));
    }

    /// Takes an instance off.
    pub(crate) fn remove(&mut self, standing: Standing, (at, seq): Turn, instance: &str) {
        self.of(standing).remove(&(at, seq, instance.to_owned()));
    }

    /// Takes off the first instance that may be tried at `now`, without those that are not for the caller.
    pub(crate) fn take(&mut self, now: u64, except: &HashSet<String>) -> Option<(String, Standing)> {
        let sound = first(&self.sound, except).map(|(at, ..)| *at);
        let troubled = first(&self.troubled, except).map(|(at, ..)| *at);
        let standing = self.probation.choose(now, sound, troubled)?;
        self.probation.begin(standing);
        let set = self.of(standing);
        let entry = first(set, except).cloned()?;
        set.remove(&entry);
        Some((entry.2, standing))
    }

    /// When the next instance may be tried, without those that are not for the caller.
    pub(crate) fn next_at(&self, except: &HashSet<String>) -> Option<u64> {
        let at = |set| first(set, except).map(|(at, ..)| *at);
        let troubled = at(&self.troubled).filter(|_| self.probation.has_room());
        at(&self.sound).into_iter().chain(troubled).min()
    }

    /// A try that [`take`](Self::take) began is over.
    pub(crate) fn tried(&mut self, standing: Standing, trial: Trial) {
        if standing == Standing::Troubled {
            self.probation.end(trial);
        }
    }

    /// The instance whose turn is last, if it is behind the turn given: taken off.
    pub(crate) fn pop_behind(&mut self, turn: Turn) -> Option<String> {
        let last = |set: &BTreeSet<(u64, u64, String)>| set.last().map(|(at, seq, _)| (*at, *seq));
        let set =
            if last(&self.sound) >= last(&self.troubled) { &mut self.sound } else { &mut self.troubled };
        last(set).filter(|last| *last > turn)?;
        set.pop_last().map(|(.., instance)| instance)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sound.len() + self.troubled.len()
    }

    fn of(&mut self, standing: Standing) -> &mut BTreeSet<(u64, u64, String)> {
        match standing {
            Standing::Sound => &mut self.sound,
            Standing::Troubled => &mut self.troubled,
        }
    }
}

fn first<'a>(
    set: &'a BTreeSet<(u64, u64, String)>,
    except: &HashSet<String>,
) -> Option<&'a (u64, u64, String)> {
    set.iter().find(|(.., instance)| !except.contains(instance))
}

/// The tries with troubled instances.
#[derive(Debug)]
struct Probation {
    under_way: usize,
    /// So many at a time. It grows while they turn out well: after a storm all were troubled and none is.
    allowed: usize,
    /// The last one handed out was troubled.
    was_last: bool,
}

impl Default for Probation {
    fn default() -> Self {
        Self { under_way: 0, allowed: 1, was_last: false }
    }
}

impl Probation {
    fn has_room(&self) -> bool {
        self.under_way < self.allowed
    }

    /// Who is next, given when the first of each may be tried. Whoever has waited longer is, but never two troubled ones
    /// while a sound one waits: one dispatcher must do for all of them.
    fn choose(&self, now: u64, sound: Option<u64>, troubled: Option<u64>) -> Option<Standing> {
        let sound = sound.filter(|at| *at <= now);
        let troubled = troubled.filter(|at| *at <= now && self.has_room());
        match (sound, troubled) {
            (None, None) => None,
            (Some(_), None) => Some(Standing::Sound),
            (None, Some(_)) => Some(Standing::Troubled),
            (Some(sound), Some(troubled)) => {
                Some(if troubled < sound && !self.was_last { Standing::Troubled } else { Standing::Sound })
            }
        }
    }

    fn begin(&mut self, standing: Standing) {
        self.was_last = standing == Standing::Troubled;
        self.under_way += usize::from(self.was_last);
    }

    fn end(&mut self, trial: Trial) {
        self.under_way = self.under_way.saturating_sub(1);
        match trial {
            Trial::Passed => self.allowed = (self.allowed * 2).min(ALLOWED_MAX),
            Trial::Failed => self.allowed = 1,
            Trial::Moot => {}
        }
    }
}

const ALLOWED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waited_longest_is_next_and_troubled_ones_never_in_a_row() {
        let (sound, troubled) = (Some(Standing::Sound), Some(Standing::Troubled));
        for (under_way, was_last, first_sound, first_troubled, expected) in [
            (0, false, None, None, None),
            (0, false, Some(20), Some(20), None),
            (0, false, Some(5), None, sound),
            (0, false, Some(5), Some(4), troubled),
            (0, false, Some(4), Some(5), sound),
            (0, true, Some(5), Some(4), sound),
            (0, true, None, Some(4), troubled),
            (0, true, Some(20), Some(4), troubled),
            (1, false, Some(5), Some(4), sound),
            (1, false, None, Some(4), None),
        ] {
            let probation = Probation { under_way, allowed: 1, was_last };
            let chosen = probation.choose(10, first_sound, first_troubled);
            assert_eq!(chosen, expected, "{probation:?} {first_sound:?} {first_troubled:?}");
        }
    }

    #[test]
    fn more_are_tried_at_a_time_while_they_turn_out_well() {
        let mut probation = Probation::default();
        let mut allowed = Vec::new();
        for trial in [Trial::Moot, Trial::Passed, Trial::Passed, Trial::Moot, Trial::Failed, Trial::Passed] {
            probation.begin(Standing::Troubled);
            probation.end(trial);
            allowed.push(probation.allowed);
        }
        assert_eq!((allowed, probation.under_way), (vec![1, 2, 4, 4, 1, 2], 0));
    }
}
