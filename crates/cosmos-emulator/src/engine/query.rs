//! Queries: SQL over a scope, one page at a time.

use std::cell::{Cell, OnceCell};

use cosmos_wire::epk::EpkRange;
use serde_json::{Value, json};

use super::Engine;
use super::container::{Container, Shape};
use super::index::cursor::Reader;
use super::index::source::{ChainSource, PartitionSource, invalid_continuation};
use super::quota::{self, QueryWork};
use super::request::{QueryPage, QueryRequest, Scope};
use super::scope::{Part, parts};
use super::throughput::settle_all;
use crate::Failure;
use crate::sql::{self, Leash, PageLimits, Prepared};

impl Engine {
    /// One page of a query. Whether the gateway may serve it at all is decided before.
    ///
    /// # Errors
    /// 400 for SQL, parameters, orders or tokens the service refuses; 404/1002 and 410/1002 as for reads; 410/1007
    /// when a partition is replaced meanwhile.
    pub fn query(&self, container: &Container, request: QueryRequest) -> Result<QueryPage, Failure> {
        self.query_within(container, request, Leash::default())
    }

    /// The same within a time.
    ///
    /// # Errors
    /// As [`query`](Self::query); 408 for what takes longer and cannot be cut into pages.
    pub fn query_within(
        &self,
        container: &Container,
        request: QueryRequest,
        leash: Leash,
    ) -> Result<QueryPage, Failure> {
        let QueryRequest { text, parameters, scope, page_size, continuation, session_token, resume } =
            request;
        let shape = self.current_shape(container)?;
        let mut prepared = Prepared::in_container(&sql::parse(&text)?, &parameters, &shape.schema)?;
        if let Some(filter) = &resume {
            prepared = prepared.resumed(filter)?;
        }
        let parts = parts(container, &shape, &scope)?;
        let topology = self.topology();
        let turns = self.admit_all(container, &shape, &parts)?;
        for part in &parts {
            self.catch_up(container, &part.partition)?;
            part.partition.check_session(&topology, session_token.as_deref())?;
        }
        // Taken before the moment that is read, which has all of it.
        let mut standings: Vec<_> = parts.iter().map(|part| part.partition.standing(&topology, 0)).collect();
        let (token, origin) = continuation.as_deref().map(unwrap_token).transpose()?.unzip();
        let reader = self.reader(container, &shape);
        let source =
            ChainSource { parts: self.sources(container, &parts, &reader), shape, origin: origin.flatten() };
        let limits = PageLimits { items_max: page_size.rows_max(), leash, ..PageLimits::default() };
        let page = prepared.page(&source, &limits, token.as_deref(), self.clock().now())?;
        let (documents, document_bytes) = reader.visited.get();
        let (opened, last) = reader.opened.get();
        let work = QueryWork {
            documents,
            document_bytes,
            rows: page.rows.len() as u64,
            row_bytes: page.body_bytes as u64,
        };
        let idle = f64::from(opened.saturating_sub(1)) * quota::query(QueryWork::default());
        let answered = parts.iter().rposition(|part| Some(part.partition.id()) == last).unwrap_or(0);
        let charge = quota::query(work) + idle;
        settle_all(turns, charge);
        Ok(QueryPage {
            rows: page.rows,
            continuation: page.continuation.map(|token| wrap_token(&token, &parts, &scope)),
            charge,
            documents_visited: documents,
            standing: standings.swap_remove(answered),
        })
    }

    pub(crate) fn reader<'a>(&'a self, container: &'a Container, shape: &Shape) -> Reader<'a> {
        Reader {
            storage: &**self.storage(),
            container,
            moment: OnceCell::new(),
            default_ttl: shape.default_ttl,
            now: self.clock().now_seconds(),
            visited: Cell::new((0, 0)),
            opened: Cell::new((0, None)),
        }
    }

    fn sources<'a, 'r>(
        &'a self,
        container: &'a Container,
        parts: &'a [Part],
        reader: &'a Reader<'r>,
    ) -> Vec<PartitionSource<'a, 'r>> {
        parts
            .iter()
            .map(|part| PartitionSource { engine: self, container, part: part.clone(), reader })
            .collect()
    }
}

/// A token in the form the service gives it.
fn wrap_token(token: &str, parts: &[Part], scope: &Scope) -> String {
    let (min, max) = match (scope, parts.first(), parts.last()) {
        (Scope::EpkRange(min, max), _, _) => (min.clone(), max.clone()),
        (_, Some(first), Some(last)) => {
            (first.partition.range.min.to_hex(), last.partition.range.max.to_hex())
        }
        (_, _, _) => (String::new(), "FF".to_owned()),
    };
    json!({"token": token, "range": {"min": min, "max": max}}).to_string()
}

/// The engine's own token, and the keys it was made for.
fn unwrap_token(text: &str) -> Result<(String, Option<EpkRange>), Failure> {
    let value: Value = serde_json::from_str(text).map_err(|_| invalid_continuation())?;
    let token = value["token"].as_str().ok_or_else(invalid_continuation)?;
    let bound = |name: &str| value["range"][name].as_str().and_then(|hex| hex.parse().ok());
    let range = bound("min").zip(bound("max")).map(|(min, max)| EpkRange::new(min, max));
    Ok((token.to_owned(), range))
}
