//! The engine's side of a query: one physical partition, or a part of one, as a source of documents.

use std::ops::Bound;
use std::sync::Arc;

use cosmos_wire::epk::EpkRange;

use super::choice::{self, Choice, KeyScope};
use super::cursor::{Cursor, Reader, split_position};
use super::path::PathId;
use super::policy::Mode;
use crate::Failure;
use crate::engine::container::{Container, IndexState, Shape};
use crate::engine::partition::Partition;
use crate::engine::request::storage_failed;
use crate::engine::scope::{self, Part, Piece};
use crate::engine::{Engine, key};
use crate::sql::source::{Access, Direction, Path, Position, Predicate, Rows, Source, Step};
use crate::storage::{Order, Scan};

/// Documents of one physical partition that a request may see.
#[derive(Clone)]
pub(crate) struct PartitionSource<'a, 'r> {
    pub(crate) engine: &'a Engine,
    pub(crate) container: &'a Container,
    pub(crate) part: Part,
    pub(crate) reader: &'a Reader<'r>,
}

/// A way with at most this many entries is taken without looking further.
const FEW: usize = 256;

impl<'s, 'r> PartitionSource<'s, 'r> {
    fn choose(&self, access: &Access, shape: &Shape) -> Result<Choice, Failure> {
        if shape.policy.mode == Mode::None || shape.index == IndexState::Building {
            return Ok(self.scan());
        }
        if access.predicates.is_empty() && access.order.is_empty() {
            return Ok(self.scan());
        }
        if let ([predicate], []) = (access.predicates.as_slice(), access.order.as_slice())
            && !matches!(self.part.scope, KeyScope::Range(..))
        {
            // Nothing to weigh against each other.
            let path = choice::predicate_path(predicate);
            let usable = !path.is_empty() && shape.policy.includes(path);
            return Ok(if usable { Choice::Equality(0) } else { self.scan() });
        }
        if matches!(self.part.scope, KeyScope::Range(..)) && self.count(self.scan(), access, shape)? <= FEW {
            return Ok(self.scan());
        }
        let equality = self.fewest(access, shape, |predicate| matches!(predicate, Predicate::In { .. }))?;
        // What narrows the sort path narrows the ordered way just as well.
        let is_sorted_by =
            |at: u8| choice::narrows_order(&access.predicates[usize::from(at)], access, &shape.policy);
        if let Some((at, count)) = equality
            && count <= FEW
            && !is_sorted_by(at)
        {
            return Ok(Choice::Equality(at));
        }
        let range = self.fewest(access, shape, |predicate| !matches!(predicate, Predicate::In { .. }))?;
        if let Some((at, count)) = range
            && count <= FEW
            && !is_sorted_by(at)
        {
            return Ok(Choice::Range(at));
        }
        if let Some(ordered) = self.ordered(access, shape)? {
            return Ok(ordered);
        }
        Ok(match (equality, range) {
            (Some((at, _)), _) => Choice::Equality(at),
            (None, Some((at, _))) => Choice::Range(at),
            (None, None) => self.scan(),
        })
    }

    fn scan(&self) -> Choice {
        Choice::scan_of(&self.part.scope)
    }

    /// The indexed predicate of a kind with the fewest entries.
    fn fewest(
        &self,
        access: &Access,
        shape: &Shape,
        kind: impl Fn(&Predicate) -> bool,
    ) -> Result<Option<(u8, usize)>, Failure> {
        let mut best: Option<(u8, usize)> = None;
        for (at, predicate) in (0_u8..=u8::MAX).zip(&access.predicates) {
            let path = choice::predicate_path(predicate);
            if path.is_empty() || !kind(predicate) || !shape.policy.includes(path) {
                continue;
            }
            let count = self.count(Choice::Equality(at), access, shape)?;
            if best.is_none_or(|(_, fewest)| count < fewest) {
                best = Some((at, count));
            }
            if count == 0 {
                break;
            }
        }
        Ok(best)
    }

    /// How the index brings the rows in order, if it does.
    fn ordered(&self, access: &Access, shape: &Shape) -> Result<Option<Choice>, Failure> {
        match access.order.as_slice() {
            [] => Ok(None),
            [(path, _)] => {
                if !choice::is_plain(path) || !shape.policy.includes(path) {
                    return Ok(None);
                }
                if is_complete(path, access, shape) {
                    return Ok(Some(Choice::Ordered));
                }
                if self.is_common(path, shape) {
                    return Ok(Some(Choice::OrderedCommon));
                }
                // Then they all come in order of creation, and there is nothing to write down for it.
                let storage = self.reader.storage;
                if self.is_nowhere(path, shape, |lower, upper| storage.scan(lower, upper, Order::Forward))? {
                    return Ok(Some(Choice::Scan));
                }
                // What the index learns now is not in a moment that is being read.
                let is_too_late = self.reader.moment.get().is_some();
                if is_too_late || self.count(self.scan(), access, shape)? <= FEW {
                    return Ok(None);
                }
                Ok(self.engine.track(self.container, path)?.then_some(Choice::Ordered))
            }
            order => Ok(shape.policy.composite_for(order).map(|_| Choice::Composite)),
        }
    }

    /// A choice for the moment that is read. It is made before, because the index may have to learn a path for it.
    fn choose_now(&self, access: &Access) -> Result<Choice, Failure> {
        let before = self.reader.moment.get().map_or_else(|| self.container.shape(), |now| now.shape.clone());
        let choice = self.choose(access, &before)?;
        let shape = &self.reader.moment().shape;
        // A document without the path may have come in between.
        let is_still_common = || access.order.first().is_some_and(|(path, _)| self.is_common(path, shape));
        let is_still = Arc::ptr_eq(&before, shape) && (choice != Choice::OrderedCommon || is_still_common());
        if is_still { Ok(choice) } else { self.choose(access, shape) }
    }

    /// Whether every document of the partition has a value at a path. Of a moment that is being read it is true if it
    /// is so afterwards: what a commit leaves is known before the commit can be seen, and a new index is announced
    /// before its paths are.
    fn is_common(&self, path: &Path, shape: &Shape) -> bool {
        let is_common = self.part.partition.common().contains(PathId::of(path));
        is_common && std::ptr::eq(&*self.container.shape(), shape)
    }

    /// Opens a cursor, behind `resume` if given.
    fn cursor(&self, access: &Access, resume: Option<&[u8]>) -> Result<Cursor<'s, 'r>, Failure> {
        let (choice, entry) = match resume {
            None => (self.choose_now(access)?, None),
            Some(position) => {
                let (choice, entry) = split_position(position)
                    .filter(|(choice, _)| is_served(*choice, access, &self.reader.moment().shape))
                    .ok_or_else(invalid_continuation)?;
                (choice, Some(entry))
            }
        };
        let partition = &self.part.partition;
        let (opened, _) = self.reader.opened.get();
        self.reader.opened.set((opened + 1, Some(partition.id())));
        let shape = &self.reader.moment().shape;
        if !shape.partitions_in(partition.region()).iter().any(|own| Arc::ptr_eq(own, partition)) {
            // Others took its place before the moment that is read: they may have changed what it points to.
            return Err(Partition::replaced());
        }
        let whole;
        let scope = match (choice, &self.part.scope) {
            // What was a part of a partition may be one by itself now.
            (Choice::ScanKeys, KeyScope::Partition) => {
                whole = KeyScope::Range(partition.lower(), partition.upper());
                &whole
            }
            (_, scope) => scope,
        };
        let mut plan = choice::plan(choice, access, &shape.policy, partition.segment, scope)
            .ok_or_else(invalid_continuation)?;
        if let (Choice::Scan, [(path, _)]) = (choice, access.order.as_slice()) {
            // Without a value anywhere the order of creation is the one that was asked for.
            let view = &self.reader.moment().view;
            plan.is_ordered =
                self.is_nowhere(path, shape, |lower, upper| view.scan(lower, upper, Order::Forward))?;
        }
        let cursor = Cursor::new(self.reader, choice, plan, entry);
        match (choice, access.order.as_slice()) {
            (Choice::OrderedCommon, [(path, Direction::Descending)]) if !self.is_common(path, shape) => {
                let lacking = choice::plan(Choice::Lacking, access, &shape.policy, partition.segment, scope);
                Ok(cursor.then(Choice::Lacking, lacking))
            }
            _ => Ok(cursor),
        }
    }

    /// Whether no document that is asked for has a value at a path, as the index says by `scan`.
    fn is_nowhere<'v>(
        &self,
        path: &Path,
        shape: &Shape,
        scan: impl FnOnce(Bound<&[u8]>, Bound<&[u8]>) -> Scan<'v>,
    ) -> Result<bool, Failure> {
        let is_indexed = shape.policy.includes(path) && shape.index == IndexState::Ready;
        if !is_indexed || !choice::is_plain(path) {
            return Ok(false);
        }
        let lower = choice::base(self.part.partition.segment, &self.part.scope, PathId::of(path));
        let upper = key::beyond(lower.clone());
        match scan(Bound::Included(&lower), Bound::Excluded(&upper)).next() {
            None => Ok(true),
            Some(entry) => entry.map(|_| false).map_err(|error| storage_failed(&error)),
        }
    }

    /// How many entries a choice would read, up to just beyond [`FEW`].
    fn count(&self, choice: Choice, access: &Access, shape: &Shape) -> Result<usize, Failure> {
        let Some(plan) =
            choice::plan(choice, access, &shape.policy, self.part.partition.segment, &self.part.scope)
        else {
            return Ok(usize::MAX);
        };
        let mut count = 0;
        for (lower, upper) in &plan.intervals {
            let scan =
                self.reader.storage.scan(Bound::Included(lower), Bound::Excluded(upper), Order::Forward);
            for row in scan.take(FEW + 1 - count) {
                row.map_err(|error| storage_failed(&error))?;
                count += 1;
            }
            if count > FEW {
                break;
            }
        }
        Ok(count)
    }
}

/// Whether the index still has what a page before was read by. The policy may be another one by now.
fn is_served(choice: Choice, access: &Access, shape: &Shape) -> bool {
    let path = match choice {
        Choice::Scan | Choice::ScanKeys | Choice::Lacking => return true,
        Choice::Equality(at) | Choice::Range(at) => {
            access.predicates.get(usize::from(at)).map(choice::predicate_path)
        }
        Choice::Ordered => {
            let path = access.order.first().map(|(path, _)| path);
            path.filter(|path| is_complete(path, access, shape))
        }
        // Documents that have lost the path since then come last, or have moved to the front as others do.
        Choice::OrderedCommon | Choice::Composite => access.order.first().map(|(path, _)| path),
    };
    let is_whole = shape.policy.mode != Mode::None && shape.index == IndexState::Ready;
    // The plan finds out whether there is a composite index.
    is_whole && path.is_some_and(|path| choice == Choice::Composite || shape.policy.includes(path))
}

/// Whether the index has an entry at a path for every document that is asked for.
fn is_complete(path: &Path, access: &Access, shape: &Shape) -> bool {
    let is_narrowed = access.predicates.iter().any(|predicate| choice::predicate_path(predicate) == path);
    is_narrowed || is_always_there(path) || shape.tracked.contains(path)
}

/// Whether every document has a value here.
fn is_always_there(path: &Path) -> bool {
    matches!(path.as_slice(), [Step::Property(name)] if matches!(&**name, "id" | "_ts"))
}

fn check_order(shape: &Shape, order: &[(Path, Direction)]) -> Result<(), Failure> {
    match order {
        [] => Ok(()),
        [(path, _)] if shape.policy.allows_order(path) => Ok(()),
        [_] => Err(Failure::bad_request(
            "The index path corresponding to the specified order-by item is excluded.",
        )),
        _ if shape.policy.composite_for(order).is_some() => Ok(()),
        _ => Err(Failure::bad_request(
            "The order by query does not have a corresponding composite index that it can be served from.",
        )),
    }
}

/// A token that is not one of this query here.
pub(crate) fn invalid_continuation() -> Failure {
    Failure::bad_request("Invalid Continuation Token")
}

/// Several partitions after one another, as one source. An order over all of them is left to the sort.
pub(crate) struct ChainSource<'s, 'r> {
    pub(crate) parts: Vec<PartitionSource<'s, 'r>>,
    pub(crate) shape: Arc<Shape>,
    /// The keys that the continuation of this request was made for.
    pub(crate) origin: Option<EpkRange>,
}

impl<'s, 'r> ChainSource<'s, 'r> {
    /// What is left behind a position.
    fn left(&self, resume: &[u8]) -> Result<Vec<Link<'s, 'r>>, Failure> {
        let pieces = if resume.first() == Some(&scope::PIECES) {
            scope::decode_pieces(resume).ok_or_else(invalid_continuation)?
        } else {
            let range = self.origin.clone().unwrap_or_else(EpkRange::full);
            vec![Piece { range, after: resume.to_vec() }]
        };
        let parts: Vec<_> = self.parts.iter().map(|source| source.part.clone()).collect();
        let left = scope::left(&parts, &pieces).into_iter().filter_map(|(part, after)| {
            let source =
                self.parts.iter().find(|source| Arc::ptr_eq(&source.part.partition, &part.partition))?;
            Some(Link { source: PartitionSource { part, ..source.clone() }, after })
        });
        Ok(left.collect())
    }
}

impl Source for ChainSource<'_, '_> {
    fn open<'a>(&'a self, access: &Access, resume: Option<&Position>) -> Result<Box<dyn Rows + 'a>, Failure> {
        let links = match resume {
            None => self.parts.iter().map(|source| Link { source: source.clone(), after: None }).collect(),
            Some(position) => self.left(position)?,
        };
        // Without a mark of its own a position is one in the whole of the scope.
        if let ([whole], [only]) = (self.parts.as_slice(), links.as_slice())
            && whole.part.range == only.source.part.range
        {
            return Ok(Box::new(only.source.cursor(access, only.after.as_deref())?));
        }
        let unordered = Access { predicates: access.predicates.clone(), order: Vec::new() };
        Ok(Box::new(Chain { links, begun: access.clone(), unordered, at: 0, rows: None }))
    }

    fn check_order(&self, order: &[(Path, Direction)]) -> Result<(), Failure> {
        check_order(&self.shape, order)
    }

    fn layout(&self) -> u64 {
        let is_key = |source: &PartitionSource<'_, '_>| matches!(source.part.scope, KeyScope::Key(_));
        if self.parts.iter().all(is_key) { 0 } else { self.shape.partitions_version }
    }

    fn is_heir(&self) -> bool {
        let (Some(origin), Some(first)) = (&self.origin, self.parts.first()) else { return true };
        matches!(first.part.scope, KeyScope::Key(_)) || first.part.range.min <= origin.min
    }
}

/// One source of a chain, and behind what it goes on.
struct Link<'s, 'r> {
    source: PartitionSource<'s, 'r>,
    after: Option<Vec<u8>>,
}

struct Chain<'s, 'r> {
    links: Vec<Link<'s, 'r>>,
    /// What is asked of links that go on behind a row, on the way that led there.
    begun: Access,
    /// What is asked of the others.
    unordered: Access,
    at: usize,
    rows: Option<Cursor<'s, 'r>>,
}

impl<'s, 'r> Chain<'s, 'r> {
    /// The cursor of the current source, opened; nothing behind the last.
    fn current(&mut self) -> Result<Option<&mut Cursor<'s, 'r>>, Failure> {
        let Some(link) = self.links.get(self.at) else { return Ok(None) };
        if self.rows.is_none() {
            let access = if link.after.is_some() { &self.begun } else { &self.unordered };
            self.rows = Some(link.source.cursor(access, link.after.as_deref())?);
        }
        Ok(self.rows.as_mut())
    }

    /// A place in the current source, and those of the sources behind it that were begun.
    fn position(&self, inner: &[u8]) -> Position {
        let current = self.links.get(self.at).map(|link| (&link.source.part.range, inner));
        let begun = self.links.iter().skip(self.at + 1);
        let begun = begun.map_while(|link| Some((&link.source.part.range, link.after.as_deref()?)));
        scope::encode_pieces(current.into_iter().chain(begun))
    }
}

impl Rows for Chain<'_, '_> {
    fn is_ordered(&self) -> bool {
        self.begun.order.is_empty()
    }

    fn pass(&mut self) -> Result<Option<Position>, Failure> {
        loop {
            let Some(rows) = self.current()? else { return Ok(None) };
            if let Some(position) = rows.pass()? {
                return Ok(Some(self.position(&position)));
            }
            self.rows = None;
            self.at += 1;
        }
    }

    fn next(&mut self) -> Result<Option<crate::sql::source::Row>, Failure> {
        loop {
            let Some(rows) = self.current()? else { return Ok(None) };
            if let Some(mut row) = rows.next()? {
                row.position = self.position(&row.position);
                return Ok(Some(row));
            }
            self.rows = None;
            self.at += 1;
        }
    }
}
