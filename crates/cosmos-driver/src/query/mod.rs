//! Queries.
//!
//! A query over one logical partition is one stream of pages, served by the service as it is. A query over more asks
//! the gateway for a plan first, then runs the planned text on every range it touches, in parallel, and puts the
//! parts together here.

mod continuation;
mod fanout;
mod group;
mod page;
mod pipeline;
pub(crate) mod plan;
pub(crate) mod progress;
mod request;
mod rows;
mod seen;
mod sort;

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use cosmos_wire::epk::{Epk, EpkRange, Scope as KeyScope};
use cosmos_wire::header;
use cosmos_wire::resource::ResourceKind;
use http::HeaderValue;
use http::header::HeaderName;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::body::json;
use crate::container::Container;
use crate::diagnostics::Diagnostics;
use crate::error::Error;
use crate::limits;
use crate::metadata::container::ContainerInfo;
use crate::operation::Call;
use crate::request::{Kind, Operation, Target};
pub(crate) use page::Feed;
pub use page::Page;
pub use request::{Query, QueryOptions, Scope};

use continuation::{Continuation, Direct};
use fanout::Source;
use pipeline::Pipeline;
use plan::{Plan, PlanDocument};
use progress::Progress;

/// Reads a query page by page.
#[derive(Debug)]
pub struct Pager {
    container: Container,
    query: Query,
    scope: Scope,
    options: QueryOptions,
    state: State,
    /// Of the pages that come one by one; each part of a merged query has its own.
    progress: Progress,
}

#[derive(Debug)]
enum State {
    New,
    /// The service runs the query as it is, on one partition.
    Direct {
        from: Option<Direct>,
        region: Option<Arc<str>>,
    },
    Merged(Box<Pipeline>),
    Done,
}

impl Pager {
    pub(crate) fn new(container: Container, query: Query, scope: Scope, options: QueryOptions) -> Self {
        Self { container, query, scope, options, state: State::New, progress: Progress::default() }
    }

    /// The next page; `None` after the last. A page may be empty and still have a successor: one call looks no longer for
    /// rows than an operation may take, unless the rows are groups, which are complete only at the end.
    ///
    /// # Errors
    /// As any operation, and when the server's pages lead nowhere: the same continuation twice, or a hundred thousand
    /// pages without a row in a row. The pager can be asked again after an error; it has not moved.
    pub async fn next(&mut self) -> Result<Option<Page>, Error> {
        if matches!(self.state, State::New) {
            self.state = self.begin().await?;
        }
        let page = match &mut self.state {
            State::New | State::Done => None,
            State::Direct { .. } => Some(self.direct().await?),
            State::Merged(pipeline) => pipeline.next().await?,
        };
        if page.is_none() {
            self.state = State::Done;
        }
        Ok(page)
    }

    /// Decides how the query is run: as it is where one partition holds everything, else by plan.
    async fn begin(&self) -> Result<State, Error> {
        limits::query(self.query.text())?;
        let core = &self.container.driver().core;
        let call = Call::start(core, &self.options.call);
        let info = self.container.cell().info(core, &call).await?;
        let continuation = self.options.continuation.clone();
        let bounds = match &self.scope {
            Scope::Container => EpkRange::full(),
            Scope::Range(range) => range.bounds()?,
            Scope::PartitionKey(key) => match KeyScope::of(key, &info.definition) {
                Ok(KeyScope::Point(_)) => {
                    let from = continuation.map(|token| Direct { token, rows: None });
                    return Ok(State::Direct { from, region: None });
                }
                Ok(KeyScope::Range(bounds)) => bounds,
                Err(_) => {
                    return Err(Error::limit(format!("partition key {key} does not fit the container's")));
                }
            },
        };
        let is_range = matches!(self.scope, Scope::Range(_));
        let body = json(&self.query)?;
        let start = match continuation {
            // Earlier versions gave the service's own tokens for ranges.
            Some(token) if is_range && !Continuation::is_ours(&token) => {
                Some(Continuation::of_direct(&body, Direct { token, rows: None }))
            }
            Some(text) => Some(Continuation::read(&text, &body)?),
            None => None,
        };
        let is_one_range = info.ranges.load().holding(&bounds.min).bounds.contains_range(&bounds);
        let is_direct = start.as_ref().is_none_or(|start| start.direct.is_some());
        if is_one_range && is_direct && is_range {
            return Ok(State::Direct { from: start.and_then(|start| start.direct), region: None });
        }
        self.merged(&info, bounds, start, &call).await
    }

    async fn merged(
        &self,
        info: &Arc<ContainerInfo>,
        bounds: EpkRange,
        start: Option<Continuation>,
        call: &Call<'_>,
    ) -> Result<State, Error> {
        let source = Source {
            container: self.container.clone(),
            info: info.clone(),
            query: self.query.clone(),
            options: self.options.clone(),
            plan: self.plan(info, call).await?,
            bounds,
        };
        Ok(State::Merged(Box::new(Pipeline::new(source, start)?)))
    }

    /// The gateway's plan; the same query is not planned twice.
    async fn plan(&self, info: &Arc<ContainerInfo>, call: &Call<'_>) -> Result<Arc<Plan>, Error> {
        let plans = &self.container.driver().core.plans;
        let body = json(&self.query)?;
        if let Some(plan) = plans.find(&info.rid, &body) {
            return Ok(plan);
        }
        let cell = self.container.cell();
        let mut operation = Operation::new(
            Kind::QueryPlan,
            ResourceKind::Document,
            cell.link.clone(),
            cell.docs_path.clone(),
        );
        operation.container = Some(info.clone());
        operation.body = body.clone();
        let document: PlanDocument = self.container.run(operation, call).await?.json()?;
        let plan = Arc::new(Plan::read(document)?);
        plans.keep(&info.rid, &body, &plan);
        Ok(plan)
    }

    async fn direct(&mut self) -> Result<Page, Error> {
        let State::Direct { from, region } = &self.state else {
            return Err(Error::protocol("a direct page of a merged query"));
        };
        let (from, region) = (from.clone(), region.clone());
        let options = self.options.call.clone();
        let core = self.container.driver().core.clone();
        let call = Call::start(&core, &options);
        let mut operation = self.operation(&self.query)?;
        operation.pinned = region;
        match &self.scope {
            Scope::PartitionKey(key) => self.container.aim(&mut operation, key, &call).await?,
            Scope::Range(range) => {
                operation.container = Some(self.container.cell().info(&core, &call).await?);
                operation.target = range_target(range.bounds()?)?;
            }
            Scope::Container => return Err(Error::protocol("a direct page of the whole container")),
        }
        operation.resume(from.as_ref().map(|from| &*from.token))?;
        let body = operation.body.clone();
        let response = match self.container.run(operation, &call).await {
            Ok(response) => response,
            Err(error) => return self.rescue(error, from, &call).await,
        };
        let asked_with = from.as_ref().map(|from| &*from.token);
        self.progress.note(asked_with, response.continuation(), progress::is_empty(response.body()))?;
        let Some(token) = response.continuation().map(str::to_owned) else {
            self.state = State::Done;
            return Ok(Page::direct(response, None));
        };
        let region = response.diagnostics().winner().map(|attempt| attempt.region.clone());
        let (next, continuation) = match &self.scope {
            // What it gives for one key, the service takes back whatever becomes of the ranges.
            Scope::PartitionKey(_) => (Direct { token: token.clone(), rows: None }, token),
            Scope::Range(_) | Scope::Container => {
                let given = from.map_or(Some(0), |from| from.rows);
                let feed: Feed<IgnoredAny> = serde_json::from_slice(response.body())
                    .map_err(|e| Error::serialization("a page of a query", e))?;
                let rows = given.map(|given| given + feed.documents.len() as u64);
                let next = Direct { token, rows };
                let text = Continuation::of_direct(&body, next.clone()).write()?;
                (next, text)
            }
        };
        self.state = State::Direct { from: Some(next), region };
        Ok(Page::direct(response, Some(continuation)))
    }

    /// A range that has split is read on by plan.
    async fn rescue(&mut self, error: Error, from: Option<Direct>, call: &Call<'_>) -> Result<Page, Error> {
        let Scope::Range(range) = &self.scope else { return Err(error) };
        let bounds = range.bounds()?;
        let info = self.container.cell().info(&self.container.driver().core, call).await?;
        let has_split = !info.ranges.load().holding(&bounds.min).bounds.contains_range(&bounds);
        if error.status() != Some(410) || !has_split {
            return Err(error);
        }
        let body = json(&self.query)?;
        let start = from.map(|from| Continuation::of_direct(&body, from));
        self.state = self.merged(&info, bounds, start, call).await?;
        match &mut self.state {
            State::Merged(pipeline) => match pipeline.next().await? {
                Some(page) => Ok(page),
                None => Ok(Page::merged(Vec::new(), None, 0.0, Diagnostics::default(), None)),
            },
            State::New | State::Direct { .. } | State::Done => Err(error),
        }
    }

    /// All remaining rows.
    ///
    /// # Errors
    /// As any operation, or when a row does not fit the type.
    pub async fn collect<T: DeserializeOwned>(mut self) -> Result<Vec<T>, Error> {
        let mut rows = Vec::new();
        while let Some(page) = self.next().await? {
            rows.append(&mut page.items()?);
        }
        Ok(rows)
    }

    fn operation(&self, query: &Query) -> Result<Operation, Error> {
        let cell = self.container.cell();
        let mut operation =
            Operation::new(Kind::Query, ResourceKind::Document, cell.link.clone(), cell.docs_path.clone());
        operation.body = json(query)?;
        operation.consistency = self.options.call.consistency;
        if let Some(size) = self.options.page_size {
            operation
                .headers
                .push((HeaderName::from_static(header::MAX_ITEM_COUNT), HeaderValue::from(size)));
        }
        Ok(operation)
    }
}

/// Plans of recent queries, by container and exact body.
#[derive(Debug, Default)]
pub(crate) struct Plans(ArcSwap<Vec<KnownPlan>>);

/// A container's rid, a query's body, and its plan.
type KnownPlan = (Arc<str>, Bytes, Arc<Plan>);

impl Plans {
    fn find(&self, rid: &Arc<str>, body: &Bytes) -> Option<Arc<Plan>> {
        let plans = self.0.load();
        plans.iter().find(|(known, text, _)| known == rid && text == body).map(|(_, _, plan)| plan.clone())
    }

    /// Keeps the newest; the oldest makes room.
    fn keep(&self, rid: &Arc<str>, body: &Bytes, plan: &Arc<Plan>) {
        self.0.rcu(|plans| {
            let first = plans.len().saturating_sub(PLANS_MAX - 1);
            let mut next = plans[first..].to_vec();
            next.push((rid.clone(), body.clone(), plan.clone()));
            next
        });
    }
}

const PLANS_MAX: usize = 64;

/// Points an operation at part of the key space.
pub(crate) fn range_target(want: EpkRange) -> Result<Target, Error> {
    let header = |epk: &Epk| {
        HeaderValue::try_from(epk.to_hex())
            .map_err(|_| Error::bad_request("a range bound cannot be sent in a header"))
    };
    let bounds = (header(&want.min)?, header(&want.max)?);
    Ok(Target::Range { want, bounds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pagers_can_be_held_across_threads() {
        fn holds<T: Send + Sync>() {}
        holds::<Pager>();
        holds::<Page>();
    }
}
