//! How often to search: quick while there is work, slow when there is none.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The pace of one kind of search, shared by all that wait for its results.
#[derive(Debug)]
pub(crate) struct Pace {
    min: Duration,
    /// Pauses grow up to this length.
    max: Duration,
    state: Mutex<State>,
    /// Held while a search is under way: whoever else wants one waits for its result.
    gate: tokio::sync::Mutex<()>,
}

/// What a search brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Something new.
    Found,
    /// Nothing new, but there is other work.
    NothingNew,
    /// Nothing new and no other work.
    NothingToDo,
}

/// What somebody who wants to search has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// What a search finds when one is due. Several wake for it, and while one of them searches, however long that takes,
    /// the others wait for what it finds.
    Due,
    /// What a search finds that began at this time or later.
    BegunAt(Instant),
}

#[derive(Debug)]
struct State {
    pause: Duration,
    next: Option<Instant>,
    last_begun: Option<Instant>,
    /// What the last search left.
    left: Left,
    /// How many rows the next search asks each range for.
    rows: u32,
    /// How many searches there were.
    searches: u64,
    /// The last round of the net that this pace has begun, and whether the search under way belongs to it.
    net_round: u64,
    is_net: bool,
}

/// What a search left for the next one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Where the next one continues because the last one saw a full page; zero: at the beginning.
    pub(crate) cursor: u64,
    /// Whether there may be something for the searcher.
    pub(crate) is_promising: bool,
    /// Whether the last page was full of what is of no use to the searcher: it is passed in larger steps. Only who asks for
    /// small rows may take so many.
    pub(crate) is_barren: bool,
}

/// What a search asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    /// From this time of visibility on.
    pub(crate) from: u64,
    /// So many rows of each range.
    pub(crate) rows: u32,
    /// Counts the searches.
    pub(crate) number: u64,
    /// Whether it looks at everybody's part of the container: it is this member's turn to hold the net under the bell.
    pub(crate) is_net: bool,
}

impl Pace {
    /// A pace between two pauses.
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            state: Mutex::new(State {
                pause: min,
                next: None,
                last_begun: None,
                left: Left::default(),
                rows: ROWS_MIN,
                searches: 0,
                net_round: 0,
                is_net: false,
            }),
            gate: tokio::sync::Mutex::new(()),
        }
    }

    /// When the next search is due; `None` means now.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.lock().next
    }

    /// Waits for the right to search. `None` if a search that was under way has brought what is wished for.
    pub(crate) async fn enter(&self, wish: Wish) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let guard = self.gate.lock().await;
        let state = self.lock();
        let is_open = match wish {
            Wish::Due => state.next.is_none_or(|next| next <= Instant::now()),
            Wish::BegunAt(since) => state.last_begun.is_none_or(|begun| begun < since),
        };
        is_open.then_some(guard)
    }

    /// Whether the last search may have left something for the searcher.
    pub(crate) fn has_more(&self) -> bool {
        self.lock().left.is_promising
    }

    /// The next search begins at the beginning, at once.
    pub(crate) fn begin_anew(&self) {
        let mut state = self.lock();
        (state.left, state.next, state.rows) = (Left::default(), None, ROWS_MIN);
    }

    /// Notes that a search begins. If it is this member's turn to hold the net, in the round given, the search looks at
    /// everybody's part of the container, once in that round, and so do those that turn its pages.
    pub(crate) fn begin(&self, now: Instant, net_round: Option<u64>) -> Reach {
        let mut state = self.lock();
        if state.left.cursor == 0 {
            state.is_net = net_round.is_some_and(|round| round != state.net_round);
            state.net_round = net_round.unwrap_or(state.net_round);
        }
        state.last_begun = Some(now);
        // A search whose future is dropped must not stop all others.
        state.next = Some(now + self.min);
        state.searches += 1;
        Reach { from: state.left.cursor, rows: state.rows, number: state.searches, is_net: state.is_net }
    }

    /// Notes what a search found and where the next one continues: soon if there is nothing else to do, at leisure
    /// otherwise. Who hears of everything by the bell, and whose turn to hold the net is `net_in` this time, does not search
    /// before that once it has found nothing for a while.
    pub(crate) fn end(&self, now: Instant, outcome: Outcome, left: Left, net_in: Option<Duration>) {
        let mut state = self.lock();
        // The pages of one round follow each other quickly, so that known work hides no other. Only news makes the rounds
        // themselves quick: what nothing can be done about may fill pages for ever.
        // And a page of no use says nothing of what is behind it, also to who has other work.
        let turns_page = left.is_promising && (outcome == Outcome::NothingToDo || left.is_barren);
        let longest = if net_in.is_some() { self.max.max(NET_FROM) } else { self.max };
        state.pause = match outcome {
            Outcome::Found => self.min,
            _ if turns_page => state.pause,
            Outcome::NothingNew | Outcome::NothingToDo => {
                (state.pause * 2).clamp(self.min, longest.max(self.min))
            }
        };
        let net_in = net_in.filter(|_| outcome != Outcome::Found && state.pause >= NET_FROM);
        state.left = left;
        // One turn needs one row. Whoever has a backlog before them takes more at a time.
        let rows_max = if left.is_barren { BARREN_ROWS_MAX } else { ROWS_MAX };
        state.rows =
            if left.cursor > 0 || left.is_promising { (state.rows * 2).min(rows_max) } else { ROWS_MIN };
        let pause = net_in.map_or(state.pause, |turn| turn.max(state.pause));
        state.next = Some(now + if turns_page { self.min } else { pause });
    }

    /// The next search waits at least until then.
    pub(crate) fn put_off(&self, until: Instant) {
        let mut state = self.lock();
        state.next = state.next.map(|next| next.max(until));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pauses grow up to this length before a member relies on the bell and the net.
const NET_FROM: Duration = Duration::from_secs(2);
const ROWS_MIN: u32 = 10;
const ROWS_MAX: u32 = 100;
const BARREN_ROWS_MAX: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn left(cursor: u64) -> Left {
        Left { cursor, is_promising: cursor > 0, is_barren: false }
    }

    #[tokio::test]
    async fn searching_slows_down_when_idle_and_speeds_up_when_something_is_found() {
        let pace = Pace::new(Duration::from_millis(20), Duration::from_millis(100));
        let now = Instant::now();
        assert_eq!(pace.due(), None);
        let (found, nothing, busy) = (Outcome::Found, Outcome::NothingToDo, Outcome::NothingNew);
        let cases = [
            (nothing, 0, 40),
            (nothing, 0, 80),
            (nothing, 0, 100),
            (nothing, 0, 100),
            (nothing, 7, 20),
            (nothing, 0, 100),
            (busy, 7, 100),
            (found, 0, 20),
            (busy, 7, 40),
        ];
        for (outcome, cursor, expected) in cases {
            pace.begin(now, None);
            pace.end(now, outcome, left(cursor), None);
            assert_eq!(pace.due(), Some(now + Duration::from_millis(expected)));
        }
    }

    #[tokio::test]
    async fn who_hears_the_bell_searches_after_a_while_only_when_it_is_its_turn() {
        let pace = Pace::new(Duration::from_millis(500), Duration::from_millis(1000));
        let now = Instant::now();
        let turn = Some(Duration::from_secs(17));
        for (outcome, expected) in [
            (Outcome::NothingToDo, 1000),
            (Outcome::NothingToDo, 17_000),
            (Outcome::NothingToDo, 17_000),
            (Outcome::Found, 500),
            (Outcome::NothingNew, 1000),
            (Outcome::NothingNew, 17_000),
        ] {
            pace.begin(now, None);
            pace.end(now, outcome, left(0), turn);
            assert_eq!(pace.due(), Some(now + Duration::from_millis(expected)), "{outcome:?}");
        }
    }

    #[tokio::test]
    async fn one_search_of_each_turn_holds_the_net_with_all_its_pages() {
        let pace = Pace::new(Duration::from_millis(20), Duration::from_millis(100));
        let now = Instant::now();
        let mut nets = Vec::new();
        for (round, cursor) in
            [(None, 0), (Some(4), 1), (Some(4), 2), (None, 0), (Some(4), 0), (Some(8), 0), (None, 0)]
        {
            nets.push(pace.begin(now, round).is_net);
            pace.end(now, Outcome::NothingToDo, left(cursor), None);
        }
        assert_eq!(nets, [false, true, true, true, false, true, false]);
    }

    #[tokio::test]
    async fn searches_reach_further_while_pages_are_full() {
        let pace = Pace::new(Duration::from_millis(20), Duration::from_millis(100));
        let now = Instant::now();
        let mut rows = Vec::new();
        for cursor in [1, 2, 3, 4, 5, 0, 0] {
            rows.push(pace.begin(now, None).rows);
            pace.end(now, Outcome::Found, left(cursor), None);
            assert_eq!(pace.has_more(), cursor > 0);
        }
        assert_eq!(rows, [10, 20, 40, 80, 100, 100, 10]);
    }

    #[tokio::test]
    async fn pages_that_bring_nothing_are_passed_in_larger_steps() {
        let pace = Pace::new(Duration::from_millis(20), Duration::from_millis(100));
        let now = Instant::now();
        let mut rows = Vec::new();
        for (cursor, is_barren) in
            [(1, true), (2, true), (3, true), (4, true), (5, true), (6, true), (7, true), (8, false)]
        {
            rows.push(pace.begin(now, None).rows);
            pace.end(now, Outcome::NothingToDo, Left { is_barren, ..left(cursor) }, None);
        }
        assert_eq!(rows, [10, 20, 40, 80, 160, 320, 640, 1000]);
        pace.end(now, Outcome::NothingNew, Left { is_barren: true, ..left(9) }, None);
        assert_eq!(pace.due(), Some(now + Duration::from_millis(20)), "also by who has other work");
        pace.end(now, Outcome::NothingNew, left(9), None);
        assert_eq!(pace.due(), Some(now + Duration::from_millis(40)));
        assert_eq!(pace.begin(now, None).rows, 100);
    }

    #[tokio::test]
    async fn whoever_waited_for_a_search_uses_its_result() {
        let pace = Pace::new(Duration::from_millis(20), Duration::from_millis(100));
        let before = Instant::now();
        let guard = pace.enter(Wish::BegunAt(before)).await.unwrap();
        pace.begin(Instant::now(), None);
        drop(guard);
        assert!(pace.enter(Wish::BegunAt(before)).await.is_none());
        assert!(pace.enter(Wish::BegunAt(Instant::now() + Duration::from_millis(1))).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_search_that_takes_longer_than_the_shortest_pause_is_not_made_twice() {
        let pace = Pace::new(Duration::from_millis(20), Duration::from_millis(100));
        let guard = pace.enter(Wish::Due).await.unwrap();
        pace.begin(Instant::now(), None);
        tokio::time::advance(Duration::from_millis(50)).await;
        let mut other = std::pin::pin!(pace.enter(Wish::Due));
        assert!(futures::poll!(&mut other).is_pending());
        pace.end(Instant::now(), Outcome::NothingToDo, Left::default(), None);
        drop(guard);
        assert!(other.await.is_none(), "the first one has looked for both");
        tokio::time::advance(Duration::from_millis(40)).await;
        assert!(pace.enter(Wish::Due).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_search_that_is_given_up_stops_nobody() {
        let pace = Pace::new(Duration::from_millis(20), Duration::from_millis(100));
        let guard = pace.enter(Wish::Due).await.unwrap();
        pace.begin(Instant::now(), None);
        drop(guard);
        tokio::time::advance(Duration::from_millis(20)).await;
        assert!(pace.enter(Wish::Due).await.is_some());
    }
}
