//! Which indexes a query can use, for those who ask with `x-ms-cosmos-populateindexmetrics`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cosmos_wire::header;
use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::engine::{Container, Scope};
use crate::sql::Prepared;
use crate::sql::source::{Path, Predicate, Step};

/// The header of an answer. The key that scopes a query counts as an index on its path, and a range of keys as one on
/// the effective key; paths that the filter or the order need and the policy leaves out are potential indexes.
pub(super) fn header(container: &Container, prepared: &Prepared, scope: &Scope) -> (HeaderName, HeaderValue) {
    const INDEX_UTILIZATION: HeaderName = HeaderName::from_static(header::INDEX_UTILIZATION);
    let access = prepared.access();
    let (mut used, mut potential) = (Vec::new(), Vec::new());
    match scope {
        Scope::PartitionKey(_) => {
            used.extend(
                container.partition_key().paths().iter().map(|path| single(&format!("{}/?", path.as_str()))),
            );
        }
        Scope::Range(_) | Scope::EpkRange(..) | Scope::All => used.push(single("/_epk/?")),
    }
    let filtered = access.predicates.iter().map(|predicate| match predicate {
        Predicate::In { path, .. } | Predicate::Range { path, .. } | Predicate::Defined { path } => path,
    });
    let sorted = access.order.iter().filter(|_| access.order.len() == 1).map(|(path, _)| path);
    for path in filtered.chain(sorted) {
        let list = if container.is_indexed(path) { &mut used } else { &mut potential };
        let entry = single(&spec(path));
        if !list.contains(&entry) {
            list.push(entry);
        }
    }
    let composite = if access.order.len() > 1 {
        let specs: Vec<String> = access.order.iter().map(|(path, _)| spec(path)).collect();
        vec![json!({"IndexSpecs": specs, "IndexPreciseSet": true, "IndexImpactScore": "High"})]
    } else {
        Vec::new()
    };
    let report = json!({
        "UtilizedSingleIndexes": used,
        "PotentialSingleIndexes": potential,
        "UtilizedCompositeIndexes": composite,
        "PotentialCompositeIndexes": [],
    });
    let text = STANDARD.encode(report.to_string());
    (INDEX_UTILIZATION, HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")))
}

fn single(spec: &str) -> Value {
    json!({"FilterExpression": "", "IndexSpec": spec, "FilterPreciseSet": true, "IndexPreciseSet": true,
           "IndexImpactScore": "High"})
}

/// A path as indexing policies spell it.
fn spec(path: &Path) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Property(name) => {
                out.push('/');
                out.push_str(name);
            }
            Step::Index(_) | Step::Each => out.push_str("/[]"),
        }
    }
    out.push_str("/?");
    out
}
