//! Commit and settlement: a turn is written in one batch on condition of the head's ETag, with a commit id in it. Who gets
//! no answer looks at the head.

use super::Model;

/// Two processes, one instance, some messages.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// Messages that are there at the beginning.
    pub messages: u8,
    /// How often processes may crash altogether.
    pub crashes: u8,
    /// What makes a commit count; the protocol as it is has both.
    pub guards: Guards,
}

/// What the protocol rests on; a model without one of them must break.
#[derive(Clone, Copy, Debug)]
pub struct Guards {
    /// The batch asks for the ETag of the head as it was locked.
    pub has_etag: bool,
    /// The head tells which commit wrote it.
    pub has_commit_id: bool,
}

impl Guards {
    /// As it is.
    pub const ALL: Self = Self { has_etag: true, has_commit_id: true };
}

const PROCESSES: usize = 2;
/// Sends of one draft: more bring no new behaviour, since the first that is applied changes the ETag.
const SENDS_MAX: u8 = 2;

/// A moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    head: Head,
    processes: [Process; PROCESSES],
    /// Requests that have left and not arrived; they may arrive at any time, or never.
    flying: Vec<Request>,
    crashes: u8,
    next_commit: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    etag: u8,
    lock: Option<usize>,
    is_lock_over: bool,
    commit: Option<u8>,
    /// How often each message was consumed.
    consumed: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Process {
    Idle,
    /// Holds the lock as far as it knows, with the messages that were there.
    Holds {
        etag: u8,
        upto: u8,
    },
    /// Has sent its draft, and waits.
    Waits {
        draft: Draft,
    },
    /// Was told that the turn is committed.
    Told {
        commit: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Draft {
    etag: u8,
    commit: u8,
    from: u8,
    upto: u8,
    sends: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    process: usize,
    draft: Draft,
}

impl Commit {
    /// The server applies the batch, or refuses it.
    fn apply(&self, head: &Head, draft: Draft) -> Option<Head> {
        if self.guards.has_etag && head.etag != draft.etag {
            return None;
        }
        let mut head = head.clone();
        head.etag += 1;
        (head.lock, head.is_lock_over) = (None, false);
        head.commit = self.guards.has_commit_id.then_some(draft.commit);
        for message in draft.from..draft.upto {
            head.consumed[usize::from(message)] += 1;
        }
        Some(head)
    }

    fn first_left(head: &Head) -> u8 {
        head.consumed.iter().take_while(|times| **times > 0).count() as u8
    }

    fn of_process(&self, state: &State, index: usize, next: &mut Vec<(String, State)>) {
        let mut add = |action: &str, change: &dyn Fn(&mut State)| {
            let mut following = state.clone();
            change(&mut following);
            next.push((format!("p{index}: {action}"), following));
        };
        let is_free = state.head.lock.is_none() || state.head.is_lock_over;
        match state.processes[index] {
            Process::Idle => {
                let first = Self::first_left(&state.head);
                if is_free && first < self.messages {
                    // An accepted lock proves that what was read is current, so reading and locking are one step.
                    add("orchestration::lock::acquire", &|state| {
                        state.head.etag += 1;
                        (state.head.lock, state.head.is_lock_over) = (Some(index), false);
                        let etag = state.head.etag;
                        state.processes[index] = Process::Holds { etag, upto: self.messages };
                    });
                }
            }
            Process::Holds { etag, upto } => {
                let from = Self::first_left(&state.head);
                add("orchestration::ack::draft, orchestration::ack::send", &|state| {
                    let draft = Draft { etag, commit: state.next_commit, from, upto, sends: 1 };
                    state.next_commit += 1;
                    state.flying.push(Request { process: index, draft });
                    state.processes[index] = Process::Waits { draft };
                });
                if state.head.lock == Some(index) && state.head.etag == etag {
                    add("orchestration::lock::renew", &|state| {
                        state.head.etag += 1;
                        state.head.is_lock_over = false;
                        state.processes[index] = Process::Holds { etag: state.head.etag, upto };
                    });
                }
            }
            Process::Waits { draft } => {
                // No answer came in time, or one that says that something changed: the head tells.
                let head = &state.head;
                if head.commit == Some(draft.commit) {
                    add("Lease::settle sees its commit", &|state| {
                        state.processes[index] = Process::Told { commit: draft.commit };
                    });
                } else if head.lock == Some(index) {
                    if draft.sends < SENDS_MAX {
                        add("Lease::settle sees its lock, orchestration::ack::send again", &|state| {
                            let draft = Draft { etag: state.head.etag, sends: draft.sends + 1, ..draft };
                            state.flying.push(Request { process: index, draft });
                            state.processes[index] = Process::Waits { draft };
                        });
                    }
                    if head.is_lock_over {
                        add("orchestration::ack::conclude finds nothing, Lease::give_up", &|state| {
                            state.processes[index] = Process::Idle;
                        });
                    }
                } else {
                    add("Lease::settle sees another's lock", &|state| {
                        state.processes[index] = Process::Idle;
                    });
                }
            }
            Process::Told { .. } => add("the runtime fetches again", &|state| {
                state.processes[index] = Process::Idle;
            }),
        }
        if state.crashes < self.crashes && state.processes[index] != Process::Idle {
            add("crash", &|state| {
                state.crashes += 1;
                state.processes[index] = Process::Idle;
            });
        }
    }
}

impl Model for Commit {
    type State = State;

    fn start(&self) -> State {
        State {
            head: Head {
                etag: 0,
                lock: None,
                is_lock_over: false,
                commit: None,
                consumed: vec![0; usize::from(self.messages)],
            },
            processes: [Process::Idle; PROCESSES],
            flying: Vec::new(),
            crashes: 0,
            next_commit: 1,
        }
    }

    fn next(&self, state: &State) -> Vec<(String, State)> {
        let mut next = Vec::new();
        for index in 0..PROCESSES {
            self.of_process(state, index, &mut next);
        }
        for at in 0..state.flying.len() {
            let Request { process, draft } = state.flying[at];
            let mut lost = state.clone();
            lost.flying.remove(at);
            if let Some(head) = self.apply(&state.head, draft) {
                let unanswered = State { head, ..lost.clone() };
                let mut answered = unanswered.clone();
                if matches!(state.processes[process], Process::Waits { draft: waiting } if waiting.commit == draft.commit)
                {
                    answered.processes[process] = Process::Told { commit: draft.commit };
                    next.push((format!("p{process}: Store::batch is applied"), answered));
                }
                next.push((format!("p{process}: Store::batch is applied, its answer is lost"), unanswered));
            }
            next.push((format!("p{process}: Store::batch is lost or refused"), lost));
        }
        if state.head.lock.is_some() && !state.head.is_lock_over {
            let mut over = state.clone();
            over.head.is_lock_over = true;
            next.push((String::from("the lock ends"), over));
        }
        // Numbers only grow; a run that is long enough has shown everything.
        next.retain(|(_, state)| state.head.etag <= ETAG_MAX && state.next_commit <= COMMITS_MAX);
        // Requests overtake each other anyway: their order tells nothing.
        next.iter_mut().for_each(|(_, state)| state.flying.sort_unstable());
        next
    }

    fn broken(&self, state: &State) -> Option<String> {
        let twice = state.head.consumed.iter().position(|times| *times > 1);
        twice.map(|message| format!("message {message} is consumed by two turns"))
    }

    fn unfinished(&self, _: &State) -> Option<String> {
        None
    }
}

const ETAG_MAX: u8 = 5;
const COMMITS_MAX: u8 = 4;

#[cfg(test)]
mod tests {
    use super::super::{Explored, explore};
    use super::*;

    fn explored(guards: Guards) -> Explored {
        explore(&Commit { messages: 2, crashes: 1, guards }, 1_000_000)
    }

    #[test]
    fn each_message_is_consumed_by_one_turn_whatever_crashes_and_gets_lost() {
        let explored = explored(Guards::ALL);
        assert!(matches!(explored, Explored::Sound { states } if states > 1_000), "{explored:?}");
    }

    #[test]
    fn without_the_etag_a_late_commit_consumes_a_message_twice() {
        let explored = explored(Guards { has_etag: false, ..Guards::ALL });
        assert!(matches!(explored, Explored::Broken { .. }), "{explored:?}");
    }
}
