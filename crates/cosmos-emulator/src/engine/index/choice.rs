//! Which way to read the documents a query asks for, and the key intervals of that way.

use std::ops::Bound;

use super::encode;
use super::path::PathId;
use super::policy::{Composite, Policy};
use crate::engine::key::{self, EpkKey, Segment};
use crate::sql::source::{Access, Direction, Path, Predicate, Step};
use crate::storage::Order;
use serde_json::Value;

/// Which keys of a physical partition are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyScope {
    /// All of them.
    Partition,
    /// From the first bound up to the second, as [`key::epk_bound`] makes them.
    Range(Vec<u8>, Vec<u8>),
    /// One logical partition.
    Key(EpkKey),
}

/// A way to read documents. It is part of every position, so that a later page goes on the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// All documents, in order of creation.
    Scan,
    /// All documents of a range of keys, in order of keys.
    ScanKeys,
    /// Those with the values of one predicate.
    Equality(u8),
    /// Those in the range of one predicate.
    Range(u8),
    /// In the order of the one sort path, of which the index knows which documents lack it.
    Ordered,
    /// In the order of the one sort path, which all documents had when the first page was read.
    OrderedCommon,
    /// Behind those: the documents that have lost it since then, in order of creation.
    Lacking,
    /// In the order of a composite index.
    Composite,
}

impl Choice {
    /// How all documents of a scope are read.
    pub(crate) fn scan_of(scope: &KeyScope) -> Self {
        match scope {
            KeyScope::Partition | KeyScope::Key(_) => Self::Scan,
            KeyScope::Range(..) => Self::ScanKeys,
        }
    }

    /// As it stands in positions.
    pub(crate) fn to_bytes(self) -> [u8; 2] {
        match self {
            Self::Scan => [0, 0],
            Self::ScanKeys => [0, 1],
            Self::Equality(at) => [1, at],
            Self::Range(at) => [2, at],
            Self::Ordered => [3, 0],
            Self::OrderedCommon => [3, 1],
            Self::Lacking => [3, 2],
            Self::Composite => [4, 0],
        }
    }

    /// From a position.
    pub(crate) fn from_bytes(bytes: [u8; 2]) -> Option<Self> {
        Some(match bytes {
            [0, 0] => Self::Scan,
            [0, 1] => Self::ScanKeys,
            [1, at] => Self::Equality(at),
            [2, at] => Self::Range(at),
            [3, 0] => Self::Ordered,
            [3, 1] => Self::OrderedCommon,
            [3, 2] => Self::Lacking,
            [4, 0] => Self::Composite,
            _ => return None,
        })
    }
}

/// Key intervals to read, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Lower bounds are inclusive, upper bounds exclusive. Sorted as they are read.
    pub(crate) intervals: Vec<(Vec<u8>, Vec<u8>)>,
    /// Which end of each interval comes first.
    pub(crate) order: Order,
    /// Whether rows come in the order the query asked for.
    pub(crate) is_ordered: bool,
    /// What all keys begin with; in keys of values the value follows.
    pub(crate) base: Vec<u8>,
    /// A path through arrays: a document can be found by several of its values.
    pub(crate) spread: Option<Path>,
    /// The sort paths, where cut strings must be compared again.
    pub(crate) sorted_by: Vec<Sorted>,
    /// Documents with a value at this path are left out.
    pub(crate) lacking: Option<Path>,
    /// Entries of other logical partitions stand between: keep those from the first bound up to the second.
    pub(crate) keep: Option<(Vec<u8>, Vec<u8>)>,
}

/// A sort path whose values stand in the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sorted {
    pub(crate) path: Path,
    /// As it is asked for.
    pub(crate) direction: Direction,
    /// Whether the bytes of its values are inverted.
    pub(crate) is_inverted: bool,
}

/// Makes the plan of a choice; `None` if the choice does not fit the access.
pub(crate) fn plan(
    choice: Choice,
    access: &Access,
    policy: &Policy,
    segment: Segment,
    scope: &KeyScope,
) -> Option<Plan> {
    let backwards = access.order.first().is_some_and(|(_, direction)| *direction == Direction::Descending);
    let order = if backwards { Order::Reverse } else { Order::Forward };
    match choice {
        Choice::Scan => {
            let base = base(segment, scope, PathId::CREATION);
            let interval = (base.clone(), key::beyond(base.clone()));
            Some(scan_plan(base, interval, order, access.order.is_empty(), keep(scope)))
        }
        Choice::Lacking => {
            let lacking = Some(access.order.first()?.0.clone());
            let scan = plan(Choice::Scan, access, policy, segment, scope)?;
            Some(Plan { is_ordered: true, lacking, ..scan })
        }
        Choice::ScanKeys => {
            let KeyScope::Range(low, high) = scope else { return None };
            let base = key::by_partition(segment.container, PathId::CREATION.get());
            let interval = (with(&base, low), with(&base, high));
            Some(scan_plan(base, interval, order, access.order.is_empty(), None))
        }
        Choice::Equality(at) | Choice::Range(at) => {
            let predicate = access.predicates.get(usize::from(at))?;
            let path = predicate_path(predicate);
            let base = base(segment, scope, PathId::of(path));
            let is_ordered = access.order.is_empty();
            let mut intervals = intervals(&base, predicate);
            if order == Order::Reverse {
                intervals.reverse();
            }
            let spread = (!is_plain(path)).then(|| each_path(path));
            Some(Plan {
                intervals,
                order,
                is_ordered,
                base,
                spread,
                sorted_by: Vec::new(),
                lacking: None,
                keep: keep(scope),
            })
        }
        Choice::Ordered | Choice::OrderedCommon => {
            let (path, direction) = access.order.first()?;
            let base = base(segment, scope, PathId::of(path));
            let narrowing = access.predicates.iter().find(|predicate| predicate_path(predicate) == path);
            let mut intervals = match narrowing {
                Some(predicate) => intervals(&base, predicate),
                // What is left of an attempt to learn the path counts only once that is done.
                None if choice == Choice::OrderedCommon => {
                    vec![(with(&base, &[encode::UNDEFINED + 1]), with(&base, &[encode::BEYOND]))]
                }
                None => vec![(base.clone(), with(&base, &[encode::BEYOND]))],
            };
            if order == Order::Reverse {
                intervals.reverse();
            }
            let sorted_by = vec![Sorted { path: path.clone(), direction: *direction, is_inverted: false }];
            Some(Plan {
                intervals,
                order,
                is_ordered: true,
                base,
                spread: None,
                sorted_by,
                lacking: None,
                keep: keep(scope),
            })
        }
        Choice::Composite => {
            let (composite, flip) = policy.composite_for(&access.order)?;
            let base = base(segment, scope, composite.id);
            let (lower, upper) = composite_interval(&base, composite, access);
            let intervals = if lower < upper { vec![(lower, upper)] } else { Vec::new() };
            let order = if flip { Order::Reverse } else { Order::Forward };
            let sorted_by =
                access.order.iter().zip(&composite.paths).map(|((path, direction), (_, own))| Sorted {
                    path: path.clone(),
                    direction: *direction,
                    is_inverted: *own == Direction::Descending,
                });
            let sorted_by = sorted_by.collect();
            Some(Plan {
                intervals,
                order,
                is_ordered: true,
                base,
                spread: None,
                sorted_by,
                lacking: None,
                keep: keep(scope),
            })
        }
    }
}

fn scan_plan(
    base: Vec<u8>,
    interval: (Vec<u8>, Vec<u8>),
    order: Order,
    is_ordered: bool,
    keep: Option<(Vec<u8>, Vec<u8>)>,
) -> Plan {
    let intervals = vec![interval];
    Plan { intervals, order, is_ordered, base, spread: None, sorted_by: Vec::new(), lacking: None, keep }
}

/// What all entries of a path begin with, as far as the scope can say it.
pub(crate) fn base(segment: Segment, scope: &KeyScope, path: PathId) -> Vec<u8> {
    match scope {
        KeyScope::Key(epk) => key::by_partition_of(segment.container, path.get(), epk),
        KeyScope::Partition | KeyScope::Range(..) => key::by_value(segment, path.get()),
    }
}

fn keep(scope: &KeyScope) -> Option<(Vec<u8>, Vec<u8>)> {
    match scope {
        KeyScope::Range(low, high) => Some((low.clone(), high.clone())),
        KeyScope::Partition | KeyScope::Key(_) => None,
    }
}

/// The path a predicate is about.
pub(crate) fn predicate_path(predicate: &Predicate) -> &Path {
    match predicate {
        Predicate::In { path, .. } | Predicate::Range { path, .. } | Predicate::Defined { path } => path,
    }
}

/// Key intervals of a predicate, ascending and apart from each other.
pub(crate) fn intervals(base: &[u8], predicate: &Predicate) -> Vec<(Vec<u8>, Vec<u8>)> {
    match predicate {
        Predicate::In { values, .. } => {
            let mut prefixes: Vec<_> = values.iter().map(encode::equality_prefix).collect();
            prefixes.sort_unstable();
            prefixes.dedup();
            prefixes
                .into_iter()
                .map(|prefix| {
                    let lower = with(base, &prefix);
                    (lower.clone(), key::beyond(lower))
                })
                .collect()
        }
        Predicate::Range { lower, upper, .. } => {
            let interval = range_interval(base, lower, upper);
            if interval.0 < interval.1 { vec![interval] } else { Vec::new() }
        }
        Predicate::Defined { .. } => {
            vec![(with(base, &[encode::UNDEFINED + 1]), with(base, &[encode::BEYOND]))]
        }
    }
}

fn range_interval(base: &[u8], lower: &Bound<Value>, upper: &Bound<Value>) -> (Vec<u8>, Vec<u8>) {
    let sample = match (lower, upper) {
        (Bound::Included(value) | Bound::Excluded(value), _)
        | (_, Bound::Included(value) | Bound::Excluded(value)) => Some(value),
        (Bound::Unbounded, Bound::Unbounded) => None,
    };
    let (least, beyond) =
        sample.map_or_else(|| (vec![encode::UNDEFINED + 1], vec![encode::BEYOND]), encode::type_bounds);
    let low = match lower {
        Bound::Unbounded => least,
        Bound::Included(value) => encode::equality_prefix(value),
        Bound::Excluded(value) => {
            let encoded = encode::encoded(Some(value));
            if encode::is_cut(&encoded) { encoded } else { key::beyond(encoded) }
        }
    };
    let high = match upper {
        Bound::Unbounded => beyond,
        Bound::Included(value) => key::beyond(encode::equality_prefix(value)),
        Bound::Excluded(value) => {
            let encoded = encode::encoded(Some(value));
            if encode::is_cut(&encoded) { key::beyond(encoded) } else { encoded }
        }
    };
    (with(base, &low), with(base, &high))
}

/// Whether the ordered way reads no more than a predicate lets through.
pub(crate) fn narrows_order(predicate: &Predicate, access: &Access, policy: &Policy) -> bool {
    let path = predicate_path(predicate);
    if let [(sorted, _)] = access.order.as_slice() {
        return sorted == path;
    }
    let Some((composite, _)) = policy.composite_for(&access.order) else { return false };
    let Some(at) = composite.paths.iter().position(|(own, _)| own == path) else { return false };
    let is_fixed = |path: &Path| {
        let own = access.predicates.iter().filter(|predicate| predicate_path(predicate) == path);
        own.into_iter()
            .any(|predicate| matches!(predicate, Predicate::In { values, .. } if values.len() == 1))
    };
    composite.paths[..at].iter().all(|(path, _)| is_fixed(path))
        && (is_fixed(path) || composite.paths[at].1 == Direction::Ascending)
}

/// The part of a composite index that a filter leaves: leading equalities, then a range of the next path.
fn composite_interval(base: &[u8], composite: &Composite, access: &Access) -> (Vec<u8>, Vec<u8>) {
    let mut prefix = base.to_vec();
    for (path, direction) in &composite.paths {
        let is_own = |predicate: &&Predicate| predicate_path(predicate) == path;
        let fixed = access.predicates.iter().filter(is_own).find_map(|predicate| match predicate {
            Predicate::In { values, .. } if values.len() == 1 => values.first(),
            Predicate::In { .. } | Predicate::Range { .. } | Predicate::Defined { .. } => None,
        });
        let Some(value) = fixed else {
            let range = access.predicates.iter().filter(is_own).find_map(|predicate| match predicate {
                Predicate::Range { lower, upper, .. } if *direction == Direction::Ascending => {
                    Some(range_interval(&prefix, lower, upper))
                }
                Predicate::In { .. } | Predicate::Range { .. } | Predicate::Defined { .. } => None,
            });
            return range.unwrap_or_else(|| (prefix.clone(), key::beyond(prefix)));
        };
        let encoded = encode::encoded(Some(value));
        let exact = !encode::is_cut(&encoded) && value.as_f64().is_none_or(|number| number.abs() < EXACT_MAX);
        let mut part = if exact { encoded } else { encode::equality_prefix(value) };
        if *direction == Direction::Descending {
            part.iter_mut().for_each(|byte| *byte = !*byte);
        }
        prefix.extend_from_slice(&part);
        if !exact {
            break;
        }
    }
    (prefix.clone(), key::beyond(prefix))
}

/// Integers below are exact doubles.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Whether an order by this path can come from the index.
pub(crate) fn is_plain(path: &[Step]) -> bool {
    !path.is_empty() && path.iter().all(|step| matches!(step, Step::Property(_)))
}

fn each_path(path: &[Step]) -> Path {
    path.iter()
        .map(|step| match step {
            Step::Property(_) => step.clone(),
            Step::Index(_) | Step::Each => Step::Each,
        })
        .collect()
}

fn with(base: &[u8], more: &[u8]) -> Vec<u8> {
    [base, more].concat()
}
