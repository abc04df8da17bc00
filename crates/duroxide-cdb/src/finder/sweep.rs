//! The way of the searches for turns through all messages that are due.
//!
//! A search takes a page of the oldest. Where little waits, that is everything. A full page says nothing of what is
//! behind it, so the next search continues there: a round. While pages bring little for this process - the queue of one
//! busy instance may fill a thousand of them - each search also takes what became due since the last one, so that new
//! work is found at once however long the round takes. Either way a search looks at no more documents than it returns.

use super::pace::Left;

/// How far the searches have come, besides the page where the round is.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// From when on the latest are asked for; `None` as long as nothing is in the way.
    latest: Option<u64>,
    /// The last round came to its end and brought nothing: the next one has no hurry.
    is_settled: bool,
    /// This round has brought something.
    has_news: bool,
}

/// What one search saw of one stretch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Messages.
    pub(crate) rows: usize,
    /// Instances among them that had nothing to do before.
    pub(crate) news: usize,
    /// Where the next search continues; zero if no page was full.
    pub(crate) next: u64,
    /// Some of it could not be read.
    pub(crate) is_partial: bool,
}

impl Sweep {
    /// From when on the next search asks for the latest, besides its page.
    pub(crate) fn latest(&self) -> Option<u64> {
        self.latest
    }

    /// Somebody new looks for work: what was passed over before is looked at again.
    pub(crate) fn begin_anew(&mut self) {
        *self = Self::default();
    }

    /// Much of what looks like news is for others: the latest are asked for from `now` on, as if pages had brought little.
    pub(crate) fn distrust(&mut self, now: u64) {
        self.latest.get_or_insert(now.saturating_sub(ARRIVAL_MS));
    }

    /// Notes what a search at `now` saw in its page, which began at `from`, and of the latest. Returns what it leaves.
    pub(crate) fn came(&mut self, now: u64, from: u64, page: Seen, latest: Option<Seen>) -> Left {
        if from == 0 && page.next == 0 {
            self.begin_anew();
            return Left::default();
        }
        // What could not be read may have been news.
        self.has_news |= page.news > 0 || page.is_partial;
        if page.next == 0 {
            self.is_settled = !std::mem::take(&mut self.has_news);
        }
        let is_barren = page.news * 2 <= page.rows;
        // What a sender stamped with the present may arrive a moment later.
        let settled = now.saturating_sub(ARRIVAL_MS);
        self.latest = match (self.latest, latest) {
            (Some(before), Some(seen)) if seen.is_partial => Some(before),
            (Some(_), Some(seen)) if seen.next > 0 => Some(seen.next),
            (Some(before), Some(_)) => Some(before.max(settled)),
            (before, _) => before.or_else(|| is_barren.then_some(settled)),
        };
        let is_behind = latest.is_some_and(|seen| seen.next > 0);
        let is_promising = is_behind || (page.next > 0 && !self.is_settled);
        Left { cursor: page.next, is_promising, is_barren }
    }
}

/// Where a search continues that began at `from` and whose full pages ended at these times; zero if none was full.
pub(crate) fn behind(from: u64, lasts: impl Iterator<Item = u64>) -> u64 {
    // Past a page of one moment too.
    lasts.map(|last| if last == from { last + 1 } else { last }).min().unwrap_or(0)
}

/// So long a message may take from its stamp to its place in the queue before only a round finds it.
const ARRIVAL_MS: u64 = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 100_000;

    fn seen(rows: usize, news: usize, next: u64) -> Seen {
        Seen { rows, news, next, is_partial: false }
    }

    #[test]
    fn what_could_not_be_read_is_read_again() {
        let mut sweep = Sweep::default();
        sweep.came(NOW, 0, seen(10, 0, 50), None);
        let before = sweep.latest();
        let partial = Seen { is_partial: true, ..seen(4, 0, 0) };
        sweep.came(NOW + 9000, 50, partial, Some(partial));
        assert_eq!(sweep.latest(), before, "the latest are asked for from there again");
        let left = sweep.came(NOW + 9000, 0, seen(10, 0, 50), None);
        assert!(left.is_promising, "the round is made again, and soon");
    }

    #[test]
    fn where_little_waits_a_search_is_one_page_from_the_beginning() {
        let mut sweep = Sweep::default();
        assert_eq!(sweep.came(NOW, 0, seen(3, 0, 0), None), Left::default());
        assert_eq!(sweep.latest(), None);
    }

    #[test]
    fn a_page_that_brings_enough_is_followed_by_the_next_and_by_nothing_else() {
        let mut sweep = Sweep::default();
        let left = sweep.came(NOW, 0, seen(10, 6, 50), None);
        assert_eq!(left, Left { cursor: 50, is_promising: true, is_barren: false });
        assert_eq!(sweep.latest(), None);
    }

    #[test]
    fn behind_a_crowd_the_latest_are_followed_until_it_is_gone() {
        let mut sweep = Sweep::default();
        let left = sweep.came(NOW, 0, seen(10, 1, 50), None);
        assert_eq!(left, Left { cursor: 50, is_promising: true, is_barren: true });
        assert_eq!(sweep.latest(), Some(NOW - ARRIVAL_MS));
        sweep.came(NOW, 50, seen(10, 0, 60), Some(seen(10, 1, NOW - 5)));
        assert_eq!(sweep.latest(), Some(NOW - 5), "a full page of the latest is read on");
        sweep.came(NOW, 60, seen(10, 0, 70), Some(seen(2, 1, 0)));
        assert_eq!(sweep.latest(), Some(NOW - 5), "it never goes back");
        sweep.came(NOW + 9000, 70, seen(10, 0, 80), Some(seen(2, 1, 0)));
        assert_eq!(sweep.latest(), Some(NOW + 9000 - ARRIVAL_MS));
        sweep.came(NOW + 9000, 0, seen(3, 0, 0), Some(seen(0, 0, 0)));
        assert_eq!(sweep.latest(), None);
    }

    #[test]
    fn after_a_round_that_brought_nothing_the_next_has_no_hurry() {
        let mut sweep = Sweep::default();
        let mut promises = Vec::new();
        for (from, page) in [
            (0, seen(10, 1, 50)),
            (50, seen(10, 0, 60)),
            (60, seen(4, 0, 0)),
            (0, seen(10, 0, 50)),
            (50, seen(4, 0, 0)),
            (0, seen(10, 0, 50)),
            (50, seen(4, 1, 0)),
            (0, seen(10, 0, 50)),
        ] {
            promises.push(sweep.came(NOW, from, page, None).is_promising);
        }
        assert_eq!(promises, [true, true, false, true, false, false, false, true]);
        assert!(
            sweep.came(NOW, 50, seen(10, 0, 60), Some(seen(10, 0, 70))).is_promising,
            "the latest are behind"
        );
    }

    #[test]
    fn the_next_search_continues_where_the_first_range_stopped() {
        assert_eq!(behind(0, [].into_iter()), 0);
        assert_eq!(behind(0, [9, 7].into_iter()), 7);
        assert_eq!(behind(9, [9].into_iter()), 10);
    }
}
