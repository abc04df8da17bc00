//! The seam between the provider and who divides the slots.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use duroxide::providers::ProviderError;

use crate::slots::{SLOTS, SlotSet};

/// Divides the slots of a container among the processes that run work on it.
///
/// Holding a slot is a preference: nothing that is committed rests on it, and anybody may take work that its owner has left.
#[async_trait::async_trait]
pub trait LeaseProvider: Send + Sync {
    /// The caller joins, or is still there, and tells of itself. Called again and again; returns its share as of now.
    ///
    /// # Errors
    /// When the share cannot be known now: the caller goes on with what it had, as long as that was promised.
    async fn acquire_slots(&self, caller: &str, report: &MemberReport) -> Result<SlotShare, ProviderError>;

    /// The caller does not use these slots any more, which it was asked for.
    ///
    /// # Errors
    /// When that cannot be told now: the caller is asked again.
    async fn hand_over(&self, caller: &str, slots: SlotSet) -> Result<(), ProviderError>;

    /// The caller leaves.
    ///
    /// # Errors
    /// When that cannot be told now: its share runs out by itself.
    async fn release_slots(&self, caller: &str) -> Result<(), ProviderError>;
}

/// What a member tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberReport {
    /// Turns and activities that it holds.
    pub running: u64,
    /// How many it has been seen to hold, or to wait for, at the same time: the runtime does not tell how many dispatchers
    /// it has.
    pub capacity: u64,
    /// What it could begin at once and has not.
    pub backlog: u64,
    /// It has looked at everything in its slots that was due before then, in milliseconds since the Unix epoch.
    pub passed: u64,
    /// What its runtime asks for.
    pub serves: Serves,
    /// Which activities, for people who wonder why nobody takes one.
    pub work: ServedWork,
}

/// Which activities a runtime asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedWork {
    /// Those of any tag.
    pub any_tag: bool,
    /// Those without a tag.
    pub untagged: bool,
    /// Those of these tags.
    pub tags: Vec<String>,
}

impl ServedWork {
    /// Whether there are any.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.any_tag || self.untagged || !self.tags.is_empty()
    }
}

/// What a runtime asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Serves {
    /// Turns of orchestrations.
    pub turns: bool,
    /// Activities.
    pub work: bool,
}

/// What a member looks after.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotShare {
    /// The caller's slots.
    pub slots: SlotSet,
    /// Those among them that another member waits for.
    pub wanted: SlotSet,
    /// How long the others leave the slots and the fresh work in them alone, from the moment of the call on. `None`: nothing
    /// is promised, others may be at work in them at any time.
    pub promised: Option<Duration>,
    /// How many members there are, and which of them the caller is.
    pub members: usize,
    /// The caller's place among them.
    pub rank: usize,
    /// What is known of the other members.
    pub others: Vec<OtherShare>,
    /// Counts the divisions.
    pub epoch: u64,
}

/// What another member looks after.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OtherShare {
    /// Its slots.
    pub slots: SlotSet,
    /// It has looked at everything in them that was due before then.
    pub passed: u64,
    /// What its runtime asks for: the rest is for others.
    pub serves: Serves,
    /// It has not told of itself when it should have: perhaps it is dead.
    pub is_silent: bool,
}

impl SlotShare {
    /// Everything, with no promise: how a process works that shares nothing with others.
    #[must_use]
    pub fn everything() -> Self {
        Self { slots: SlotSet::ALL, members: 1, ..Self::default() }
    }
}

/// Everybody looks everywhere, and every lock is written before it is used: for processes that share a container with
/// some that take no part in the fleet.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLeases;

#[async_trait::async_trait]
impl LeaseProvider for NoLeases {
    async fn acquire_slots(&self, _: &str, _: &MemberReport) -> Result<SlotShare, ProviderError> {
        Ok(SlotShare::everything())
    }

    async fn hand_over(&self, _: &str, _: SlotSet) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn release_slots(&self, _: &str) -> Result<(), ProviderError> {
        Ok(())
    }
}

/// Divides the slots among the callers of this process in contiguous, equal parts. It promises nothing: a caller learns
/// only at its next call that a part of its share has moved.
#[derive(Debug, Default)]
pub struct InMemoryLeaseProvider {
    callers: Mutex<BTreeMap<String, MemberReport>>,
}

impl InMemoryLeaseProvider {
    /// No callers yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn callers(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, MemberReport>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait::async_trait]
impl LeaseProvider for InMemoryLeaseProvider {
    async fn acquire_slots(&self, caller: &str, report: &MemberReport) -> Result<SlotShare, ProviderError> {
        let mut callers = self.callers();
        callers.insert(caller.to_owned(), report.clone());
        let members = callers.len();
        let mut share = SlotShare { members, ..SlotShare::default() };
        for (index, (name, report)) in callers.iter().enumerate() {
            let slots = (0..=u8::MAX).filter(|slot| index_of(*slot, members) == index).collect();
            if name == caller {
                (share.slots, share.rank) = (slots, index);
            } else {
                share.others.push(OtherShare {
                    slots,
                    passed: report.passed,
                    serves: report.serves,
                    is_silent: false,
                });
            }
        }
        Ok(share)
    }

    async fn hand_over(&self, _: &str, _: SlotSet) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn release_slots(&self, caller: &str) -> Result<(), ProviderError> {
        self.callers().remove(caller);
        Ok(())
    }
}

/// Which of so many members a slot falls to, in contiguous and equal parts.
pub(crate) fn index_of(slot: u8, members: usize) -> usize {
    usize::from(slot) * members / SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_live_callers_share_all_slots_whatever_their_number() {
        let leases = InMemoryLeaseProvider::new();
        let report = MemberReport::default();
        for callers in 1..=7 {
            let mut covered = SlotSet::EMPTY;
            for round in 0..2 {
                for n in 0..callers {
                    let share = leases.acquire_slots(&format!("caller-{n}"), &report).await.unwrap();
                    assert!(round == 0 || share.slots.ranges().len() == 1, "{share:?}");
                    if round == 1 {
                        share.slots.iter().for_each(|slot| covered.insert(slot));
                        assert_eq!(
                            share.slots.len()
                                + share.others.iter().map(|other| other.slots.len()).sum::<usize>(),
                            SLOTS
                        );
                    }
                }
            }
            assert_eq!(covered, SlotSet::ALL, "{callers} callers");
        }
        leases.release_slots("caller-0").await.unwrap();
        let share = leases.acquire_slots("caller-1", &report).await.unwrap();
        assert_eq!((share.members, share.rank), (6, 0));
    }
}
