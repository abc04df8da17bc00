//! Everything that reads stored documents, for the fuzzer: bytes go in, and nothing may panic or take much memory.

use serde_json::value::RawValue;

use crate::admin;
use crate::clock::Clock;
use crate::documents::{self, ChunkRef, Forgive, Head, Held, Manifest, Message, WorkDocument};
use crate::load;
use crate::orchestration::plan;
use crate::store::visible_at;

/// Reads bytes as every document and as every row of a list, and decides about a turn on what was read.
pub fn read(bytes: &[u8]) {
    let _ = documents::unreadable(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (documents::unpack(text, bytes.len() as u64 * 100), documents::unpack_events(text, 1000));
        let _ = (documents::is_sent_from_outside(text), documents::begins_instance(text));
    }
    let Ok(row) = serde_json::from_slice::<Box<RawValue>>(bytes) else { return };
    load::read_rows(std::slice::from_ref(&row));
    admin::read_row(&row);
    let _ = visible_at(&row);
    if let Ok(pieces) = serde_json::from_slice::<ChunkRef>(bytes) {
        let _ = (pieces.ids().count(), pieces.absurdity(), pieces.stored_bytes_max());
        let _ = pieces.text("text".to_owned());
    }
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) {
        let _ = ChunkRef::all(&manifest.commit, manifest.chunks);
    }
    if let Ok(message) = serde_json::from_slice::<Message>(bytes) {
        let _ = (message.order(), message.begins_execution());
    }
    if let Ok(mut work) = serde_json::from_slice::<WorkDocument>(bytes) {
        let _ = (work.order(), work.available_at());
        work.unlock(1, Forgive::ThisAttempt);
    }
    if let Ok(head) = serde_json::from_slice::<Head>(bytes) {
        turn_on(head);
    }
}

/// Locks a head and commits a turn that does a little of everything.
fn turn_on(head: Head) {
    let mut head = head.adopted(Default::default(), Default::default());
    let _ = (head.is_locked(1), head.is_visible(), head.is_compatible(None));
    let attempts = head.attempts_of("m").saturating_add(1);
    let held = Held { id: "m".to_owned(), attempts, delivered: true, chunks: None };
    head.lock("secret", u64::MAX, "me", vec![held]);
    let _ = documents::snapshot(&head.kv, &Default::default());
    for ends in [false, true] {
        plan::commit_for_fuzzing(&head, &Clock::default(), ends);
    }
    head.unlock(Forgive::ThisAttempt);
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_stored_and_what_is_not_is_read_without_a_panic() {
        let head = serde_json::to_vec(&super::Head::unstarted("a", 1)).unwrap();
        let mut absurd: serde_json::Value = serde_json::from_slice(&head).unwrap();
        for name in ["turn", "lastSequence", "eventCount", "eventBytes", "executionCount", "totalEventCount"]
        {
            absurd[name] = u64::MAX.into();
        }
        for bytes in [head.as_slice(), absurd.to_string().as_bytes(), b"{}", b"[]", b"\xff", b"5"] {
            super::read(bytes);
        }
    }
}
