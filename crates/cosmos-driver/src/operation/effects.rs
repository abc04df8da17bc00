//! What the world learns from an attempt: the only place where an operation changes anything but itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::decide::Effects;
use super::{Iteration, Run};
use crate::attempt::outcome::Outcome;
use crate::metadata::account::refresh_on_demand;
use crate::metadata::container::ContainerInfo;
use crate::routing::partition::{Cell, Failure};
use crate::routing::resolve::Route;
use crate::transport::Address;

impl Run<'_> {
    /// Applies what an attempt taught.
    pub(super) async fn apply(
        &mut self,
        iteration: &Iteration,
        route: &Route,
        region: &Arc<str>,
        effects: Effects,
        outcome: &Outcome,
    ) {
        let core = self.core;
        let kind = self.operation.kind;
        if effects.set_clock
            && let Outcome::Answered(answer) = outcome
            && let Some(theirs) = self.clock_error(answer)
        {
            tracing::warn!(theirs, "the local clock is off; using the service's");
            core.clock.set_unix_secs(theirs);
        }
        if effects.endpoint_unavailable
            && iteration.account.candidates(self.traffic()).len() + iteration.account.reads.len() > 2
        {
            if kind.is_read() || iteration.account.is_multi_write {
                self.avoid(&route.endpoint.address);
            } else {
                self.suspects.push(route.endpoint.address.clone());
            }
        }
        if (effects.partition_failed || effects.partition_succeeded) && kind.is_data() {
            let kind = if kind.is_read() { Failure::Read } else { Failure::Write };
            self.report(iteration, region, effects.partition_failed.then_some(kind));
        }
        if effects.partition_succeeded {
            for suspect in std::mem::take(&mut self.suspects) {
                if suspect != route.endpoint.address {
                    self.avoid(&suspect);
                }
            }
        }
        if effects.refresh_account {
            match outcome {
                // The service itself said that the account changed: the retry needs the new routes.
                Outcome::Answered(_) => {
                    let _late = timeout_at(self.call.deadline, refresh_on_demand(core)).await;
                }
                // A dead endpoint must not hold up the failover: the endpoint that is asked for the account may be as dead.
                Outcome::Broken(_) => {
                    let core = core.clone();
                    tokio::spawn(async move { refresh_on_demand(&core).await });
                }
            }
        }
        if effects.refresh_container || effects.refresh_ranges {
            self.refresh(iteration, effects.refresh_container).await;
        }
    }

    fn avoid(&self, address: &Address) {
        let until =
            self.core.clock.now() + self.core.clock.jitter(self.core.config.timeouts.endpoint_unavailable);
        if self.core.router.mark_unavailable(address, until) {
            tracing::debug!(endpoint = %address, "endpoint avoided");
        }
    }

    /// Tells the breaker how a partition behaved in a region; no failure is a success.
    pub(super) fn report(&self, iteration: &Iteration, region: &Arc<str>, failure: Option<Failure>) {
        let Some((container, (range, _))) = self.operation.container.as_ref().zip(iteration.range.as_ref())
        else {
            return;
        };
        // With one region there is no other way to go: a breaker would only get in it.
        if iteration.account.candidates(self.traffic()).len() < 2 {
            return;
        }
        if failure.is_none() && self.core.router.health().is_empty() {
            return;
        }
        let cell = Cell { container: container.rid.clone(), range: range.clone(), region: region.clone() };
        if let Some(failure) = failure {
            let rules = &self.core.config.breaker;
            let open_for = self.core.clock.jitter(rules.probe_after);
            let now = self.core.clock.now();
            self.core.router.partition_failed(&cell, failure, now, open_for, rules);
        } else {
            self.core.router.partition_succeeded(&cell, self.began(region));
        }
    }

    /// When the latest attempt in a region was sent.
    fn began(&self, region: &Arc<str>) -> Instant {
        let attempt = self.log.attempts().iter().rev().find(|attempt| attempt.region == *region);
        self.call.begun + attempt.map_or(Duration::ZERO, |attempt| attempt.started)
    }

    /// Lists the ranges again, without holding up the answer that showed that they have changed.
    pub(super) fn list_ranges(&self, info: &Arc<ContainerInfo>) {
        let Some((database, id)) = info.name.split_once('/') else { return };
        let Ok(cell) = self.core.cell(database, id) else { return };
        let (core, info) = (self.core.clone(), info.clone());
        tokio::spawn(async move { cell.list_ranges(&core, &info).await });
    }

    /// A refresh that fails leaves the old knowledge in place; the retry finds out whether it still holds.
    async fn refresh(&mut self, iteration: &Iteration, is_container: bool) {
        let Some(info) = self.operation.container.clone() else { return };
        let Some((database, id)) = info.name.split_once('/') else { return };
        let Ok(cell) = self.core.cell(database, id) else { return };
        if is_container {
            if let Ok(fresh) = self.call.within(cell.refresh(self.core, self.call, &info)).await {
                self.operation.container = Some(fresh);
            }
        } else if let Some(seen) = &iteration.ranges {
            let refreshed = self.call.within(cell.refresh_ranges(self.core, self.call, &info, seen)).await;
            if let Err(error) = refreshed {
                tracing::debug!(%error, "range refresh failed");
            }
        }
    }
}
