//! Crews: all workers of this process that ask for the same share one search.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use duroxide::TagFilter;

use super::lanes::{Glance, Mark, Stretch, has_unlisted, is_crowded, stretches};
use super::pace::Pace;

/// The searches of one kind of worker.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) pace: Pace,
    way: Mutex<Way>,
}

/// What the searches before have met.
#[derive(Debug, Default)]
struct Way {
    /// Items for others stand in the way.
    is_crowded: bool,
    /// How far the searches of each own stretch have come.
    marks: Vec<Mark>,
}

impl Crew {
    /// A crew that has not searched yet.
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, way: Mutex::default() }
    }

    /// What a kind of worker is known by. `None` asks for nothing.
    pub(crate) fn name(tags: &TagFilter, sessions: bool) -> Option<String> {
        let sorted = |set: &HashSet<String>| {
            let mut names: Vec<&str> = set.iter().map(String::as_str).collect();
            names.sort_unstable();
            names.join("\u{1f}")
        };
        let tags = match tags {
            TagFilter::None => return None,
            TagFilter::DefaultOnly => "default".to_owned(),
            TagFilter::Any => "any".to_owned(),
            TagFilter::Tags(set) if set.is_empty() => return None,
            TagFilter::Tags(set) => format!("tags:{}", sorted(set)),
            TagFilter::DefaultAnd(set) => format!("default+tags:{}", sorted(set)),
        };
        Some(format!("{tags}/{sessions}"))
    }

    /// Which of its own stretches a search must look into besides the pages given, which begin at `from`: none as long as
    /// nobody stands in the way. Only pages from the beginning on can tell that nobody does any more.
    pub(crate) fn detours(
        &self,
        from: u64,
        pages: &[Glance],
        tags: &TagFilter,
        sessions: bool,
    ) -> Vec<(Stretch, Mark)> {
        let mut way = self.lock();
        way.is_crowded = is_crowded(pages) || (from > 0 && way.is_crowded);
        if !way.is_crowded {
            way.marks.clear();
            return Vec::new();
        }
        // The order must be the same each time: tags come from a set.
        let mut stretches = stretches(tags, sessions);
        stretches.extend(has_unlisted(pages).then_some(Stretch::Unlisted));
        stretches.sort_unstable();
        let marks = way.marks.iter().cloned().chain(std::iter::repeat(Mark::Beginning));
        stretches.into_iter().zip(marks).collect()
    }

    /// Notes how far the stretches have been looked at.
    pub(crate) fn came_to(&self, marks: Vec<Mark>) {
        self.lock().marks = marks;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::lanes::Glimpse;
    use super::*;

    #[test]
    fn workers_that_ask_the_same_are_one_crew() {
        let a = Crew::name(&TagFilter::tags(["x", "y"]), true);
        assert_eq!(a, Crew::name(&TagFilter::tags(["y", "x"]), true));
        assert_ne!(a, Crew::name(&TagFilter::tags(["y", "x"]), false));
        assert_ne!(a, Crew::name(&TagFilter::default_and(["x", "y"]), true));
        assert_eq!(Crew::name(&TagFilter::None, true), None);
        assert_eq!(Crew::name(&TagFilter::Tags(HashSet::new()), true), None);
    }

    #[test]
    fn the_way_is_crowded_until_a_search_from_the_beginning_says_otherwise() {
        let crew = Crew::new(Pace::new(Duration::from_millis(20), Duration::from_millis(100)));
        let row = |is_for_us| Glimpse { visible_at: 5, lane: Some("l".to_owned()), is_for_us };
        let (crowd, rest) = (
            [Glance { is_full: true, rows: vec![row(false)] }],
            [Glance { is_full: false, rows: vec![row(false)] }],
        );
        let detours = |from, pages: &[Glance]| crew.detours(from, pages, &TagFilter::DefaultOnly, true);
        assert!(detours(0, &rest).is_empty());
        let met = detours(0, &crowd);
        assert!(met.len() == 2 && met.iter().all(|(_, mark)| *mark == Mark::Beginning), "{met:?}");
        crew.came_to(vec![Mark::From(7), Mark::Beginning]);
        assert_eq!(detours(5, &rest)[0].1, Mark::From(7));
        assert!(detours(0, &rest).is_empty());
        assert_eq!(detours(0, &crowd)[0].1, Mark::Beginning, "a new crowd is met from the beginning on");
    }
}
