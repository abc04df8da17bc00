//! What must be true: the history of each logical partition, and how far each session and region is along it.

use std::collections::BTreeMap;

use cosmos_wire::session_token::SessionToken;

/// The items of a logical partition: id and version of those that are there.
pub(super) type State = BTreeMap<String, u64>;

/// What one commit does: id, and the new version or none where the item goes.
pub(super) type Change = Vec<(String, Option<u64>)>;

/// The commits of one logical partition, in order. A cut is how many of them a replica shows.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    commits: Vec<Change>,
}

impl Log {
    pub(super) fn len(&self) -> usize {
        self.commits.len()
    }

    pub(super) fn push(&mut self, change: Change) {
        self.commits.push(change);
    }

    /// Forgets what was lost.
    pub(super) fn truncate(&mut self, cut: usize) {
        self.commits.truncate(cut);
    }

    pub(super) fn last(&self) -> State {
        self.state(self.len())
    }

    pub(super) fn state(&self, cut: usize) -> State {
        let mut state = State::new();
        for commit in &self.commits[..cut.min(self.len())] {
            apply(&mut state, commit);
        }
        state
    }

    /// The first cut, from `floor` on, that shows exactly this state.
    pub(super) fn cut_of(&self, seen: &State, floor: usize) -> Option<usize> {
        self.find(floor, |state| state == seen)
    }

    /// The first cut, from `floor` on, that shows this of one item.
    pub(super) fn cut_of_item(&self, id: &str, seen: Option<u64>, floor: usize) -> Option<usize> {
        self.find(floor, |state| state.get(id).copied() == seen)
    }

    /// The last cut that shows exactly this state.
    pub(super) fn last_cut_of(&self, seen: &State) -> Option<usize> {
        (0..=self.len()).rev().find(|cut| self.state(*cut) == *seen)
    }

    /// Which commit made a version of an item.
    pub(super) fn place_of(&self, id: &str, version: u64) -> Option<usize> {
        self.commits
            .iter()
            .position(|commit| commit.iter().any(|(name, made)| name == id && *made == Some(version)))
    }

    fn find(&self, floor: usize, is_it: impl Fn(&State) -> bool) -> Option<usize> {
        let mut state = self.state(floor);
        for cut in floor..=self.len() {
            if is_it(&state) {
                return Some(cut);
            }
            if let Some(commit) = self.commits.get(cut) {
                apply(&mut state, commit);
            }
        }
        None
    }
}

/// What a commit makes of a state.
pub(super) fn apply(state: &mut State, commit: &Change) {
    for (id, version) in commit {
        match version {
            Some(version) => state.insert(id.clone(), *version),
            None => state.remove(id),
        };
    }
}

/// One client's view: what it must not fall behind of.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) token: SessionToken,
    /// Cut of each logical partition that it has seen or made.
    pub(super) floors: BTreeMap<String, usize>,
}

impl Session {
    pub(super) fn floor(&self, key: &str) -> usize {
        self.floors.get(key).copied().unwrap_or(0)
    }

    pub(super) fn raise(&mut self, key: &str, cut: usize) {
        let floor = self.floors.entry(key.to_owned()).or_default();
        *floor = (*floor).max(cut);
    }

    /// What was seen beyond this was lost.
    pub(super) fn lower(&mut self, key: &str, cut: usize) {
        if let Some(floor) = self.floors.get_mut(key) {
            *floor = (*floor).min(cut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(commits: &[&[(&str, Option<u64>)]]) -> Log {
        let mut log = Log::default();
        for commit in commits {
            log.push(commit.iter().map(|(id, version)| ((*id).to_owned(), *version)).collect());
        }
        log
    }

    #[test]
    fn half_a_batch_fits_no_cut() {
        let log = log(&[&[("a", Some(1))], &[("a", Some(2)), ("b", Some(3))]]);
        assert_eq!(log.cut_of(&State::from([("a".into(), 1)]), 0), Some(1));
        assert_eq!(log.cut_of(&State::from([("a".into(), 2), ("b".into(), 3)]), 0), Some(2));
        assert_eq!(log.cut_of(&State::from([("a".into(), 2)]), 0), None);
        assert_eq!(log.cut_of(&State::from([("a".into(), 1)]), 2), None, "too old");
    }

    #[test]
    fn a_deleted_item_may_be_absent_before_and_after() {
        let log = log(&[&[("a", Some(1))], &[("a", None)], &[("b", Some(2))]]);
        assert_eq!(log.cut_of_item("a", None, 0), Some(0));
        assert_eq!(log.cut_of_item("a", None, 1), Some(2));
        assert_eq!(log.cut_of_item("a", Some(1), 2), None);
        assert_eq!((log.place_of("b", 2), log.place_of("b", 1)), (Some(2), None));
        assert_eq!(log.last_cut_of(&State::new()), Some(2));
    }
}
