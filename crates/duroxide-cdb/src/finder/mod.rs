//! Finding work: one finder per provider feeds all dispatchers of the process.
//!
//! What this process writes is pushed here as a hint, so its own flows need no search. What other processes write, and
//! what a dead process left, is found by a bounded search of each partition-key range. An entry is handed out once, so
//! dispatchers never contend. Losing an entry is harmless: the next search finds it again.

mod agenda;
mod crew;
pub(crate) mod lanes;
mod pace;
mod pins;
mod ready;
mod sweep;
mod turns;
mod waiting;
mod work;

pub(crate) use crew::Crew;
pub(crate) use lanes::{Glance, Glimpse, Mark, Stretch};
pub(crate) use pace::{Left, Outcome, Pace, Reach, Wish};
pub(crate) use ready::{AGES, Ready};
pub(crate) use sweep::{Seen, behind};
pub(crate) use turns::{Candidate, Outline, TurnFinder, Verdict};
pub(crate) use waiting::Waiting;
pub(crate) use work::{WorkCandidate, WorkFinder, WorkQuestion};
