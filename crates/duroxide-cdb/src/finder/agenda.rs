//! In which order instances are tried, and how many of those that gave trouble at a time.
//!
//! A try with a throttled or silent partition takes seconds. Those that nothing could be done with before are few at a
//! time, so that however many they are dispatchers are left for the others.
//!
//! Instances are on shelves by the version of duroxide they are pinned to: a dispatcher looks only at the shelves of
//! versions it can run, so the others cost it nothing however many they are.

use std::collections::{BTreeMap, BTreeSet};

use super::ready::Ready;
use crate::documents::Version;

/// From when an instance may be tried, and the order of its first message.
pub(crate) type Turn = (u64, u64);

/// What is known of the version an instance is pinned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Shelf {
    /// Its head has not been looked at.
    #[default]
    Unread,
    /// Its head was looked at: this version, or none.
    Read(Option<Version>),
}

/// Which version a dispatcher can run.
pub(crate) type Accepts<'a> = &'a dyn Fn(Version) -> bool;

impl Shelf {
    /// Whether a dispatcher may be handed what is on the shelf.
    fn is_for(self, accepts: Accepts<'_>) -> bool {
        if let Self::Read(Some(version)) = self { accepts(version) } else { true }
    }
}

/// Instances by their turn.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    sound: Shelves,
    troubled: Shelves,
    probation: Probation,
}

/// Where an instance is on the agenda.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) standing: Standing,
    pub(crate) shelf: Shelf,
    pub(crate) turn: Turn,
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
    pub(crate) fn insert(&mut self, place: Place, instance: &str) {
        let (at, seq) = place.turn;
        let shelf = self.of(place.standing).shelves.entry(place.shelf).or_default();
        shelf.insert((at, seq, instance.to_owned()));
    }

    /// Takes an instance off.
    pub(crate) fn remove(&mut self, place: Place, instance: &str) {
        let (at, seq) = place.turn;
        self.of(place.standing).remove(place.shelf, &(at, seq, instance.to_owned()));
    }

    /// Takes off the first instance that may be tried at `now` by a dispatcher that runs what it `accepts`.
    pub(crate) fn take(&mut self, now: u64, accepts: Accepts<'_>) -> Option<(String, Standing)> {
        let sound = self.sound.first(accepts).map(|(_, (at, ..))| *at);
        let troubled = self.troubled.first(accepts).map(|(_, (at, ..))| *at);
        let standing = self.probation.choose(now, sound, troubled)?;
        self.probation.begin(standing);
        let shelves = self.of(standing);
        let (shelf, entry) = shelves.first(accepts).map(|(shelf, entry)| (shelf, entry.clone()))?;
        shelves.remove(shelf, &entry);
        Some((entry.2, standing))
    }

    /// As [`take`](Self::take), while many on the unread shelf are likely to be for others: the first whose head was
    /// read, else the last of the unread, because the first of them are being read.
    pub(crate) fn take_warily(&mut self, now: u64, accepts: Accepts<'_>) -> Option<(String, Standing)> {
        let is_read = |(shelf, entry): &(Shelf, &Entry)| *shelf != Shelf::Unread && entry.0 <= now;
        let due = self.sound.each(accepts).filter(is_read).min_by_key(|(_, entry)| *entry);
        let chosen = due.or_else(|| self.sound.last_unread(now).map(|entry| (Shelf::Unread, entry)));
        let troubled = self.troubled.first(accepts).map(|(_, (at, ..))| *at);
        let sound = chosen.map(|(_, (at, ..))| *at);
        let chosen = chosen.filter(|_| self.probation.choose(now, sound, troubled) == Some(Standing::Sound));
        let Some((shelf, entry)) = chosen.map(|(shelf, entry)| (shelf, entry.clone())) else {
            return self.take(now, accepts);
        };
        self.probation.begin(Standing::Sound);
        self.sound.remove(shelf, &entry);
        Some((entry.2, Standing::Sound))
    }

    /// The first instances that may be tried at `now` and whose heads have not been looked at.
    pub(crate) fn unread(&self, now: u64) -> impl Iterator<Item = &str> {
        let unread = self.sound.shelves.get(&Shelf::Unread).into_iter().flatten();
        unread.take_while(move |(at, ..)| *at <= now).map(|(.., instance)| instance.as_str())
    }

    /// When the next instance may be tried by a dispatcher that runs what it `accepts`.
    pub(crate) fn next_at(&self, accepts: Accepts<'_>) -> Option<u64> {
        let at = |shelves: &Shelves| shelves.first(accepts).map(|(_, (at, ..))| *at);
        let troubled = at(&self.troubled).filter(|_| self.probation.has_room());
        at(&self.sound).into_iter().chain(troubled).min()
    }

    /// What a dispatcher that runs what it `accepts` may try at `now`; of very many, so many.
    pub(crate) fn ready(&self, now: u64, accepts: Accepts<'_>) -> Ready {
        let mut ready = Ready::default();
        let shelves = self.sound.shelves.iter().chain(&self.troubled.shelves);
        for (_, shelf) in shelves.filter(|(shelf, _)| shelf.is_for(accepts)) {
            let due = shelf.iter().map(|(at, ..)| *at).take_while(|at| *at <= now);
            due.take(READY_MAX).for_each(|at| ready.add(at, now));
        }
        ready
    }

    /// A try that [`take`](Self::take) began is over.
    pub(crate) fn tried(&mut self, standing: Standing, trial: Trial) {
        if standing == Standing::Troubled {
            self.probation.end(trial);
        }
    }

    /// The instance whose turn is last, if it is behind the turn given: taken off.
    pub(crate) fn pop_behind(&mut self, turn: Turn) -> Option<String> {
        let last = |shelves: &Shelves| shelves.last().map(|(_, (at, seq, _))| (*at, *seq));
        let shelves =
            if last(&self.sound) >= last(&self.troubled) { &mut self.sound } else { &mut self.troubled };
        last(shelves).filter(|last| *last > turn)?;
        let (shelf, entry) = shelves.last().map(|(shelf, entry)| (shelf, entry.clone()))?;
        shelves.remove(shelf, &entry);
        Some(entry.2)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let count = |shelves: &Shelves| shelves.shelves.values().map(BTreeSet::len).sum::<usize>();
        count(&self.sound) + count(&self.troubled)
    }

    fn of(&mut self, standing: Standing) -> &mut Shelves {
        match standing {
            Standing::Sound => &mut self.sound,
            Standing::Troubled => &mut self.troubled,
        }
    }
}

type Entry = (u64, u64, String);

/// Instances of one standing, by shelf.
#[derive(Debug, Default)]
struct Shelves {
    shelves: BTreeMap<Shelf, BTreeSet<Entry>>,
}

impl Shelves {
    /// The first of each shelf that is for a dispatcher. The versions in use are few, so shelves are.
    fn each(&self, accepts: Accepts<'_>) -> impl Iterator<Item = (Shelf, &Entry)> {
        let open = self.shelves.iter().filter(move |(shelf, _)| shelf.is_for(accepts));
        open.filter_map(|(shelf, entries)| Some((*shelf, entries.first()?)))
    }

    fn first(&self, accepts: Accepts<'_>) -> Option<(Shelf, &Entry)> {
        self.each(accepts).min_by_key(|(_, entry)| *entry)
    }

    /// The last of all.
    fn last(&self) -> Option<(Shelf, &Entry)> {
        let lasts = self.shelves.iter().filter_map(|(shelf, entries)| Some((*shelf, entries.last()?)));
        lasts.max_by_key(|(_, entry)| *entry)
    }

    /// The last unread one that may be tried at `now`.
    fn last_unread(&self, now: u64) -> Option<&Entry> {
        self.shelves.get(&Shelf::Unread)?.range(..(now + 1, 0, String::new())).next_back()
    }

    fn remove(&mut self, shelf: Shelf, entry: &Entry) {
        if let Some(entries) = self.shelves.get_mut(&shelf) {
            entries.remove(entry);
            if entries.is_empty() {
                self.shelves.remove(&shelf);
            }
        }
    }
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
/// So many of a shelf are counted.
const READY_MAX: usize = 1000;

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
