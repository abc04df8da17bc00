//! The ranges of the container as a client knows them, and which session token goes with a key.

use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::partition_key::{Definition, PartitionKey};
use cosmos_wire::session_token::SessionToken;
use serde_json::Value;

/// One physical partition.
#[derive(Debug, Clone)]
pub(super) struct Range {
    pub(super) id: String,
    pub(super) bounds: EpkRange,
    parents: Vec<String>,
}

/// The ranges of the container.
#[derive(Debug, Clone, Default)]
pub(super) struct Routing {
    pub(super) ranges: Vec<Range>,
}

impl Routing {
    /// Reads the answer of `pkranges`. The ranges must follow on each other and leave nothing out.
    pub(super) fn parse(answer: &Value) -> Result<Self, String> {
        let mut ranges = Vec::new();
        for range in answer["PartitionKeyRanges"].as_array().into_iter().flatten() {
            let bound = |name: &str| -> Result<Epk, String> {
                range[name].as_str().and_then(|text| text.parse().ok()).ok_or(format!("no {name} in {range}"))
            };
            let parents = range["parents"].as_array().into_iter().flatten().filter_map(Value::as_str);
            ranges.push(Range {
                id: range["id"].as_str().unwrap_or_default().to_owned(),
                bounds: EpkRange::new(bound("minInclusive")?, bound("maxExclusive")?),
                parents: parents.map(str::to_owned).collect(),
            });
        }
        ranges.sort_by(|one, other| one.bounds.min.cmp(&other.bounds.min));
        let ends: Vec<Epk> = ranges.iter().map(|range| range.bounds.max.clone()).collect();
        let starts: Vec<Epk> = ranges.iter().map(|range| range.bounds.min.clone()).collect();
        let follow = starts.iter().skip(1).eq(ends.iter().take(ends.len().saturating_sub(1)));
        if starts.first() != Some(&Epk::MIN) || ends.last() != Some(&Epk::max()) || !follow {
            return Err(format!("the ranges leave gaps or overlap: {answer}"));
        }
        Ok(Self { ranges })
    }

    /// The range of a logical partition.
    pub(super) fn of(&self, key: &str) -> Option<&Range> {
        let definition = Definition::hash("/pk").ok()?;
        let key: PartitionKey = serde_json::json!([key]).to_string().parse().ok()?;
        let place = Epk::of(&key, &definition);
        self.ranges.iter().find(|range| range.bounds.contains(&place))
    }

    /// The token for a key: that of its range, or of the youngest range it was made from, as the SDKs do it.
    pub(super) fn token(&self, key: &str, session: &SessionToken) -> Option<String> {
        let range = self.of(key)?;
        let mut names = std::iter::once(&range.id).chain(range.parents.iter().rev());
        let progress = names.find_map(|name| session.progress(name))?;
        Some(format!("{}:{progress}", range.id))
    }
}
