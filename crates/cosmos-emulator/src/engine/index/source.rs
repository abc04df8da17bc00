//! The engine's side of a query: one physical partition, or a part of one, as a source of documents.

use std::ops::Bound;
use std::sync::Arc;

use super::choice::{self, Choice, KeyScope};
use super::cursor::{Cursor, Reader, split_position};
use super::policy::Mode;
use super::terms::is_system_property;
use crate::Failure;
use crate::engine::Engine;
use crate::engine::container::{Container, IndexState, Shape};
use crate::engine::partition::Partition;
use crate::engine::request::storage_failed;
use crate::sql::source::{Access, Direction, Path, Position, Predicate, Rows, Source, Step};
use crate::storage::Order;

/// Documents of one physical partition that a request may see.
pub(crate) struct PartitionSource<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) container: &'a Container,
    pub(crate) partition: &'a Partition,
    pub(crate) scope: KeyScope,
    pub(crate) reader: &'a Reader<'a>,
}

/// A way with at most this many entries is taken without looking further.
const FEW: usize = 256;

impl PartitionSource<'_> {
    fn choose(&self, access: &Access) -> Result<Choice, Failure> {
        let shape = self.container.shape();
        if shape.policy.mode == Mode::None || shape.index == IndexState::Building {
            return Ok(Choice::Scan);
        }
        if access.predicates.is_empty() && access.order.is_empty() {
            return Ok(Choice::Scan);
        }
        if let ([predicate], []) = (access.predicates.as_slice(), access.order.as_slice())
            && !matches!(self.scope, KeyScope::Range(..))
        {
            // Nothing to weigh against each other.
            let path = choice::predicate_path(predicate);
            let usable = !path.is_empty() && shape.policy.includes(path);
            return Ok(if usable { Choice::Equality(0) } else { Choice::Scan });
        }
        if matches!(self.scope, KeyScope::Range(..)) && self.count(Choice::Scan, access, &shape)? <= FEW {
            return Ok(Choice::Scan);
        }
        let equality = self.fewest(access, &shape, |predicate| matches!(predicate, Predicate::In { .. }))?;
        // What narrows the sort path narrows the ordered way just as well.
        let is_sorted_by = |at: u8| {
            access.order.len() == 1
                && *choice::predicate_path(&access.predicates[usize::from(at)]) == access.order[0].0
        };
        if let Some((at, count)) = equality
            && count <= FEW
            && !is_sorted_by(at)
        {
            return Ok(Choice::Equality(at));
        }
        let range = self.fewest(access, &shape, |predicate| !matches!(predicate, Predicate::In { .. }))?;
        if let Some((at, count)) = range
            && count <= FEW
            && !is_sorted_by(at)
        {
            return Ok(Choice::Range(at));
        }
        if let Some(ordered) = self.ordered(access, &shape)? {
            return Ok(ordered);
        }
        Ok(match (equality, range) {
            (Some((at, _)), _) => Choice::Equality(at),
            (None, Some((at, _))) => Choice::Range(at),
            (None, None) => Choice::Scan,
        })
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
                let needs_all =
                    !access.predicates.iter().any(|predicate| choice::predicate_path(predicate) == path);
                if !needs_all || is_always_there(path) || shape.tracked.contains(path) {
                    return Ok(Some(Choice::Ordered));
                }
                if self.count(Choice::Scan, access, shape)? <= FEW {
                    return Ok(None);
                }
                Ok(self.engine.track(self.container, path)?.then_some(Choice::Ordered))
            }
            order => Ok(shape.policy.composite_for(order).map(|_| Choice::Composite)),
        }
    }

    /// How many entries a choice would read, up to just beyond [`FEW`].
    fn count(&self, choice: Choice, access: &Access, shape: &Shape) -> Result<usize, Failure> {
        let Some(plan) = choice::plan(choice, access, &shape.policy, self.partition.segment, &self.scope)
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

impl Source for PartitionSource<'_> {
    fn open<'a>(&'a self, access: &Access, resume: Option<&Position>) -> Result<Box<dyn Rows + 'a>, Failure> {
        let (choice, entry) = match resume {
            None => (self.choose(access)?, None),
            Some(position) => {
                let (choice, entry) = split_position(position).ok_or_else(invalid_continuation)?;
                (choice, Some(entry))
            }
        };
        let (opened, _) = self.reader.opened.get();
        self.reader.opened.set((opened + 1, Some(self.partition.id())));
        let shape = self.container.shape();
        let plan = choice::plan(choice, access, &shape.policy, self.partition.segment, &self.scope)
            .ok_or_else(invalid_continuation)?;
        Ok(Box::new(Cursor::new(self.reader, choice, plan, entry)))
    }

    fn check_order(&self, order: &[(Path, Direction)]) -> Result<(), Failure> {
        check_order(&self.container.shape(), order)
    }
}

/// Whether every document has a value here.
fn is_always_there(path: &Path) -> bool {
    matches!(path.as_slice(), [Step::Property(name)] if matches!(&**name, "id" | "_ts"))
}

/// Whether the service adds the value; those are sorted without an index.
fn is_system_path(path: &Path) -> bool {
    matches!(path.first(), Some(Step::Property(name)) if is_system_property(name))
}

fn check_order(shape: &Shape, order: &[(Path, Direction)]) -> Result<(), Failure> {
    match order {
        [] => Ok(()),
        [(path, _)] if shape.policy.includes(path) || is_system_path(path) => Ok(()),
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
pub(crate) struct ChainSource<'a> {
    pub(crate) parts: Vec<PartitionSource<'a>>,
    pub(crate) shape: Arc<Shape>,
}

impl Source for ChainSource<'_> {
    fn open<'a>(&'a self, access: &Access, resume: Option<&Position>) -> Result<Box<dyn Rows + 'a>, Failure> {
        if let [only] = self.parts.as_slice() {
            return only.open(access, resume);
        }
        let is_ordered = access.order.is_empty();
        let access = Access { predicates: access.predicates.clone(), order: Vec::new() };
        let (at, inner) = match resume {
            None => (0, None),
            Some(position) => {
                let (id, inner) = position.split_first_chunk::<4>().ok_or_else(invalid_continuation)?;
                let id = u32::from_be_bytes(*id);
                let at = self
                    .parts
                    .iter()
                    .position(|part| part.partition.id() == id)
                    .ok_or_else(invalid_continuation)?;
                (at, Some(inner.to_vec()))
            }
        };
        let mut chain = Chain { parts: &self.parts, access, at, rows: None, is_ordered };
        if let (Some(part), Some(inner)) = (self.parts.get(at), inner) {
            chain.rows = Some(part.open(&chain.access, Some(&inner))?);
        }
        Ok(Box::new(chain))
    }

    fn check_order(&self, order: &[(Path, Direction)]) -> Result<(), Failure> {
        check_order(&self.shape, order)
    }
}

struct Chain<'a> {
    parts: &'a [PartitionSource<'a>],
    access: Access,
    at: usize,
    rows: Option<Box<dyn Rows + 'a>>,
    is_ordered: bool,
}

impl Rows for Chain<'_> {
    fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    fn next(&mut self) -> Result<Option<crate::sql::source::Row>, Failure> {
        loop {
            let Some(part) = self.parts.get(self.at) else { return Ok(None) };
            let rows = match &mut self.rows {
                Some(rows) => rows,
                None => self.rows.insert(part.open(&self.access, None)?),
            };
            if let Some(mut row) = rows.next()? {
                let id = part.partition.id().to_be_bytes();
                row.position = [&id[..], &row.position].concat();
                return Ok(Some(row));
            }
            self.rows = None;
            self.at += 1;
        }
    }
}
