//! Where a worker's items are when items for others crowd the way.
//!
//! A search first takes the oldest items, whomever they are for: where all are for the searcher, or few wait, that is
//! all of it. A full page with items for others says nothing about what is behind it. Then the searcher's own lanes are
//! asked as well: an index holds the items of each lane together, so that those of others are not even looked at.

use duroxide::TagFilter;

use super::sweep::behind;
use crate::documents::lane;

/// A part of the index that may hold items for a kind of worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stretch {
    /// One lane, in the order of visibility.
    Lane(String),
    /// All lanes between two texts, one lane after the other.
    Between(String, String),
    /// What earlier versions wrote: it is in no lane.
    Unlisted,
}

/// How far the searches of a stretch have come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The next one begins at the beginning.
    #[default]
    Beginning,
    /// From a time of visibility on.
    From(u64),
    /// Behind a lane.
    Behind(String),
}

/// A page of one range, as far as the way of the next search depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Glance {
    /// Whether there may be more behind it.
    pub(crate) is_full: bool,
    pub(crate) rows: Vec<Glimpse>,
}

/// A row of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glimpse {
    pub(crate) visible_at: u64,
    /// Earlier versions wrote none.
    pub(crate) lane: Option<String>,
    /// Whether the searcher may take it.
    pub(crate) is_for_us: bool,
}

/// The lanes of all that a worker may take.
pub(crate) fn stretches(tags: &TagFilter, sessions: bool) -> Vec<Stretch> {
    let named = |set: &std::collections::HashSet<String>| set.iter().cloned().map(Some).collect();
    let tags: Vec<Option<String>> = match tags {
        TagFilter::None => Vec::new(),
        TagFilter::Any => {
            let all = |(low, high)| Stretch::Between(low, high);
            let plain = all(lane::without_session());
            return if sessions { vec![plain, all(lane::with_session())] } else { vec![plain] };
        }
        TagFilter::DefaultOnly => vec![None],
        TagFilter::Tags(set) => named(set),
        TagFilter::DefaultAnd(set) => [vec![None], named(set)].concat(),
    };
    let plain = tags.iter().map(|tag| Stretch::Lane(lane::of(tag.as_deref(), None)));
    let of_sessions = tags.iter().filter(|_| sessions).map(|tag| {
        let (low, high) = lane::sessions_of(tag.as_deref());
        Stretch::Between(low, high)
    });
    plain.chain(of_sessions).collect()
}

/// Whether items for others may stand before some of the searcher's own. A page that is mostly its own gives it enough to
/// do.
pub(crate) fn is_crowded(pages: &[Glance]) -> bool {
    full(pages).any(|page| {
        let own = page.rows.iter().filter(|row| row.is_for_us).count();
        own * 2 <= page.rows.len()
    })
}

/// Whether a full page has items that are in no lane: there may be more of them behind it, which no lane shows.
pub(crate) fn has_unlisted(pages: &[Glance]) -> bool {
    full(pages).any(|page| page.rows.iter().any(|row| row.lane.is_none()))
}

/// From which time of visibility on the next search continues, so that no range leaves anything out; zero: from the
/// beginning.
pub(crate) fn next_time(from: u64, pages: &[Glance]) -> u64 {
    let lasts = full(pages).filter_map(|page| page.rows.last()).map(|row| row.visible_at);
    behind(from, lasts)
}

impl Stretch {
    /// Where the next search of this stretch continues.
    pub(crate) fn mark_behind(&self, before: &Mark, pages: &[Glance]) -> Mark {
        match self {
            Self::Lane(_) => {
                let from = if let Mark::From(from) = before { *from } else { 0 };
                match next_time(from, pages) {
                    0 => Mark::Beginning,
                    next => Mark::From(next),
                }
            }
            Self::Between(..) => {
                // The rest of the last lane is left for the next round: it may be long, and of a session that somebody
                // else has. Of a session of our own the first ones are known now.
                let lasts =
                    full(pages).filter_map(|page| page.rows.last()).filter_map(|row| row.lane.clone());
                lasts.min().map_or(Mark::Beginning, Mark::Behind)
            }
            // All that it shows is for the searcher, and gone once it is done.
            Self::Unlisted => Mark::Beginning,
        }
    }
}

fn full(pages: &[Glance]) -> impl Iterator<Item = &Glance> {
    pages.iter().filter(|page| page.is_full)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(is_full: bool, rows: &[(u64, Option<&str>, bool)]) -> Glance {
        let glimpse = |(visible_at, lane, is_for_us): &(u64, Option<&str>, bool)| Glimpse {
            visible_at: *visible_at,
            lane: lane.map(ToOwned::to_owned),
            is_for_us: *is_for_us,
        };
        Glance { is_full, rows: rows.iter().map(glimpse).collect() }
    }

    #[test]
    fn only_a_full_page_with_items_for_others_is_a_crowd() {
        let (ours, others) = ((1, Some("a"), true), (2, Some("b"), false));
        for (pages, expected) in [
            (vec![], false),
            (vec![page(true, &[ours, ours])], false),
            (vec![page(false, &[ours, others])], false),
            (vec![page(true, &[ours, others])], true),
            (vec![page(true, &[ours]), page(true, &[others])], true),
            // Half is too little, more than half is enough to do.
            (vec![page(true, &[[ours; 5], [others; 5]].concat())], true),
            (vec![page(true, &[&[ours; 6][..], &[others; 4]].concat())], false),
            (vec![page(true, &[&[ours; 6][..], &[others; 4]].concat()), page(true, &[others])], true),
        ] {
            assert_eq!(is_crowded(&pages), expected, "{pages:?}");
        }
        assert!(!has_unlisted(&[page(true, &[ours, others]), page(false, &[(1, None, true)])]));
        assert!(has_unlisted(&[page(true, &[ours, (1, None, true)])]));
    }

    #[test]
    fn the_next_search_continues_where_the_first_range_stopped() {
        let rows = |last| page(true, &[(3, Some("a"), true), (last, Some("c"), true)]);
        for (from, pages, expected) in [
            (0, vec![], 0),
            (0, vec![page(false, &[(9, Some("a"), true)])], 0),
            (0, vec![rows(9), rows(7), page(false, &[(5, Some("a"), true)])], 7),
            (9, vec![rows(9)], 10),
        ] {
            assert_eq!(next_time(from, &pages), expected, "{pages:?}");
        }
    }

    #[test]
    fn a_lane_is_read_on_by_time_and_many_lanes_are_read_on_by_lane() {
        let full = [page(true, &[(3, Some("s/a"), true), (9, Some("s/m"), false)])];
        let both = [full[0].clone(), page(true, &[(4, Some("s/c"), true)])];
        let one = Stretch::Lane("s".to_owned());
        assert_eq!(one.mark_behind(&Mark::Beginning, &full), Mark::From(9));
        assert_eq!(one.mark_behind(&Mark::From(9), &full), Mark::From(10));
        assert_eq!(one.mark_behind(&Mark::From(9), &[]), Mark::Beginning);
        let many = Stretch::Between("s".to_owned(), "t".to_owned());
        assert_eq!(many.mark_behind(&Mark::Beginning, &full), Mark::Behind("s/m".to_owned()));
        assert_eq!(many.mark_behind(&Mark::Beginning, &both), Mark::Behind("s/c".to_owned()));
        assert_eq!(many.mark_behind(&Mark::Behind("s/m".to_owned()), &[page(false, &[])]), Mark::Beginning);
    }

    #[test]
    fn a_worker_looks_into_the_lanes_of_what_it_may_take_and_into_no_other() {
        let within = |stretch: &Stretch, lane: &str| match stretch {
            Stretch::Unlisted => false,
            Stretch::Lane(own) => own == lane,
            Stretch::Between(low, high) => low.as_str() < lane && lane < high.as_str(),
        };
        let filters = [
            TagFilter::None,
            TagFilter::Any,
            TagFilter::DefaultOnly,
            TagFilter::tags(["gpu", "a"]),
            TagFilter::default_and(["gpu/x"]),
        ];
        let tags = [None, Some("gpu"), Some("gpu/x"), Some("a"), Some("a0"), Some("")];
        for (filter, sessions) in filters.iter().flat_map(|filter| [(filter, false), (filter, true)]) {
            let stretches = stretches(filter, sessions);
            for (tag, session) in tags.iter().flat_map(|tag| [None, Some(""), Some("s")].map(|s| (*tag, s))) {
                let may_take = filter.matches(tag) && (session.is_none() || sessions);
                let lane = lane::of(tag, session);
                let looks = stretches.iter().any(|stretch| within(stretch, &lane));
                assert_eq!(looks, may_take, "{filter:?} {sessions} {lane}");
            }
        }
    }
}
