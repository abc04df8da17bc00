//! How much of a long queue one look at an instance reads: what a few turns take, however much waits.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::documents::{Message, kind};

/// So many messages of a turn are consumed by its commit, which leaves room in the batch for what the turn made.
pub(crate) const MESSAGES_MAX: usize = 64;
/// What a turn takes at most, where those beyond [`MESSAGES_MAX`] may be removed after its commit: the results of a wide
/// fan-out are one turn. The rest follows in the next one, because a lock that is written lists them all.
pub(crate) const RESULTS_MAX: usize = 256;
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// With more messages waiting than this, a look asks only for this many and one more.
pub(crate) const WINDOW: usize = 512;

/// Counts the messages of a look, page by page.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    messages: usize,
    bytes: usize,
}

impl Backlog {
    /// Counts a page behind which there is another one. Whether that one is wanted: not when what has been read is more
    /// than the next turns take.
    pub(crate) fn goes_on(&mut self, rows: &[Box<RawValue>]) -> bool {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(rename = "type")]
            kind: &'a str,
        }
        let is_message = |row: &&RawValue| {
            serde_json::from_str(row.get()).is_ok_and(|row: Envelope<'_>| row.kind == kind::MESSAGE)
        };
        for row in rows.iter().map(AsRef::as_ref).filter(is_message) {
            self.messages += 1;
            self.bytes += row.get().len();
        }
        self.messages <= WINDOW && self.bytes <= WINDOW_BYTES_MAX
    }
}

/// A message of a long queue: its order key and its size.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Outline {
    pub(crate) seq: u64,
    #[serde(default)]
    pub(crate) size: usize,
}

/// The order key up to which messages are read, given the first ones in order. `None` if all that have a key fit: then
/// what waits besides has none.
pub(crate) fn window(first: &[Outline]) -> Option<u64> {
    let mut bytes = 0;
    let fitting = first.iter().take_while(|message| {
        // More than one turn takes, so that something is left that tells of the rest.
        let fits = bytes <= WINDOW_BYTES_MAX;
        bytes += message.size;
        fits
    });
    let fitting = fitting.count();
    let all_fit = fitting == first.len() && fitting <= WINDOW;
    first[..fitting].last().filter(|_| !all_fit).map(|last| last.seq)
}

/// How far a look reads a long queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// The order key up to which messages are read.
    pub(crate) upto: u64,
    /// Whether an earlier look found it. Others may have taken what was in it since.
    pub(crate) is_remembered: bool,
}

impl Window {
    /// Whether so few messages are left in it that what waits behind it is to be read as well. A turn that takes all
    /// of them leaves nothing that tells of the rest.
    pub(crate) fn is_spent(self, messages: usize) -> bool {
        messages == 0 || (self.is_remembered && messages <= MESSAGES_MAX)
    }
}

/// Puts the messages of a look in order. Those without a key are read wherever they belong: what is behind the window
/// comes after messages that were not read.
pub(crate) fn in_order(messages: &mut Vec<Message>, window: Option<Window>) {
    messages.retain(|message| window.is_none_or(|window| message.order() <= window.upto));
    messages.sort_by_key(Message::order);
}

/// The order key up to which the next look asks for messages, given those of this look and how far it asked. Those without
/// a key are only looked for with a new window.
pub(crate) fn next_window(messages: &[Message], upto: Option<u64>) -> Option<u64> {
    let is_enough = messages.len() > 2 * MESSAGES_MAX;
    let have_keys = messages.iter().all(|message| message.seq > 0);
    messages.get(WINDOW).map(Message::order).or(upto.filter(|_| is_enough)).filter(|_| have_keys)
}

const WINDOW_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::documents::Chunks;
    use duroxide::providers::WorkItem;

    fn row(kind: &str, bytes: usize) -> Box<RawValue> {
        let text = format!(r#"{{"type":"{kind}","workItem":"{}"}}"#, "x".repeat(bytes));
        RawValue::from_string(text).unwrap()
    }

    #[test]
    fn a_look_stops_when_it_has_more_messages_than_the_next_turns_take() {
        let page = |kind, rows, bytes| (0..rows).map(|_| row(kind, bytes)).collect::<Vec<_>>();
        for (pages, expected) in [
            (vec![page(kind::HISTORY, 1000, 10), page(kind::HISTORY, 1000, 10)], true),
            (vec![page(kind::MESSAGE, 300, 10), page(kind::HISTORY, 1000, 10)], true),
            (vec![page(kind::MESSAGE, 300, 10), page(kind::MESSAGE, 300, 10)], false),
            (vec![page(kind::MESSAGE, 5, 1 << 20), page(kind::MESSAGE, 5, 1 << 20)], false),
        ] {
            let mut backlog = Backlog::default();
            let went_on = pages.iter().map(|page| backlog.goes_on(page)).last();
            assert_eq!(went_on, Some(expected));
        }
    }

    #[test]
    fn a_window_holds_more_than_a_turn_takes_and_not_much_more() {
        let queue = |size| (1..=600).map(|seq| Outline { seq, size }).collect::<Vec<_>>();
        assert_eq!(window(&queue(100)[..=WINDOW]), Some(513));
        assert_eq!(window(&queue(MESSAGE_BYTES_MAX)), Some(3));
        assert_eq!(window(&queue(100)[..WINDOW]), None, "the others have no key");
        assert_eq!(window(&[]), None);
    }

    fn queue(messages: usize) -> Vec<Message> {
        let clock = Clock::default();
        let mail = WorkItem::QueueMessage { instance: "a".into(), name: "q".into(), data: String::new() };
        let message = || Message::new(&mail, None, &clock, 0, &mut Chunks::new("c")).unwrap();
        (0..messages).map(|_| message()).collect()
    }

    #[test]
    fn what_has_no_key_and_is_behind_the_window_is_left_for_later() {
        let mut queue = queue(4);
        // As the public crate writes them: one long ago, one just now.
        for (message, enqueued_at) in queue.iter_mut().zip([1, 1 << 42]) {
            (message.seq, message.enqueued_at) = (0, enqueued_at);
        }
        let window = Window { upto: queue[2].order(), is_remembered: false };
        let mut all = queue.clone();
        in_order(&mut all, None);
        let ids =
            |messages: &[Message]| messages.iter().map(|message| message.id.clone()).collect::<Vec<_>>();
        let order = [0, 2, 3, 1].map(|n| queue[n].id.clone());
        assert_eq!(ids(&all), order);
        in_order(&mut queue, Some(window));
        assert_eq!(ids(&queue), order[..2]);
    }

    #[test]
    fn only_a_remembered_window_is_spent_before_it_is_empty() {
        let window = |is_remembered| Window { upto: 7, is_remembered };
        assert!(window(true).is_spent(MESSAGES_MAX) && !window(true).is_spent(MESSAGES_MAX + 1));
        assert!(!window(false).is_spent(1) && window(false).is_spent(0));
    }

    #[test]
    fn the_window_stays_until_few_are_left_in_it() {
        let queue = queue(600);
        assert_eq!(next_window(&queue, None), Some(queue[WINDOW].order()));
        assert_eq!(next_window(&queue[..400], Some(7)), Some(7));
        assert_eq!(next_window(&queue[..400], None), None);
        assert_eq!(next_window(&queue[..100], Some(7)), None);
        let mut queue = queue;
        queue[0].seq = 0;
        assert_eq!(next_window(&queue, Some(7)), None, "the rest of those without a key is to be looked for");
    }
}
