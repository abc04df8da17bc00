//! Ownership: a slot is given and not taken, its owner keeps locks in memory, and nothing rests on it but who does the work.
//!
//! One slot, one activity, two members. Whatever happens to them, the activity is completed once: its ETag sees to that.
//! And as long as nothing keeps them from the server, it is begun once, although its lock may be in memory only.

use super::Model;

/// Two members, one slot, one activity.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    /// How often something may keep a member from the server, or end it.
    pub troubles: u8,
    /// What the protocol rests on; as it is, it has all of it.
    pub guards: Guards,
}

/// What the protocol rests on; a model without one of them must break.
#[derive(Clone, Copy, Debug)]
pub struct Guards {
    /// A completion asks for the ETag that the activity was taken with.
    pub has_etag: bool,
    /// The owner writes its locks before it hands a slot over.
    pub writes_before_handover: bool,
    /// A lock in memory is written before others may take what is old.
    pub writes_in_time: bool,
    /// Nothing is locked in memory once others may take the owner for dead, and what is so locked is written by then.
    pub heeds_promise: bool,
    /// What was found in a slot is taken only while the slot is still the taker's.
    pub looks_again: bool,
    /// What was there before a slot was gained is not locked in memory: its earlier owner may have it.
    pub trusts_only_later: bool,
    /// A slot is taken over only when its owner has been silent for as long as was promised.
    pub waits_for_end: bool,
}

impl Guards {
    /// As it is.
    pub const ALL: Self = Self {
        has_etag: true,
        writes_before_handover: true,
        writes_in_time: true,
        heeds_promise: true,
        looks_again: true,
        trusts_only_later: true,
        waits_for_end: true,
    };
}

const MEMBERS: usize = 2;

/// Adds something that can happen next, by its name and by what it changes.
type Add<'a> = dyn FnMut(&str, &dyn Fn(&mut State)) + 'a;

/// A moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    table: Table,
    activity: Option<Activity>,
    members: [Member; MEMBERS],
    /// Completions that have left and not arrived: who sent them, and for which ETag.
    flying: Vec<(usize, u8)>,
    troubles: u8,
    /// Two had the activity, and nothing had kept either from the server.
    is_doubled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Table {
    owner: Option<usize>,
    next: Option<usize>,
    /// How often it was written.
    epoch: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Activity {
    etag: u8,
    lock: Option<usize>,
    is_lock_over: bool,
    is_old: bool,
    completed: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    being: Being,
    /// How long ago it was heard of.
    silence: Silence,
    /// What it knows of the table.
    owns: bool,
    is_asked: bool,
    /// It has owned the slot since before the activity was written.
    had: bool,
    knows: Knows,
    holds: Holds,
    /// Something kept it from the server since it took what it holds, or from hearing that the slot is another's.
    is_excused: bool,
    /// Something ever kept it from the server: what it knows of the table may be old.
    is_behind: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Being {
    Well,
    /// It cannot say that it is there, and can do everything else.
    Mute,
    /// It reaches nobody, or stands still.
    Cut,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Silence {
    /// Others leave it its slots and what is in them.
    Promised,
    /// It does not count on that any more, by its own clock.
    Unsure,
    /// Others take it for dead, by the service's clock.
    Long,
}

/// What a member knows of the activity, with the ETag it was known under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Knows {
    Nothing,
    /// It wrote it, or a search brought it.
    Of(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    Nothing,
    InMemory(u8),
    Written(u8),
}

/// Numbers only grow; a run that is long enough has shown everything.
const ETAG_MAX: u8 = 3;
const EPOCH_MAX: u8 = 4;
const FLYING_MAX: usize = 2;

impl State {
    /// A member takes the activity: is another one at work on it without excuse?
    fn take(&mut self, index: usize, holds: Holds) {
        let other = self.members[1 - index];
        let is_live = match other.holds {
            Holds::Nothing => false,
            Holds::InMemory(_) => true,
            Holds::Written(_) => self.activity.is_some_and(|activity| activity.lock == Some(1 - index)),
        };
        self.is_doubled |= is_live && !other.is_excused && !self.members[index].is_behind;
        let is_mistaken = self.members[index].owns && self.table.owner != Some(index);
        let member = &mut self.members[index];
        (member.holds, member.is_excused) = (holds, is_mistaken && member.is_behind);
    }

    fn let_go(&mut self, index: usize) {
        (self.members[index].holds, self.members[index].knows) = (Holds::Nothing, Knows::Nothing);
    }
}

impl Ownership {
    fn of_member(&self, state: &State, index: usize, next: &mut Vec<(String, State)>) {
        let mut add = |action: &str, change: &dyn Fn(&mut State)| {
            let mut following = state.clone();
            change(&mut following);
            next.push((format!("m{index}: {action}"), following));
        };
        let member = state.members[index];
        match member.being {
            Being::Dead => return,
            Being::Cut => {
                // It stands still, or whatever it does gets lost; its locks are in its memory all the same.
                add("reaches the server again", &|state| state.members[index].being = Being::Well);
                return;
            }
            Being::Mute => {
                add("is heard again", &|state| state.members[index].being = Being::Well);
            }
            Being::Well => self.of_heard(state, index, &mut add),
        }
        self.of_work(state, index, &mut add);
    }

    /// What a member does that reaches the documents of the fleet.
    fn of_heard(&self, state: &State, index: usize, add: &mut Add<'_>) {
        let (member, table) = (state.members[index], state.table);
        add("CosmosLeaseProvider::beat, membership::tasks::adopt", &|state| {
            let member = &mut state.members[index];
            member.silence = Silence::Promised;
            let owns = table.owner == Some(index);
            member.had &= owns;
            (member.owns, member.is_asked, member.is_behind) = (owns, owns && table.next.is_some(), false);
        });
        let is_free = match table.owner {
            None => true,
            Some(owner) if owner == index => false,
            Some(owner) => !self.guards.waits_for_end || state.members[owner].silence == Silence::Long,
        };
        // Only who was heard a moment ago divides slots: it joins or beats first.
        if is_free && member.silence == Silence::Promised {
            add("fleet::table::next_table takes the slot over", &|state| {
                state.table = Table { owner: Some(index), next: None, epoch: table.epoch + 1 };
                (state.members[index].owns, state.members[index].is_asked) = (true, false);
            });
        }
        if table.owner.is_some_and(|owner| owner != index) && table.next.is_none() {
            add("fleet::table::next_table asks for the slot", &|state| {
                state.table = Table { next: Some(index), epoch: table.epoch + 1, ..table };
                // Who asks has read whose it is.
                let member = &mut state.members[index];
                (member.owns, member.is_asked, member.had) = (false, false, false);
            });
        }
        let is_written = !matches!(member.holds, Holds::InMemory(_)) || !self.guards.writes_before_handover;
        if member.owns && member.is_asked && table.owner == Some(index) && is_written {
            add("membership::tasks::hand_over, fleet::table::after_handover", &|state| {
                state.table = Table { owner: table.next, next: None, epoch: table.epoch + 1 };
                let member = &mut state.members[index];
                (member.owns, member.is_asked, member.had) = (false, false, false);
            });
        }
    }

    /// What a member does with the activity.
    fn of_work(&self, state: &State, index: usize, add: &mut Add<'_>) {
        let member = state.members[index];
        let is_promised = member.silence == Silence::Promised || !self.guards.heeds_promise;
        let Some(activity) = state.activity else {
            add("orchestration::ack::send writes the activity, Core::tell_of_work", &|state| {
                state.activity =
                    Some(Activity { etag: 1, lock: None, is_lock_over: false, is_old: false, completed: 0 });
                for member in &mut state.members {
                    member.had = member.owns;
                }
                // In another's slot it is rung for, and left to its owner.
                if member.owns {
                    state.members[index].knows = Knows::Of(1);
                }
            });
            return;
        };
        let is_free = activity.completed == 0 && (activity.lock.is_none() || activity.is_lock_over);
        if is_free
            && member.knows == Knows::Nothing
            && member.holds == Holds::Nothing
            && (member.owns || activity.is_old)
        {
            add("work::search::search finds it", &|state| {
                state.members[index].knows = Knows::Of(activity.etag);
            });
        }
        let is_ours = member.owns || activity.is_old || !self.guards.looks_again;
        if let (Knows::Of(etag), Holds::Nothing, true) = (member.knows, member.holds, is_ours) {
            let had = member.had || !self.guards.trusts_only_later;
            // The first ETag is that of an activity that was never locked.
            let is_first = etag == 1 && !activity.is_old;
            if had && is_promised && is_first && member.owns && !member.is_asked {
                add("work::fetch::hold_in_memory", &|state| state.take(index, Holds::InMemory(etag)));
            } else if activity.etag == etag && is_free {
                add("work::fetch::claim", &|state| {
                    state.activity =
                        Some(Activity { etag: etag + 1, lock: Some(index), is_lock_over: false, ..activity });
                    state.take(index, Holds::Written(etag + 1));
                });
            } else {
                add("work::fetch::claim is refused", &|state| state.members[index].knows = Knows::Nothing);
            }
        }
        match member.holds {
            Holds::Nothing => {}
            Holds::InMemory(etag) if activity.etag == etag => {
                add("membership::tasks::write_locks, work::lock::write_down", &|state| {
                    state.activity = Some(Activity { etag: etag + 1, lock: Some(index), ..activity });
                    state.members[index].holds = Holds::Written(etag + 1);
                });
            }
            Holds::InMemory(_) | Holds::Written(_) => {}
        }
        if let Holds::InMemory(etag) | Holds::Written(etag) = member.holds {
            let is_flying = state.flying.iter().any(|(sender, _)| *sender == index);
            if !is_flying && state.flying.len() < FLYING_MAX {
                add("work::ack::send", &|state| state.flying.push((index, etag)));
            }
            if activity.etag != etag && !is_flying {
                add("Lease::settle finds it lost or gone, Lease::give_up", &|state| state.let_go(index));
            }
        }
    }

    fn of_trouble(&self, state: &State, next: &mut Vec<(String, State)>) {
        for index in 0..MEMBERS {
            if state.troubles >= self.troubles {
                return;
            }
            let kinds = [Being::Mute, Being::Cut, Being::Dead];
            for being in kinds.into_iter().filter(|being| *being > state.members[index].being) {
                let mut following = state.clone();
                following.troubles += 1;
                let member = &mut following.members[index];
                (member.being, member.is_behind) = (being, true);
                member.is_excused |= being != Being::Mute;
                next.push((format!("m{index} is {being:?}"), following));
            }
        }
    }

    fn of_time(&self, state: &State, next: &mut Vec<(String, State)>) {
        let mut add = |action: String, change: &dyn Fn(&mut State)| {
            let mut following = state.clone();
            change(&mut following);
            next.push((action, following));
        };
        let has_unwritten = |member: &Member| {
            let can_write = matches!(member.being, Being::Well | Being::Mute);
            can_write && matches!(member.holds, Holds::InMemory(_))
        };
        let is_unwritten = self.guards.writes_in_time && state.members.iter().any(has_unwritten);
        for (index, member) in state.members.iter().enumerate() {
            match member.silence {
                Silence::Promised => add(format!("m{index} cannot count on its slots any more"), &|state| {
                    state.members[index].silence = Silence::Unsure;
                }),
                // Who is well beats in time; and who can write has written its locks by then.
                Silence::Unsure
                    if member.being != Being::Well
                        && !(self.guards.heeds_promise && has_unwritten(member))
                        && !is_unwritten =>
                {
                    add(format!("m{index} was silent for long"), &|state| {
                        state.members[index].silence = Silence::Long;
                        // That takes longer than `steal_after`.
                        state.activity = state.activity.map(|activity| Activity { is_old: true, ..activity });
                    });
                }
                Silence::Unsure | Silence::Long => {}
            }
        }
        let Some(activity) = state.activity else {
            return;
        };
        if !activity.is_old && !is_unwritten {
            add(String::from("the activity is old: who is idle may take it"), &|state| {
                state.activity = Some(Activity { is_old: true, ..activity });
            });
        }
        // Who reaches the server renews its lock.
        let is_renewed = |holder: usize| {
            let member = state.members[holder];
            matches!(member.being, Being::Well | Being::Mute) && matches!(member.holds, Holds::Written(_))
        };
        if activity.lock.is_some_and(|holder| !is_renewed(holder)) && !activity.is_lock_over {
            add(String::from("the lock ends"), &|state| {
                state.activity = Some(Activity { is_lock_over: true, ..activity });
            });
        }
    }
}

impl Model for Ownership {
    type State = State;

    fn start(&self) -> State {
        let member = Member {
            being: Being::Well,
            silence: Silence::Promised,
            owns: false,
            is_asked: false,
            had: false,
            knows: Knows::Nothing,
            holds: Holds::Nothing,
            is_excused: false,
            is_behind: false,
        };
        State {
            table: Table { owner: None, next: None, epoch: 0 },
            activity: None,
            members: [member; MEMBERS],
            flying: Vec::new(),
            troubles: 0,
            is_doubled: false,
        }
    }

    fn next(&self, state: &State) -> Vec<(String, State)> {
        let mut next = Vec::new();
        for index in 0..MEMBERS {
            self.of_member(state, index, &mut next);
        }
        self.of_trouble(state, &mut next);
        self.of_time(state, &mut next);
        for at in 0..state.flying.len() {
            let (sender, etag) = state.flying[at];
            let mut lost = state.clone();
            lost.flying.remove(at);
            if let Some(activity) = state.activity {
                let is_accepted = if self.guards.has_etag {
                    activity.etag == etag && activity.completed == 0
                } else {
                    true
                };
                if is_accepted {
                    let mut applied = lost.clone();
                    applied.activity = Some(Activity {
                        etag: activity.etag + 1,
                        lock: None,
                        completed: activity.completed + 1,
                        ..activity
                    });
                    let mut answered = applied.clone();
                    answered.let_go(sender);
                    next.push((format!("m{sender}: Store::batch completes it"), answered));
                    next.push((format!("m{sender}: Store::batch completes it, its answer is lost"), applied));
                }
            }
            next.push((format!("m{sender}: Store::batch is lost or refused"), lost));
        }
        next.retain(|(_, state)| {
            state.activity.is_none_or(|activity| activity.etag <= ETAG_MAX) && state.table.epoch <= EPOCH_MAX
        });
        // Requests overtake each other anyway: their order tells nothing.
        next.iter_mut().for_each(|(_, state)| state.flying.sort_unstable());
        next
    }

    fn broken(&self, state: &State) -> Option<String> {
        if state.activity.is_some_and(|activity| activity.completed > 1) {
            return Some(String::from("the activity is completed twice"));
        }
        state.is_doubled.then(|| String::from("two members have the activity"))
    }

    fn unfinished(&self, _: &State) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Explored, explore};
    use super::*;

    fn explored(guards: Guards) -> Explored {
        explore(&Ownership { troubles: 1, guards }, 2_000_000)
    }

    fn why(guards: Guards) -> String {
        match explored(guards) {
            Explored::Broken { why, .. } => why,
            Explored::Sound { states } => format!("nothing is wrong in {states} states"),
        }
    }

    #[test]
    fn an_activity_is_completed_once_and_begun_once_while_members_reach_the_server() {
        let explored = explored(Guards::ALL);
        assert!(matches!(explored, Explored::Sound { states } if states > 10_000), "{explored:?}");
    }

    #[test]
    fn without_the_etag_it_is_completed_twice() {
        assert_eq!(why(Guards { has_etag: false, ..Guards::ALL }), "the activity is completed twice");
    }

    #[test]
    fn without_any_one_of_the_rules_two_members_have_it() {
        let all = Guards::ALL;
        for (rule, guards) in [
            ("writes before handover", Guards { writes_before_handover: false, ..all }),
            ("writes in time", Guards { writes_in_time: false, ..all }),
            ("heeds the promise", Guards { heeds_promise: false, ..all }),
            ("looks again", Guards { looks_again: false, ..all }),
            ("trusts only what came later", Guards { trusts_only_later: false, ..all }),
            ("waits for the end", Guards { waits_for_end: false, ..all }),
        ] {
            assert_eq!(why(guards), "two members have the activity", "without: {rule}");
        }
    }
}
