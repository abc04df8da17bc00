//! Execution: operators pull documents from a [`Source`] and hand on tuples, rows and at last a page.
//!
//! A query streams if it can: documents come one by one, are joined, filtered and projected, and the page ends when
//! it is full, with its place in the access path as continuation. DISTINCT, GROUP BY and an ORDER BY that no index
//! serves must see all documents; their pages start over and go on behind the row that was handed out last.

mod continuation;
mod distinct;
mod group;
mod join;
mod order;
mod page;
mod project;
mod rank;
mod reduce;
mod resume;
pub(crate) mod subquery;
mod window;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

pub use self::page::{Page, PageLimits};
pub(crate) use self::resume::Resume;

use self::continuation::{Place, checksum};
use self::distinct::Distinct;
use self::join::{Visit, each_tuple};
use self::order::{Entry, Held, Room, Sorter};
use self::project::project;
use self::window::Window;
use super::access::{access_of, document_path, order_of};
use super::ast::{Collection, Expr, InputMode, Kind, OrderKey, Query, Select};
use super::bind::{Parameters, ROOT, bind};
use super::eval::{Context, Env, Scope, is_true};
use super::function::document_number;
use super::leash::Leash;
use super::lexer::Span;
use super::list::List;
use super::rank::Ranking;
use super::schema::{Functions, Schema, is_computed, is_score};
use super::source::{Access, Position, Row, Rows, Source};
use super::value::kept_bytes;
use crate::Failure;

/// Most tuples a page builds from joins before it ends early.
const TUPLES_MAX: u64 = 1_000_000;

/// Most bytes of the rows of a query in FROM, as JSON; all of them are kept.
const DERIVED_BYTES_MAX: usize = 256 << 20;

/// A query with its parameters, ready to run any number of times.
#[derive(Debug, Clone)]
pub struct Prepared {
    query: Query,
    /// The query in FROM, whose rows take the place of documents.
    derived: Option<Box<Prepared>>,
    /// What ORDER BY RANK ranks by.
    ranking: Option<Ranking>,
    access: Access,
    hash: u64,
    text_bytes: usize,
    /// User defined functions of the container.
    functions: Arc<Functions>,
}

impl Prepared {
    /// Puts the parameters in (names with their `@`). Parameters the query does not name are ignored; names without
    /// a parameter are undefined.
    pub fn new(query: &Query, parameters: &Parameters) -> Result<Self, Failure> {
        Self::in_container(query, parameters, &Schema::default())
    }

    /// The same for the documents of a container that has told its queries something.
    pub fn in_container(query: &Query, parameters: &Parameters, schema: &Schema) -> Result<Self, Failure> {
        let mut bound = bind(query, parameters)?;
        schema.resolve(&mut bound)?;
        schema.check_calls(&bound)?;
        let mut prepared = Self::of_bound(bound)?;
        prepared.set_functions(schema.functions());
        Ok(prepared)
    }

    fn set_functions(&mut self, functions: &Arc<Functions>) {
        self.functions = Arc::clone(functions);
        if let Some(derived) = &mut self.derived {
            derived.set_functions(functions);
        }
    }

    /// The same behind the row that a `resumeFilter` names.
    pub fn resumed(mut self, filter: &Value) -> Result<Self, Failure> {
        self.query.resume = Some(Resume::parse(filter, &self.query.order_by)?);
        Ok(self)
    }

    fn of_bound(mut query: Query) -> Result<Self, Failure> {
        let mut derived = None;
        if let Some(first) = query.from.first_mut()
            && matches!(first.collection, Collection::Subquery(_))
        {
            let root = Expr::new(Kind::Name(ROOT.to_owned()), Span::default());
            let inner = std::mem::replace(&mut first.collection, Collection::Path(root));
            if let Collection::Subquery(inner) = inner {
                derived = Some(Box::new(Self::of_bound(*inner)?));
            }
        }
        if derived.is_none() {
            check_order_keys(&query)?;
        }
        let ranking = query.rank.as_ref().map(Ranking::of).transpose()?;
        if ranking.is_some() {
            Ranking::check(&query)?;
        }
        let access = access_of(&query);
        let text = format!("{query}{derived:?}");
        // A client that merges partitions goes on with the old token and another filter.
        let is_ordered = !query.order_by.is_empty() && query.distinct.is_none() && !is_reduced(&query);
        let hash = match is_ordered {
            true => checksum(format!("{}{derived:?}", Query { filter: None, ..query.clone() }).as_bytes()),
            false => checksum(text.as_bytes()),
        };
        Ok(Self { query, derived, ranking, access, hash, text_bytes: text.len(), functions: Arc::default() })
    }

    /// What the query asks from its source.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// One page of results, from the start or behind a continuation of this same query.
    pub fn page(
        &self,
        source: &dyn Source,
        limits: &PageLimits,
        continuation: Option<&str>,
        now: SystemTime,
    ) -> Result<Page, Failure> {
        let place = continuation.map(|text| Place::decode(text, self.hash)).transpose()?;
        let list;
        let mut visited = 0;
        let mut source = source;
        if let Some(derived) = &self.derived {
            let inner = derived.all(source, now, limits.leash.whole())?;
            visited = inner.visited;
            list = List::new(inner.rows);
            source = &list;
        }
        let mut run = Run {
            prepared: self,
            limits,
            context: Context::new(now)
                .with_kept_bytes_max(limits.kept_bytes_max)
                .with_leash(limits.leash.clone(), self.text_bytes)
                .with_functions(&self.functions),
            page: Page { visited, ..Page::default() },
            layout: source.layout(),
        };
        let next = run.fill(source, place)?;
        run.page.continuation = next.map(|place| place.encode(self.hash));
        Ok(run.page)
    }

    /// All results at once: the input of an outer query.
    fn all(&self, source: &dyn Source, now: SystemTime, leash: Leash) -> Result<Page, Failure> {
        let limits = PageLimits {
            items_max: usize::MAX,
            bytes_max: DERIVED_BYTES_MAX,
            rows_visited_max: u64::MAX,
            leash,
            ..PageLimits::default()
        };
        let (mut all, mut continuation) = (Page::default(), None);
        loop {
            let page = self.page(source, &limits, continuation.as_deref(), now)?;
            all.visited += page.visited;
            all.body_bytes += page.body_bytes;
            all.rows.extend(page.rows);
            if all.body_bytes > DERIVED_BYTES_MAX {
                return Err(Failure::bad_request(
                    "The query in FROM yields more than can be kept. Filter inside of it.",
                ));
            }
            continuation = page.continuation;
            if continuation.is_none() {
                return Ok(all);
            }
        }
    }

    /// Whether results are the documents themselves.
    fn is_identity(&self) -> bool {
        let [input] = self.query.from.as_slice() else { return false };
        let is_whole = match &input.collection {
            Collection::Path(expr) => matches!(expr.kind, Kind::Name(_)),
            Collection::Subquery(_) => false,
        };
        let is_star = match &self.query.select {
            Select::Star(_) => true,
            Select::Value(expr) => {
                matches!(&expr.kind, Kind::Name(name) if Some(name.as_str()) == input.name())
            }
            Select::List(_) => false,
        };
        is_whole && is_star && input.mode == InputMode::Whole
    }
}

/// Whether rows become groups, or one.
fn is_reduced(query: &Query) -> bool {
    !query.group_by.is_empty() || query.has_aggregate()
}

/// Refuses to order documents by what no index could hold.
pub(crate) fn check_order_keys(query: &Query) -> Result<(), Failure> {
    let is_order_of_documents = !is_reduced(query) && !query.from.is_empty();
    let is_served = |key: &OrderKey| {
        is_score(&key.expr) || is_computed(&key.expr) || document_path(&key.expr, query).is_some()
    };
    if is_order_of_documents && order_of(query).is_none() && !query.order_by.iter().all(is_served) {
        return Err(Failure::bad_request(
            "Unsupported ORDER BY clause. ORDER BY item expression could not be mapped to a document path.",
        ));
    }
    Ok(())
}

/// One page in the making.
struct Run<'r> {
    prepared: &'r Prepared,
    limits: &'r PageLimits,
    context: Context,
    page: Page,
    /// Of the source.
    layout: u64,
}

impl Run<'_> {
    /// Fills the page and says where the next one begins.
    fn fill(&mut self, source: &dyn Source, place: Option<Place>) -> Result<Option<Place>, Failure> {
        let query = &self.prepared.query;
        let access = &self.prepared.access;
        if query.from.is_empty() {
            let rows = subquery::run(query, Env::new(&self.context), None)?;
            return Ok(self.hand_out(rows, place.as_ref()));
        }
        if !access.order.is_empty() {
            source.check_order(&access.order)?;
        }
        if is_reduced(query) {
            return self.reduce(source, place.as_ref());
        }
        if let Some(ranking) = &self.prepared.ranking {
            return self.rank(source, ranking, place.as_ref());
        }
        if query.distinct.is_some()
            && query.order_by.is_empty()
            && matches!(place, None | Some(Place::Distinct { .. }))
        {
            return self.distinct(source, place);
        }
        let resume = match &place {
            Some(Place::Stream { after, .. }) => after.as_ref(),
            _ => None,
        };
        let mut rows = source.open(access, resume)?;
        // A sort that was begun goes on as one, even if the rows would come in order by now.
        let is_sort =
            matches!(place, Some(Place::Sorted { .. } | Place::Replay { .. })) && query.distinct.is_none();
        if !query.order_by.is_empty() && (is_sort || access.order.is_empty() || !rows.is_ordered()) {
            return self.sort(&mut *rows, place.as_ref());
        }
        match (query.distinct, place) {
            (Some(_), Some(place @ Place::Replay { .. })) => self.distinct_again(&mut *rows, &place),
            (Some(_), place) => self.distinct_in_order(&mut *rows, place.as_ref()),
            (None, Some(place @ Place::Stream { .. })) => self.stream(&mut *rows, place),
            (None, Some(_)) => Err(Failure::bad_request("Invalid Continuation Token")),
            (None, None) => {
                let start = Place::Stream { after: None, tuples: 0, of: None, skipped: 0, taken: 0 };
                self.stream(&mut *rows, start)
            }
        }
    }

    fn stream(&mut self, rows: &mut dyn Rows, place: Place) -> Result<Option<Place>, Failure> {
        let Place::Stream { mut after, tuples, of, skipped, taken } = place else { return Ok(None) };
        let window = Window::of(&self.prepared.query);
        let limit = window.limit.map_or(u64::MAX, |limit| limit as u64);
        let before = self.page.visited;
        let visited_max = before.saturating_add(self.limits.rows_visited_max.max(1));
        let mut progress =
            Progress { done: 0, built: 0, skipped, taken, offset: window.offset as u64, limit };
        let mut begun = Some(Begun { tuples, of });
        loop {
            if progress.taken >= limit {
                return Ok(None);
            }
            let is_spent = self.page.visited >= visited_max
                || progress.built >= TUPLES_MAX
                || (self.page.visited > before && self.context.is_due());
            let Some(row) = rows.next()? else { return Ok(None) };
            if is_spent || !self.page.has_room(self.limits, 0) {
                return Ok(Some(progress.place(after, begun.unwrap_or_default())));
            }
            self.page.visited += 1;
            self.context.begin_row();
            let of = document_number(&row.document);
            progress.done = begun.take_if(|begun| begun.is_of(of)).map_or(0, |begun| begun.tuples);
            if let Some(tuples) = self.stream_row(row.document, &mut progress)? {
                return Ok(Some(progress.place(after, Begun { tuples, of })));
            }
            after = Some(row.position);
        }
    }

    /// Puts the results of one document on the page; says how many of its tuples are done if the page ends there.
    fn stream_row(&mut self, document: Value, progress: &mut Progress) -> Result<Option<u64>, Failure> {
        let query = &self.prepared.query;
        let is_identity = self.prepared.is_identity();
        let root = Scope { parent: None, name: ROOT, value: &document };
        let env = Env::new(&self.context).within(&root);
        let (mut tuple, mut is_full, mut is_match) = (0, false, false);
        let (page, limits) = (&mut self.page, self.limits);
        let _ = each_tuple(&query.from, env, &mut |env| {
            tuple += 1;
            if tuple <= progress.done {
                return Ok(ControlFlow::Continue(()));
            }
            progress.built += 1;
            if !passes(query, env)? {
                is_full = progress.built >= TUPLES_MAX || env.context.is_due();
            } else if is_identity {
                // The document itself is the result; it is handed on below, not copied.
                is_match = true;
                return Ok(ControlFlow::Break(()));
            } else if let Some(result) = project(query, env)?
                && !progress.take(result, page, limits)
            {
                tuple -= 1;
                is_full = true;
            } else {
                is_full = env.context.is_due();
            }
            let is_done = is_full || progress.taken >= progress.limit;
            Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if is_match && !progress.take(document, &mut self.page, self.limits) {
            return Ok(Some(0));
        }
        Ok(is_full.then_some(tuple))
    }

    /// Visits what passes the filter in all rows.
    fn each_match(&mut self, rows: &mut dyn Rows, visit: &mut Visit<'_>) -> Result<(), Failure> {
        while let Some(row) = rows.next()? {
            self.page.visited += 1;
            if visit_matches(&self.prepared.query, &self.context, &row.document, visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// DISTINCT of rows in the order in which they come.
    fn distinct(&mut self, source: &dyn Source, place: Option<Place>) -> Result<Option<Place>, Failure> {
        let prepared = self.prepared;
        let (query, layout) = (&prepared.query, self.layout);
        let window = Window::of(query);
        let limit = window.limit.map_or(u64::MAX, |limit| limit as u64);
        // Where rows come in another order by now it starts over: whoever asks a partition and not a key leaves out
        // himself what another one said before.
        let place =
            place.filter(|place| matches!(place, Place::Distinct { layout, .. } if *layout == self.layout));
        let (mut after, mut begun, skipped, taken) = match place {
            Some(Place::Distinct { after, tuples, of, skipped, taken, .. }) => {
                (after, Some(Begun { tuples, of }), skipped, taken)
            }
            _ => (None, None, 0, 0),
        };
        let mut progress =
            Progress { done: 0, built: 0, skipped, taken, offset: window.offset as u64, limit };
        let mut rows = source.open(&prepared.access, after.as_ref())?;
        let mut next = rows.next()?;
        let mut distinct = Distinct::default();
        if let (Some(_), Some(first)) = (&after, &next)
            && !self.see(&mut *source.open(&prepared.access, None)?, first, &mut distinct)?
        {
            // Another index is read by now, in another order.
            (after, begun, distinct) = (None, None, Distinct::default());
            rows = source.open(&prepared.access, None)?;
            next = rows.next()?;
        }
        while let Some(row) = next {
            if progress.taken >= limit {
                return Ok(None);
            }
            self.page.visited += 1;
            let of = document_number(&row.document);
            progress.done = begun.take_if(|begun| begun.is_of(of)).map_or(0, |begun| begun.tuples);
            let (mut tuples, mut is_full) = (0, false);
            let (page, limits) = (&mut self.page, self.limits);
            let _ = visit_matches(query, &self.context, &row.document, &mut |env| {
                tuples += 1;
                if let Some(result) = project(query, env)?
                    && distinct.insert(&result, env.context)?
                    && tuples > progress.done
                {
                    is_full = !progress.take(result, page, limits);
                }
                let is_done = is_full || progress.taken >= limit;
                Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if is_full {
                let Progress { skipped, taken, .. } = progress;
                return Ok(Some(Place::Distinct { after, tuples: tuples - 1, of, skipped, taken, layout }));
            }
            after = Some(row.position);
            next = rows.next()?;
        }
        Ok(None)
    }

    /// Notes the results of all rows up to one; says whether that came.
    fn see(&mut self, rows: &mut dyn Rows, end: &Row, distinct: &mut Distinct) -> Result<bool, Failure> {
        let query = &self.prepared.query;
        while let Some(row) = rows.next()? {
            if row.position == end.position {
                return Ok(true);
            }
            self.page.visited += 1;
            let _ = visit_matches(query, &self.context, &row.document, &mut |env| {
                if let Some(result) = project(query, env)? {
                    distinct.insert(&result, env.context)?;
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(false)
    }

    /// DISTINCT behind a number of results.
    fn distinct_again(&mut self, rows: &mut dyn Rows, place: &Place) -> Result<Option<Place>, Failure> {
        let (prepared, place) = (self.prepared, Some(place));
        let wanted = self.wanted(place);
        let (mut distinct, mut results) = (Distinct::default(), Vec::new());
        self.each_match(rows, &mut |env| {
            if let Some(row) = project(&prepared.query, env)?
                && distinct.insert(&row, env.context)?
            {
                env.context.keep(kept_bytes(&row))?;
                results.push(row);
            }
            Ok(if results.len() >= wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let results = Window::of(&prepared.query).cut(results, usize::MAX);
        Ok(self.hand_out(results, place))
    }

    /// DISTINCT of rows that come in the order of the query.
    fn distinct_in_order(
        &mut self,
        rows: &mut dyn Rows,
        place: Option<&Place>,
    ) -> Result<Option<Place>, Failure> {
        let query = &self.prepared.query;
        let (wanted, last, room) = (self.wanted(place), Entry::last(query, place), self.room(place));
        let mut order = Sorter::new(query, 0, None);
        let (mut distinct, mut entries, mut held) = (Distinct::default(), Vec::new(), Held::default());
        self.each_match(rows, &mut |env| {
            let mut entry = order.entry(env)?;
            if let Some(row) = project(query, env)?
                && distinct.insert(&row, env.context)?
                && last.as_ref().is_none_or(|last| entry > *last)
            {
                entry.row = row;
                env.context.keep(entry.kept_bytes())?;
                held.add(&entry);
                entries.push(entry);
            }
            let is_done = entries.len() >= wanted || room.ends_before(entries.last(), held);
            Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(self.hand_out_sorted(entries, place))
    }

    fn sort(&mut self, rows: &mut dyn Rows, place: Option<&Place>) -> Result<Option<Place>, Failure> {
        let query = &self.prepared.query;
        let is_distinct = query.distinct.is_some();
        // What was handed out before tells what is no longer new.
        let mut sorter = if is_distinct {
            Sorter::new(query, usize::MAX, None)
        } else {
            Sorter::new(query, self.wanted(place), Entry::last(query, place)).with_room(self.room(place))
        };
        // Of a document that came in order before its partition was split, a part may have been handed out.
        let begun = match place {
            Some(Place::Stream { tuples, of: Some(of), .. }) => (*of, *tuples),
            _ => (0, 0),
        };
        self.each_match(rows, &mut |env| {
            let is_done = env.context.row() == begun.0 && env.context.tuple() <= begun.1;
            let taken = if is_done { sorter.entry(env).map(drop) } else { sorter.add(env) };
            taken.map(ControlFlow::Continue)
        })?;
        let mut entries = sorter.into_entries();
        if is_distinct {
            entries = Distinct::default().new_of(entries, &self.context, |entry| &entry.row)?;
            if let Some(last) = Entry::last(query, place) {
                entries.retain(|entry| *entry > last);
            }
        }
        if matches!(place, Some(Place::Replay { .. })) {
            let results = entries.into_iter().map(|entry| entry.row).collect();
            let results = Window::of(query).cut(results, usize::MAX);
            return Ok(self.hand_out(results, place));
        }
        Ok(self.hand_out_sorted(entries, place))
    }

    /// Puts sorted rows on the page; the next one begins behind the last of them, wherever the documents are by then.
    fn hand_out_sorted(&mut self, entries: Vec<Entry>, place: Option<&Place>) -> Option<Place> {
        let window = Window::of(&self.prepared.query);
        let (before, skipped) = match place {
            Some(Place::Sorted { taken, .. }) => (*taken, window.offset),
            // Rows that came in order before their partition was split are not among these any more.
            Some(Place::Stream { taken, skipped, .. }) => {
                (*taken, usize::try_from(*skipped).unwrap_or(usize::MAX))
            }
            _ => (0, 0),
        };
        let limit = window.limit.map_or(u64::MAX, |limit| limit as u64);
        let (mut taken, mut next) = (before, None);
        for mut entry in entries.into_iter().skip(window.offset.saturating_sub(skipped)) {
            if taken >= limit {
                return None;
            }
            let row = std::mem::take(&mut entry.row);
            if self.page.offer(row, self.limits).is_err() {
                return Some(next.unwrap_or(Place::Replay { taken, layout: self.layout }));
            }
            taken += 1;
            next = entry.place(taken);
        }
        None
    }

    /// How many rows from the start this page can need at most, and one to know whether there are more.
    fn wanted(&self, place: Option<&Place>) -> usize {
        let window = Window::of(&self.prepared.query);
        let page = self.limits.items_max.max(1).saturating_add(self.taken(place)).saturating_add(1);
        window.end().min(window.offset.saturating_add(page))
    }

    /// How many bytes of sorted rows this page can need at most.
    fn room(&self, place: Option<&Place>) -> Room {
        let skipped = Window::of(&self.prepared.query).offset.saturating_add(self.taken(place));
        Room { skipped, bytes_max: self.limits.bytes_max }
    }

    /// Puts finished rows on the page, behind those handed out before.
    fn hand_out(&mut self, rows: Vec<Value>, place: Option<&Place>) -> Option<Place> {
        let handed_out = self.taken(place);
        for (taken, row) in rows.into_iter().enumerate().skip(handed_out) {
            if self.page.offer(row, self.limits).is_err() {
                return Some(Place::Replay { taken: taken as u64, layout: self.layout });
            }
        }
        None
    }

    /// How many rows of a replay are done. Where rows come in another order by now, DISTINCT starts over: whoever asks
    /// a partition and not a key leaves out himself what another one said before.
    fn taken(&self, place: Option<&Place>) -> usize {
        match place {
            Some(Place::Replay { layout, .. })
                if *layout != self.layout && self.prepared.query.distinct.is_some() =>
            {
                0
            }
            Some(Place::Replay { taken, .. }) => usize::try_from(*taken).unwrap_or(usize::MAX),
            _ => 0,
        }
    }
}

/// A row of which earlier pages have done a part.
#[derive(Default)]
struct Begun {
    tuples: u64,
    /// Its document may be gone by now, or others stand before it.
    of: Option<u64>,
}

impl Begun {
    fn is_of(&self, number: Option<u64>) -> bool {
        self.of.is_none() || self.of == number
    }
}

/// How far a streaming query is.
struct Progress {
    /// Tuples of the current document that earlier pages have done.
    done: u64,
    /// Tuples built for this page.
    built: u64,
    skipped: u64,
    taken: u64,
    offset: u64,
    limit: u64,
}

impl Progress {
    fn place(&self, after: Option<Position>, Begun { tuples, of }: Begun) -> Place {
        Place::Stream { after, tuples, of, skipped: self.skipped, taken: self.taken }
    }

    /// Skips the result or puts it on the page; false if it does not fit.
    fn take(&mut self, result: Value, page: &mut Page, limits: &PageLimits) -> bool {
        if self.skipped < self.offset {
            self.skipped += 1;
            return true;
        }
        let fits = page.offer(result, limits).is_ok();
        self.taken += u64::from(fits);
        fits
    }
}

fn passes(query: &Query, env: Env<'_>) -> Result<bool, Failure> {
    if let Some(filter) = &query.filter
        && !is_true(filter, env)?
    {
        return Ok(false);
    }
    query.resume.as_ref().map_or(Ok(true), |resume| resume.passes(&query.order_by, env))
}

fn visit_matches(
    query: &Query,
    context: &Context,
    document: &Value,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, Failure> {
    context.begin_row();
    context.toil(1)?;
    if let (false, Some(number)) = (query.order_by.is_empty(), document_number(document)) {
        context.number_row(number);
    }
    let root = Scope { parent: None, name: ROOT, value: document };
    let mut tuple = 0;
    each_tuple(&query.from, Env::new(context).within(&root), &mut |env| {
        tuple += 1;
        context.number_tuple(tuple);
        if passes(query, env)? { visit(env) } else { Ok(ControlFlow::Continue(())) }
    })
}
