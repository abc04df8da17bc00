//! The protocols that everything rests on, as state machines small enough to look at every state they can reach: every
//! order of steps, every crash, every lost and every late answer, for two or three processes.
//!
//! [`commit`] is the commit of a turn and what follows when its answer is lost; [`delivery`] is how a message gets from
//! one partition to another; [`ownership`] is who does the work, and who keeps locks in memory. Each action names the function of the provider that does it.

pub mod commit;
pub mod delivery;
pub mod ownership;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A protocol.
pub trait Model {
    /// All there is to know at one moment.
    type State: Clone + Ord;

    /// How it begins.
    fn start(&self) -> Self::State;

    /// All that can happen next, with the name of what does it.
    fn next(&self, state: &Self::State) -> Vec<(String, Self::State)>;

    /// What must never be, if it is so in this state.
    fn broken(&self, state: &Self::State) -> Option<String>;

    /// What must not be so when nothing can happen any more.
    fn unfinished(&self, state: &Self::State) -> Option<String>;
}

/// What an exploration came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Explored {
    /// Nothing is wrong in any of so many states.
    Sound {
        /// All that can be reached.
        states: usize,
    },
    /// A shortest way to something that must not be.
    Broken {
        /// What it is.
        why: String,
        /// The actions that lead there.
        way: Vec<String>,
    },
}

/// Looks at every state that can be reached, nearest first.
///
/// # Panics
/// When there are more states than `states_max`: the model is too large to be explored.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Explored {
    // How each state was reached first: from which one, and by what.
    let mut reached: BTreeMap<M::State, Option<(M::State, String)>> = BTreeMap::new();
    let mut waiting = VecDeque::from([model.start()]);
    reached.insert(model.start(), None);
    while let Some(state) = waiting.pop_front() {
        let next = model.next(&state);
        let wrong = model.broken(&state);
        let wrong = wrong.or_else(|| if next.is_empty() { model.unfinished(&state) } else { None });
        if let Some(why) = wrong {
            return Explored::Broken { why, way: way_to(&reached, state) };
        }
        for (action, following) in next {
            if !reached.contains_key(&following) {
                reached.insert(following.clone(), Some((state.clone(), action)));
                waiting.push_back(following);
            }
        }
        assert!(reached.len() <= states_max, "more than {states_max} states");
    }
    Explored::Sound { states: reached.len() }
}

/// The names of all actions that can happen.
///
/// # Panics
/// As [`explore`].
pub fn actions<M: Model>(model: &M, states_max: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut reached = BTreeSet::from([model.start()]);
    let mut waiting = VecDeque::from([model.start()]);
    while let Some(state) = waiting.pop_front() {
        for (action, following) in model.next(&state) {
            names.insert(action);
            if reached.insert(following.clone()) {
                waiting.push_back(following);
            }
        }
        assert!(reached.len() <= states_max, "more than {states_max} states");
    }
    names
}

fn way_to<S: Clone + Ord>(reached: &BTreeMap<S, Option<(S, String)>>, mut state: S) -> Vec<String> {
    let mut way = Vec::new();
    while let Some(Some((before, action))) = reached.get(&state) {
        way.push(action.clone());
        state = before.clone();
    }
    way.reverse();
    way
}
