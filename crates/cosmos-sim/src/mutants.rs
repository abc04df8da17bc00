//! Bugs that the simulation must find: each is one line at the place named, marked with its number.

/// A bug that can be built in.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// As `cosmos_wire::mutant!` has it.
    pub number: u32,
    /// The function it is in.
    pub place: &'static str,
    /// What is wrong then.
    pub bug: &'static str,
}

const fn mutant(number: u32, place: &'static str, bug: &'static str) -> Mutant {
    Mutant { number, place, bug }
}

/// All of them.
pub const MUTANTS: [Mutant; 39] = [
    mutant(1, "orchestration::ack::send", "a commit does not ask for the ETag of the head"),
    mutant(2, "orchestration::ack::commit", "any head is taken for one that holds the commit"),
    mutant(3, "orchestration::plan::consume_messages", "a consumed message leaves no tombstone"),
    mutant(4, "outbox::deliver::deliver_one", "each delivery has an id of its own"),
    mutant(5, "outbox::deliver::deliver_each", "intents are removed before they are delivered"),
    mutant(6, "orchestration::plan::consume_messages", "the first message of a turn is not consumed"),
    mutant(7, "orchestration::plan::plan", "a commit keeps the lock"),
    mutant(8, "documents::Head::is_locked", "turns of others are taken before their lock ends"),
    mutant(9, "orchestration::fetch::take", "an attempt counts twice"),
    mutant(
        10,
        "documents::WorkDocument::available_at",
        "activities of others are taken before their lock ends",
    ),
    mutant(11, "work::ack::parting", "a completed activity stays in the queue"),
    mutant(12, "work::ack::parting", "one completion in four is not written"),
    mutant(13, "documents::Message::new", "messages are not in the order in which they were sent"),
    mutant(14, "orchestration::plan::append_history", "the fifth event of a history is not written"),
    mutant(15, "orchestration::plan::apply_values", "the custom status is not kept"),
    mutant(16, "documents::Message::new", "timers fire at once"),
    mutant(17, "admin::delete::remove", "a deletion leaves the history"),
    mutant(18, "admin::prune::victims", "pruning takes the current execution, too"),
    mutant(19, "queue::for_orchestrator", "a message without an answer is taken for one that arrived"),
    mutant(20, "settle::after", "no answer is taken for a refusal"),
    mutant(21, "session::claim", "sessions of others are taken"),
    mutant(22, "orchestration::lock::usable", "a lock that came too late burns an attempt"),
    mutant(23, "reconciler::run", "nobody looks for what the dead left undone"),
    mutant(24, "documents::kv::settle", "key-values are lost when an execution ends"),
    mutant(25, "operation::decide::answered", "ranges are not read again after a split"),
    mutant(26, "operation::decide::wrong_region", "regions are not read again after a failover"),
    mutant(27, "operation::known_session", "session tokens are not sent"),
    mutant(28, "Error::may_have_been_applied", "a write without an answer is said not to have happened"),
    mutant(29, "engine::item::check_conditions", "the server does not compare ETags"),
    mutant(30, "engine::batch::atomic", "a batch that fails keeps what was done before"),
    mutant(31, "Fleet::may_hold_unwritten", "locks are kept in memory when nothing is promised any more"),
    mutant(32, "CosmosLeaseProvider::living", "slots are taken before their owner's lease has ended"),
    mutant(33, "membership::tasks::hand_over", "slots are handed over before the locks in them are written"),
    mutant(34, "membership::tasks::use_view", "work that was found in slots that went is still taken"),
    mutant(35, "finder::work::has", "what went a moment ago is taken again when an old page shows it"),
    mutant(36, "membership::tasks::write_locks_in_time", "locks in memory are never written"),
    mutant(37, "BellRinger::ring", "nobody rings"),
    mutant(38, "fleet::cosmos::serves", "locks are kept in memory before others know that such work is run"),
    mutant(39, "work::fetch::attempt", "what was there before a slot was gained is locked in memory"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_are_numbered_without_gaps() {
        let numbers: Vec<u32> = MUTANTS.iter().map(|mutant| mutant.number).collect();
        assert_eq!(numbers, (1..=39).collect::<Vec<_>>());
    }
}
