//! Document ids and partition names: the only place they are formatted.
//!
//! Instance names may hold anything. Within a partition there is one instance, so an id needs to be legal and
//! stable, not reversible: what Cosmos forbids is percent-escaped and what is too long ends in a hash.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// The head of an instance. The same id the public crate used for every name it could store.
pub(crate) fn head(instance: &str) -> String {
    bounded(&legal(instance), ":instance")
}

/// The record of one execution.
pub(crate) fn execution(instance: &str, execution_id: u64) -> String {
    bounded(&legal(instance), &format!(":execution:{execution_id}"))
}

/// A history document, named after the first event in it.
pub(crate) fn history(instance: &str, execution_id: u64, first_event_id: u64) -> String {
    bounded(&legal(instance), &format!(":history:{execution_id}:{first_event_id}"))
}

/// A message that is enqueued directly.
pub(crate) fn message() -> String {
    format!("message:{}", uuid::Uuid::new_v4().simple())
}

/// Whether an id is that of a [`message`].
pub(crate) fn is_message(id: &str) -> bool {
    id.starts_with("message:")
}

/// An activity: deterministic, so that a cancel can name it without having seen it.
pub(crate) fn work(execution_id: u64, activity_id: u64) -> String {
    format!("work:{execution_id}:{activity_id}")
}

/// The execution and the activity that the id of a work item names. The public crate's name none.
pub(crate) fn activity_of(id: &str) -> Option<(u64, u64)> {
    let mut parts = id.strip_prefix("work:")?.split(':').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(execution)), Some(Ok(activity))) => Some((execution, activity)),
        _ => None,
    }
}

/// A work item beside one that already has the deterministic id.
pub(crate) fn another_work(first: &str) -> String {
    format!("{first}:{}", uuid::Uuid::new_v4().simple())
}

/// An outbox intent. The turn counter makes it unique for the life of the instance.
pub(crate) fn intent(turn: u64, index: usize) -> String {
    format!("intent:{turn}:{index}")
}

/// The intent of a work item's completion that goes to another partition.
pub(crate) fn work_intent(commit: &str) -> String {
    format!("intent:work:{commit}")
}

/// The target document of an intent: the same for every delivery of it and for nothing else.
pub(crate) fn delivery(source: &str, incarnation: &str, intent_id: &str) -> String {
    format!("delivery:{}", hash(&[source, incarnation, intent_id]))
}

/// The message that tells a parent that its child could not be started.
pub(crate) fn failure(source: &str, intent_id: &str) -> String {
    format!("failure:{}", hash(&[source, intent_id]))
}

/// What is kept of an intent that can never be delivered.
pub(crate) fn dead_letter(intent_id: &str) -> String {
    format!("{DEAD_PREFIX}{intent_id}")
}

/// The intent by which a message that came too early is sent again.
pub(crate) fn early_intent(message_id: &str) -> String {
    format!("intent:early:{message_id}")
}

/// The intent that a dead letter was.
pub(crate) fn revived(dead_letter_id: &str) -> String {
    dead_letter_id.strip_prefix(DEAD_PREFIX).unwrap_or(dead_letter_id).to_owned()
}

/// What is prepared or left to do for one commit.
pub(crate) fn manifest(commit: &str) -> String {
    format!("manifest:{commit}")
}

/// A group of documents waiting for publication.
pub(crate) fn staged(commit: &str, index: u32) -> String {
    format!("staged:{commit}:{index}")
}

/// A piece of a text too large for one document.
pub(crate) fn chunk(commit: &str, index: u32) -> String {
    format!("{}{index}", chunks_of(commit))
}

/// How the ids of a commit's pieces begin.
pub(crate) fn chunks_of(commit: &str) -> String {
    format!("chunk:{commit}:")
}

/// A value that the head only points to.
pub(crate) fn value(turn: u64, index: usize) -> String {
    format!("value:{turn}:{index}")
}

/// The partition of a session; the document in it is always [`SESSION`].
pub(crate) fn session_partition(session_id: &str) -> String {
    let name = format!("{SESSION_PREFIX}{session_id}");
    if name.len() <= PARTITION_BYTES_MAX {
        return name;
    }
    format!("{SESSION_PREFIX}#{}", hash(&[session_id]))
}

/// Whether a partition is the provider's own and not an instance.
#[must_use]
pub fn is_reserved(partition: &str) -> bool {
    partition.starts_with(SESSION_PREFIX) || RESERVED.contains(&partition)
}

/// Why a name cannot be the id of an instance, if it cannot.
pub(crate) fn refusal(instance: &str) -> Option<String> {
    if is_reserved(instance) {
        return Some(format!(
            "The instance id {instance:?} is reserved by the provider: choose another name."
        ));
    }
    (instance.len() > PARTITION_BYTES_MAX).then(|| {
        format!(
            "The instance id is {} bytes long; Cosmos DB allows {PARTITION_BYTES_MAX}: choose a shorter one.",
            instance.len()
        )
    })
}

/// The one document of a session's partition.
pub(crate) const SESSION: &str = "session";
/// The partition of deletions that are under way.
pub(crate) const DELETIONS: &str = "__deletions__";
/// The partition of what describes the container itself.
pub(crate) const META: &str = "__meta__";
/// The document that says which layout the container has.
pub(crate) const FORMAT: &str = "format";
/// The partition of the fleet.
pub(crate) const LEASES: &str = "__leases__";
/// The document that says who looks after which slots.
pub(crate) const SLOT_TABLE: &str = "slots";
/// The document that says where something is new.
pub(crate) const BELL: &str = "bell";

/// The document of a member of the fleet.
pub(crate) fn member(owner: &str) -> String {
    bounded(&legal(&format!("member:{owner}")), "")
}

const DEAD_PREFIX: &str = "dead:";
const SESSION_PREFIX: &str = "__session__:";
const RESERVED: [&str; 3] = [DELETIONS, META, LEASES];
const PARTITION_BYTES_MAX: usize = 2048;
/// Enough to tell sessions apart; every work item carries them.
const LANE_DIGITS: usize = 24;
/// The service's limit is 1023 bytes; percent-escapes in a URL triple a byte, so stay well below.
const ID_BYTES_MAX: usize = 900;

fn legal(name: &str) -> String {
    let mut legal = String::with_capacity(name.len());
    for character in name.chars() {
        if matches!(character, '/' | '\\' | '?' | '#') || character.is_control() {
            let _ = write!(legal, "%{:02X}", u32::from(character));
        } else {
            legal.push(character);
        }
    }
    legal
}

fn bounded(name: &str, suffix: &str) -> String {
    if name.len() + suffix.len() <= ID_BYTES_MAX {
        return format!("{name}{suffix}");
    }
    format!("~{}{suffix}", hash(&[name]))
}

/// What stands for a session in the name of a lane.
pub(crate) fn lane_of_session(session_id: &str) -> String {
    let mut hash = hash(&[session_id]);
    hash.truncate(LANE_DIGITS);
    hash
}

fn hash(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part.as_bytes());
    }
    digest.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_keep_the_ids_of_the_public_crate() {
        assert_eq!(head("order-1"), "order-1:instance");
        assert_eq!(history("order-1", 2, 7), "order-1:history:2:7");
        assert_eq!(head("100%"), "100%:instance");
    }

    #[test]
    fn every_name_makes_a_legal_id() {
        let long = "x".repeat(2000);
        for name in ["a/b", "a\\b", "a?b#c", "line\nbreak", "🦀", "", long.as_str()] {
            for id in [head(name), execution(name, u64::MAX), history(name, u64::MAX, u64::MAX)] {
                assert!(id.len() <= 1023, "{id}");
                assert!(!id.contains(['/', '\\', '?', '#', '\n']), "{id}");
            }
        }
        assert_ne!(head(&"x".repeat(2000)), head(&"x".repeat(2001)));
    }

    #[test]
    fn a_delivery_is_named_after_its_source_and_nothing_else() {
        assert_eq!(delivery("a", "i", "intent:1:0"), delivery("a", "i", "intent:1:0"));
        assert_ne!(delivery("a", "i", "intent:1:0"), delivery("a", "i", "intent:1:1"));
        assert_ne!(delivery("a", "i", "intent:1:0"), delivery("ai", "", "intent:1:0"));
    }

    #[test]
    fn reserved_and_overlong_names_are_refused_with_a_reason() {
        assert!(refusal("__deletions__").unwrap().contains("reserved"));
        assert!(refusal("__session__:x").unwrap().contains("reserved"));
        assert!(refusal(&"x".repeat(2049)).unwrap().contains("2049"));
        assert_eq!(refusal("session:x"), None);
        assert_eq!(refusal(&"x".repeat(2048)), None);
    }

    #[test]
    fn an_overlong_session_still_has_one_partition() {
        let name = session_partition(&"s".repeat(4000));
        assert!(name.len() < 200);
        assert_eq!(name, session_partition(&"s".repeat(4000)));
    }
}
