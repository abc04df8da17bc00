//! Many items by key and id, in as few requests as there are physical partitions that hold them.
//!
//! Items are grouped by range. One item alone is a point read; more are one query for exactly those. A range that
//! splits meanwhile has its missing items grouped anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::partition_key::{Component, Definition, PartitionKey, Path};
use cosmos_wire::resource::ResourceKind;
use futures::StreamExt;
use futures::stream;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::body::json;
use crate::container::Container;
use crate::diagnostics::Diagnostics;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::metadata::container::ContainerInfo;
use crate::operation::Call;
use crate::options::ItemOptions;
use crate::query::progress::{self, Progress};
use crate::query::{Feed, Query, range_target};
use crate::request::{Kind, Operation};

/// Items that were asked for together, in the order they were asked for.
#[derive(Debug)]
pub struct ManyItems {
    items: Vec<Option<Bytes>>,
    charge: f64,
    diagnostics: Diagnostics,
}

impl ManyItems {
    /// The items' JSON; a missing item is `None`.
    #[must_use]
    pub fn bodies(&self) -> &[Option<Bytes>] {
        &self.items
    }

    /// The items as values; a missing item is `None`.
    ///
    /// # Errors
    /// When one does not fit the type.
    pub fn items<T: DeserializeOwned>(&self) -> Result<Vec<Option<T>>, Error> {
        let read = |body: &Bytes| {
            serde_json::from_slice(body)
                .map_err(|e| Error::serialization("an item does not fit the type asked for", e))
        };
        self.items.iter().map(|item| item.as_ref().map(read).transpose()).collect()
    }

    /// Request units of all requests.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.charge
    }

    /// Everything that was tried; one attempt per request unless something went wrong.
    #[must_use]
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }
}

impl Container {
    /// Reads items by key and id, in one request per physical partition that holds some of them.
    ///
    /// # Errors
    /// As any operation. A missing item is no error.
    pub async fn read_many(
        &self,
        items: &[(PartitionKey, String)],
        options: &ItemOptions,
    ) -> Result<ManyItems, Error> {
        let call = Call::start(&self.driver().core, &options.call);
        let info = self.cell().info(&self.driver().core, &call).await?;
        let mut keys = Vec::with_capacity(items.len());
        for (key, id) in items {
            limits::item_id(id)?;
            limits::full_key(key, &info.definition)?;
            keys.push(Epk::of(key, &info.definition));
        }
        let reading = Reading { container: self, info, options, items, keys };
        let mut many =
            ManyItems { items: vec![None; items.len()], charge: 0.0, diagnostics: Diagnostics::default() };
        let mut pending: Vec<usize> = (0..items.len()).collect();
        for _ in 0..ROUNDS_MAX {
            pending = reading.round(&pending, &call, &mut many).await?;
            if pending.is_empty() {
                many.diagnostics.span_attempts();
                return Ok(many);
            }
        }
        Err(Error::protocol("the container's ranges split faster than they could be read"))
    }
}

struct Reading<'a> {
    container: &'a Container,
    info: Arc<ContainerInfo>,
    options: &'a ItemOptions,
    items: &'a [(PartitionKey, String)],
    keys: Vec<Epk>,
}

/// What one request, or the pages of one query, brought.
struct Found {
    items: Vec<(usize, Bytes)>,
    charge: f64,
    log: Diagnostics,
    /// The range is no longer one: these must be asked for again.
    missed: Vec<usize>,
}

impl Reading<'_> {
    /// Asks for everything pending; gives back what has to be asked for again.
    async fn round(
        &self,
        pending: &[usize],
        call: &Call<'_>,
        many: &mut ManyItems,
    ) -> Result<Vec<usize>, Error> {
        let keys = pending.iter().map(|at| (*at, &self.keys[*at]));
        let groups = self.info.ranges.load().grouped(keys);
        let chunks = groups.into_iter().flat_map(|(bounds, group)| {
            let chunks: Vec<_> =
                group.chunks(ITEMS_PER_QUERY).map(|c| (bounds.clone(), c.to_vec())).collect();
            chunks
        });
        let requests = chunks.map(|(bounds, chunk)| async move {
            match chunk[..] {
                [one] => self.point(one, call).await,
                _ => self.query(bounds, &chunk, call).await,
            }
        });
        let mut requests = stream::iter(requests).buffer_unordered(REQUESTS_AT_ONCE);
        let mut missed = Vec::new();
        while let Some(found) = requests.next().await {
            let found = found?;
            many.charge += found.charge;
            many.diagnostics.merge(found.log);
            for (at, body) in found.items {
                many.items[at] = Some(body);
            }
            missed.extend(found.missed);
        }
        Ok(missed)
    }

    async fn point(&self, at: usize, call: &Call<'_>) -> Result<Found, Error> {
        let (key, id) = &self.items[at];
        let read =
            self.container.item_within(Kind::ReadItem, key, Some(id), Bytes::new(), self.options, call);
        match read.await {
            Ok(response) => Ok(Found {
                charge: response.charge(),
                items: vec![(at, response.body().clone())],
                log: response.into_diagnostics(),
                missed: Vec::new(),
            }),
            // With a sub-status it is something else that is missing.
            Err(error) if error.kind() == ErrorKind::NotFound && error.sub_status() == Some(0) => Ok(Found {
                items: Vec::new(),
                charge: error.charge(),
                log: error.diagnostics().clone(),
                missed: Vec::new(),
            }),
            Err(error) => Err(error),
        }
    }

    async fn query(&self, bounds: EpkRange, chunk: &[usize], call: &Call<'_>) -> Result<Found, Error> {
        let wanted = self.wanted(chunk);
        let body = json(&question(&self.info.definition, chunk.iter().map(|at| &self.items[*at])))?;
        let cell = self.container.cell();
        let mut found =
            Found { items: Vec::new(), charge: 0.0, log: Diagnostics::default(), missed: Vec::new() };
        let mut continuation: Option<String> = None;
        let mut progress = Progress::default();
        loop {
            let mut operation = Operation::new(
                Kind::Query,
                ResourceKind::Document,
                cell.link.clone(),
                cell.docs_path.clone(),
            );
            operation.body = body.clone();
            operation.container = Some(self.info.clone());
            operation.target = range_target(bounds.clone())?;
            operation.consistency = self.options.call.consistency;
            operation.pinned = found.log.winner().map(|attempt| attempt.region.clone());
            operation.resume(continuation.as_deref())?;
            let response = match self.container.run(operation, call).await {
                Ok(response) => response,
                Err(error) if error.status() == Some(410) && self.has_split(&bounds) => {
                    let has = |at: &usize| found.items.iter().any(|(known, _)| known == at);
                    found.missed = chunk.iter().copied().filter(|at| !has(at)).collect();
                    found.log.merge(error.diagnostics().clone());
                    return Ok(found);
                }
                Err(error) => return Err(error),
            };
            let feed: Feed<Box<RawValue>> = response.json()?;
            for row in feed.documents {
                for at in self.places(&wanted, &row)? {
                    found.items.push((*at, Bytes::copy_from_slice(row.get().as_bytes())));
                }
            }
            let next = response.continuation().map(str::to_owned);
            progress.note(continuation.as_deref(), next.as_deref(), progress::is_empty(response.body()))?;
            continuation = next;
            found.charge += response.charge();
            found.log.merge(response.into_diagnostics());
            if continuation.is_none() {
                return Ok(found);
            }
        }
    }

    fn has_split(&self, bounds: &EpkRange) -> bool {
        !self.info.ranges.load().holding(&bounds.min).bounds.contains_range(bounds)
    }

    /// Where each item goes, by id and key; the same one may be asked for twice.
    fn wanted(&self, chunk: &[usize]) -> Wanted<'_> {
        let mut wanted = Wanted::new();
        for at in chunk {
            let (key, id) = &self.items[*at];
            wanted.entry(id).or_default().entry(key.to_string()).or_default().push(*at);
        }
        wanted
    }

    fn places<'w>(&self, wanted: &'w Wanted<'_>, row: &RawValue) -> Result<&'w [usize], Error> {
        let document: Value =
            serde_json::from_str(row.get()).map_err(|e| Error::serialization("an item of a query", e))?;
        let key = self.info.definition.extract(&document).to_string();
        let id = document["id"].as_str().unwrap_or_default();
        Ok(wanted.get(id).and_then(|keys| keys.get(&key)).map_or(&[], Vec::as_slice))
    }
}

type Wanted<'a> = BTreeMap<&'a str, BTreeMap<String, Vec<usize>>>;

/// The query for exactly these items: ids by key, so that a key is named once. Pure.
fn question<'i>(definition: &Definition, items: impl Iterator<Item = &'i (PartitionKey, String)>) -> Query {
    let mut by_key: BTreeMap<String, (&PartitionKey, Vec<&str>)> = BTreeMap::new();
    for (key, id) in items {
        by_key.entry(key.to_string()).or_insert_with(|| (key, Vec::new())).1.push(id);
    }
    let mut text = String::from("SELECT * FROM c WHERE ");
    let mut parameters: Vec<(String, Value)> = Vec::new();
    for (i, (_, (key, ids))) in by_key.iter().enumerate() {
        text.push_str(if i == 0 { "(" } else { " OR (" });
        for (path, component) in definition.paths().iter().zip(key.components()) {
            let property = property(path);
            if *component == Component::Undefined {
                let _ = write!(text, "NOT IS_DEFINED({property}) AND ");
            } else {
                let name = format!("@p{}", parameters.len());
                let _ = write!(text, "{property} = {name} AND ");
                parameters.push((name, component.to_json()));
            }
        }
        text.push_str("c.id IN (");
        for (j, id) in ids.iter().enumerate() {
            let name = format!("@p{}", parameters.len());
            let _ = write!(text, "{}{name}", if j == 0 { "" } else { ", " });
            parameters.push((name, Value::from(*id)));
        }
        text.push_str("))");
    }
    parameters.into_iter().fold(Query::new(text), |query, (name, value)| query.with(name, value))
}

/// `c["a"]["b"]`: names may be words of the language.
fn property(path: &Path) -> String {
    path.segments().iter().fold(String::from("c"), |mut text, segment| {
        let _ = write!(text, "[{}]", Value::from(segment.as_str()));
        text
    })
}

/// Items one query asks for; the text stays far below the service's limit.
const ITEMS_PER_QUERY: usize = 500;
/// Requests in flight.
const REQUESTS_AT_ONCE: usize = 32;
/// Each round follows a split.
const ROUNDS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(definition: &Definition, items: &[(PartitionKey, String)]) -> String {
        let query = question(definition, items.iter());
        serde_json::to_value(&query).expect("json")["query"].as_str().expect("a text").to_owned()
    }

    #[test]
    fn ids_are_asked_for_by_key() {
        let definition = Definition::hash("/pk").expect("a path");
        let item = |key: &str, id: &str| (PartitionKey::from(key), id.to_owned());
        assert_eq!(
            text(&definition, &[item("a", "1"), item("b", "2"), item("a", "3")]),
            r#"SELECT * FROM c WHERE (c["pk"] = @p0 AND c.id IN (@p1, @p2)) OR (c["pk"] = @p3 AND c.id IN (@p4))"#
        );
    }

    #[test]
    fn missing_keys_and_deep_paths_can_be_asked_for() {
        let definition = Definition::hash("/a/order").expect("a path");
        assert_eq!(
            text(&definition, &[(PartitionKey::undefined(), "1".to_owned())]),
            r#"SELECT * FROM c WHERE (NOT IS_DEFINED(c["a"]["order"]) AND c.id IN (@p0))"#
        );
    }
}
