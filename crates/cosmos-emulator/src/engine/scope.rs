//! Which physical partitions, and which keys in them, a query or a feed looks at.

use std::sync::Arc;

use cosmos_wire::epk::{self, Epk, EpkRange};

use super::container::{Container, Shape, epk_key, too_few_components};
use super::index::choice::KeyScope;
use super::key;
use super::partition::Partition;
use super::request::Scope;
use crate::Failure;

/// One physical partition's part of a scope.
pub(crate) struct Part {
    pub(crate) partition: Arc<Partition>,
    pub(crate) scope: KeyScope,
}

/// The parts of a scope, in order of keys; never empty.
pub(crate) fn parts(container: &Container, shape: &Shape, scope: &Scope) -> Result<Vec<Part>, Failure> {
    let whole =
        |partition: &Arc<Partition>| Part { partition: Arc::clone(partition), scope: KeyScope::Partition };
    match scope {
        Scope::All => Ok(shape.partitions_in(container.region).iter().map(whole).collect()),
        Scope::Range(id) => {
            let partitions = shape.partitions_in(container.region);
            let found = partitions.iter().find(|partition| partition.id().to_string() == *id);
            found.map(|partition| vec![whole(partition)]).ok_or_else(range_gone)
        }
        Scope::EpkRange(min, max) => {
            let bound =
                |text: &str| text.parse::<Epk>().map_err(|error| Failure::bad_request(error.to_string()));
            of_range(shape.partitions_in(container.region), &EpkRange::new(bound(min)?, bound(max)?))
        }
        Scope::PartitionKey(key) => {
            match epk::Scope::of(key, container.partition_key()).map_err(|_| too_few_components())? {
                epk::Scope::Point(epk) => {
                    let partition = Arc::clone(shape.partition_of(container.region, &epk));
                    Ok(vec![Part { partition, scope: KeyScope::Key(epk_key(&epk)) }])
                }
                epk::Scope::Range(range) => of_range(shape.partitions_in(container.region), &range),
            }
        }
    }
}

fn of_range(partitions: &[Arc<Partition>], range: &EpkRange) -> Result<Vec<Part>, Failure> {
    let parts: Vec<_> = partitions
        .iter()
        .filter_map(|partition| {
            let common = partition.range.intersection(range)?;
            let scope = if common == partition.range {
                KeyScope::Partition
            } else {
                let bound = |epk: &Epk| key::epk_bound(epk.significant_bytes());
                KeyScope::Range(bound(&common.min), bound(&common.max))
            };
            Some(Part { partition: Arc::clone(partition), scope })
        })
        .collect();
    if parts.is_empty() {
        return Err(Failure::bad_request(format!("The range {range} of effective partition keys is empty.")));
    }
    Ok(parts)
}

/// A physical partition that was split, merged, or never there.
pub(crate) fn range_gone() -> Failure {
    Failure::new(410, "The requested resource is no longer available at the server.").with_sub_status(1002)
}
