//! Delivery between partitions: an intent in the source, a message under an id that follows from the intent in the target,
//! and a tombstone where the message was consumed.

use super::Model;

/// One intent, two who deliver it, one who consumes.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// How often those who deliver may crash altogether.
    pub crashes: u8,
    /// Consumed messages leave a tombstone; the protocol as it is does.
    pub has_tombstone: bool,
    /// The intent goes after the message has arrived; the protocol as it is does it in this order.
    pub removes_after: bool,
}

const PROCESSES: usize = 2;

/// A moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    has_intent: bool,
    target: Target,
    consumed: u8,
    processes: [Process; PROCESSES],
    /// Creations that have left and not arrived.
    flying: u8,
    crashes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Nothing,
    Message,
    Tombstone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Process {
    Idle,
    /// Has read the intent, which may be gone by now.
    Read,
    /// Has sent the creation.
    Sent,
    /// Knows that the message has arrived, then or earlier.
    Arrived,
}

/// Creations under way at once: more bring no new behaviour.
const FLYING_MAX: u8 = 2;

impl Delivery {
    fn of_process(&self, state: &State, index: usize, next: &mut Vec<(String, State)>) {
        let mut add = |action: &str, change: &dyn Fn(&mut State)| {
            let mut following = state.clone();
            change(&mut following);
            next.push((format!("p{index}: {action}"), following));
        };
        match state.processes[index] {
            Process::Idle => {
                if state.has_intent {
                    add("outbox::deliver::deliver_all or reconciler::run reads the intent", &|state| {
                        state.processes[index] = Process::Read;
                        state.has_intent = self.removes_after;
                    });
                }
            }
            Process::Read => {
                if state.flying < FLYING_MAX {
                    add("outbox::deliver::deliver_one sends it by queue::put", &|state| {
                        state.flying += 1;
                        state.processes[index] = Process::Sent;
                    });
                }
            }
            Process::Sent => {
                if state.target != Target::Nothing {
                    add("queue::put is answered, or finds it there", &|state| {
                        state.processes[index] = Process::Arrived;
                    });
                }
                add("no answer, outbox::deliver::deliver_one again", &|state| {
                    state.processes[index] = Process::Read;
                });
            }
            Process::Arrived => add("outbox::deliver::remove", &|state| {
                state.has_intent = false;
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

impl Model for Delivery {
    type State = State;

    fn start(&self) -> State {
        State {
            has_intent: true,
            target: Target::Nothing,
            consumed: 0,
            processes: [Process::Idle; PROCESSES],
            flying: 0,
            crashes: 0,
        }
    }

    fn next(&self, state: &State) -> Vec<(String, State)> {
        let mut next = Vec::new();
        for index in 0..PROCESSES {
            self.of_process(state, index, &mut next);
        }
        if state.flying > 0 {
            let lost = State { flying: state.flying - 1, ..state.clone() };
            if state.target == Target::Nothing {
                let arrived = State { target: Target::Message, ..lost.clone() };
                next.push((String::from("Store::write creates the message"), arrived));
            }
            next.push((String::from("Store::write is lost, or finds something there"), lost));
        }
        if state.target == Target::Message {
            let target = if self.has_tombstone { Target::Tombstone } else { Target::Nothing };
            let consumed = State { target, consumed: state.consumed + 1, ..state.clone() };
            next.push((String::from("orchestration::plan::consume_messages in a commit"), consumed));
        }
        next
    }

    fn broken(&self, state: &State) -> Option<String> {
        (state.consumed > 1).then(|| String::from("the message is consumed twice"))
    }

    fn unfinished(&self, state: &State) -> Option<String> {
        (state.consumed == 0).then(|| String::from("the message is lost"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Explored, explore};
    use super::*;

    const AS_IT_IS: Delivery = Delivery { crashes: 3, has_tombstone: true, removes_after: true };

    #[test]
    fn a_message_arrives_and_is_consumed_once_whatever_crashes_and_gets_lost() {
        let explored = explore(&AS_IT_IS, 1_000_000);
        assert!(matches!(explored, Explored::Sound { states } if states > 100), "{explored:?}");
    }

    #[test]
    fn without_tombstones_a_late_delivery_is_consumed_again() {
        let explored = explore(&Delivery { has_tombstone: false, ..AS_IT_IS }, 1_000_000);
        assert!(matches!(&explored, Explored::Broken { why, .. } if why.contains("twice")), "{explored:?}");
    }

    #[test]
    fn an_intent_that_goes_before_its_message_arrived_loses_it() {
        let explored = explore(&Delivery { removes_after: false, ..AS_IT_IS }, 1_000_000);
        assert!(matches!(&explored, Explored::Broken { why, .. } if why.contains("lost")), "{explored:?}");
    }
}
