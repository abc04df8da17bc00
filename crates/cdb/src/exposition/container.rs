//! What a container shows of its fleet, looked at seldom enough: two requests and one for each further physical partition,
//! not more often than asked for, and never at more units a second than were granted. Whoever asks in between gets the last
//! look.

use std::time::{Duration, Instant};

use cosmos_driver::Query;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::scale::{Demand, Rule, Scale, scale};
use super::text::{MetricType, Page};
use crate::documents::Documents;
use crate::fleet::{Fleet, State};
use crate::model::kind;

/// Looks at a container on behalf of all who ask.
#[derive(Debug)]
pub(crate) struct Watcher {
    documents: Documents,
    every: Duration,
    /// Request units a second.
    budget: f64,
    rule: Rule,
    last: Mutex<Option<Look>>,
}

/// What was seen, and what it cost.
#[derive(Debug, Clone)]
struct Look {
    at: Instant,
    took: Duration,
    request_units: f64,
    requests: u64,
    is_throttled: bool,
    seen: Result<Seen, String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    turns: Waiting,
    activities: Waiting,
    dead_letters: u64,
    undelivered: u64,
    alive: u64,
    silent: u64,
    running: u64,
    capacity: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Waiting {
    ready: u64,
    /// Due within a minute.
    soon: u64,
    oldest: Duration,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Counted {
    #[serde(rename = "type")]
    kind: String,
    number: u64,
    ready: u64,
    oldest: Option<u64>,
}

impl Watcher {
    pub(crate) fn new(documents: Documents, every: Duration, budget: f64, rule: Rule) -> Self {
        Self { documents, every, budget: budget.max(0.1), rule, last: Mutex::default() }
    }

    /// The last look, or a new one if it is time for one. Whoever comes while one is under way waits for it.
    async fn look(&self) -> Look {
        let mut last = self.last.lock().await;
        if let Some(look) = last.as_ref() {
            let paid = Duration::from_secs_f64((look.request_units / self.budget).min(PAUSE_SECONDS_MAX));
            if look.at.elapsed() < self.every.max(paid) {
                return look.clone();
            }
        }
        let documents = self.documents.metered();
        let begun = Instant::now();
        let seen = see(&documents).await.map_err(|error| format!("{error:#}"));
        let (requests, request_units) = documents.meter().read();
        let is_throttled = documents.meter().is_throttled();
        let look = Look { at: begun, took: begun.elapsed(), request_units, requests, is_throttled, seen };
        last.insert(look).clone()
    }

    /// The page for Prometheus.
    pub(crate) async fn page(&self) -> String {
        let look = self.look().await;
        let mut page = Page::default();
        page.gauge(
            "duroxide_cdb_up",
            "Whether the container could be looked at.",
            f64::from(look.seen.is_ok()),
        );
        page.gauge("duroxide_cdb_look_request_units", "What the last look cost.", look.request_units);
        page.gauge(
            "duroxide_cdb_look_requests",
            "How many requests the last look took.",
            number(look.requests),
        );
        page.gauge("duroxide_cdb_look_seconds", "How long the last look took.", look.took.as_secs_f64());
        page.gauge(
            "duroxide_cdb_look_age_seconds",
            "How old the last look is.",
            look.at.elapsed().as_secs_f64(),
        );
        let throttled = f64::from(look.is_throttled);
        page.gauge("duroxide_cdb_look_throttled", "Whether the account throttled the last look.", throttled);
        if let Ok(seen) = &look.seen {
            queues(&mut page, seen);
            fleet(&mut page, seen, scale(seen.demand(), self.rule));
        }
        page.finish()
    }

    /// The answer for a scaler.
    ///
    /// # Errors
    /// When the container could not be looked at.
    pub(crate) async fn scale(&self) -> Result<serde_json::Value, String> {
        let seen = self.look().await.seen?;
        Ok(serde_json::to_value(scale(seen.demand(), self.rule)).unwrap_or_default())
    }
}

fn queues(page: &mut Page, seen: &Seen) {
    let both = [("turns", seen.turns), ("activities", seen.activities)];
    page.metric(
        "duroxide_cdb_queue_ready",
        MetricType::Gauge,
        "What could begin now and has not, in the container.",
    );
    for (queue, waiting) in both {
        page.sample("duroxide_cdb_queue_ready", &[("queue", queue)], number(waiting.ready));
    }
    let help = "For how long the oldest of it has been free.";
    page.metric("duroxide_cdb_queue_oldest_seconds", MetricType::Gauge, help);
    for (queue, waiting) in both {
        page.sample("duroxide_cdb_queue_oldest_seconds", &[("queue", queue)], waiting.oldest.as_secs_f64());
    }
    page.metric(
        "duroxide_cdb_queue_soon",
        MetricType::Gauge,
        "What is due within a minute, timers included.",
    );
    for (queue, waiting) in both {
        page.sample("duroxide_cdb_queue_soon", &[("queue", queue)], number(waiting.soon));
    }
    let letters = number(seen.dead_letters);
    page.gauge("duroxide_cdb_dead_letters", "Messages that could never be delivered.", letters);
    let undelivered = number(seen.undelivered);
    page.gauge("duroxide_cdb_undelivered", "Messages on their way to other instances.", undelivered);
}

fn fleet(page: &mut Page, seen: &Seen, scale: Scale) {
    page.metric("duroxide_cdb_fleet_members", MetricType::Gauge, "Processes that run work.");
    for (state, count) in [("alive", seen.alive), ("silent", seen.silent)] {
        page.sample("duroxide_cdb_fleet_members", &[("state", state)], number(count));
    }
    page.gauge("duroxide_cdb_fleet_running", "Turns and activities that they hold.", number(seen.running));
    let capacity = number(seen.capacity);
    page.gauge(
        "duroxide_cdb_fleet_capacity",
        "How many they were seen to hold or wait for at once.",
        capacity,
    );
    page.gauge("duroxide_cdb_fleet_needed", "How many processes the work needs.", number(scale.needed));
}

impl Seen {
    fn demand(&self) -> Demand {
        Demand {
            ready: self.turns.ready.saturating_add(self.activities.ready),
            running: self.running,
            soon: self.turns.soon.saturating_add(self.activities.soon),
            // A silent one may only be slow, and what it holds is counted.
            members: self.alive.saturating_add(self.silent),
            capacity: self.capacity,
        }
    }

    fn of(rows: &[Counted], fleet: &Fleet, now_ms: u64) -> Self {
        // Each physical partition has counted its own.
        let of = |kind: &'static str| rows.iter().filter(move |row| row.kind == kind);
        let count = |kind| of(kind).map(|row| row.number).fold(0, u64::saturating_add);
        let waiting = |kind| {
            let ready = of(kind).map(|row| row.ready).fold(0, u64::saturating_add);
            let oldest = of(kind).filter(|row| row.ready > 0).filter_map(|row| row.oldest).min();
            Waiting {
                ready,
                soon: count(kind).saturating_sub(ready),
                oldest: Duration::from_millis(oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest))),
            }
        };
        let in_state =
            |state: State| fleet.members.iter().filter(move |member| member.state(now_ms) == state);
        let there = || in_state(State::Alive).chain(in_state(State::Silent));
        Self {
            turns: waiting(kind::MESSAGE),
            activities: waiting(kind::WORK),
            dead_letters: count(kind::DEAD_LETTER),
            undelivered: count(kind::INTENT),
            alive: in_state(State::Alive).count() as u64,
            silent: in_state(State::Silent).count() as u64,
            running: there().map(|member| member.running()).fold(0, u64::saturating_add),
            capacity: there().map(|member| member.capacity()).fold(0, u64::saturating_add),
        }
    }
}

async fn see(documents: &Documents) -> anyhow::Result<Seen> {
    // First: its answer tells the service's time.
    let fleet = Fleet::read(documents).await?;
    let now = documents.now_ms();
    let query = Query::new(WAITING).with("@now", now).with("@soon", now.saturating_add(SOON_MS));
    let rows: Vec<Counted> = documents.query_all(query).await?;
    Ok(Seen::of(&rows, &fleet, now))
}

fn number(count: u64) -> f64 {
    count as f64
}

/// What waits, counted where it is. What somebody holds is not free until the lock would end, so it is not ready.
const WAITING: &str = "SELECT c.type, COUNT(1) AS number, SUM(c.visibleAt <= @now ? 1 : 0) AS ready, \
    MIN(c.visibleAt) AS oldest FROM c \
    WHERE (c.type IN ('orch_queue', 'worker_queue') AND c.visibleAt <= @soon) \
    OR c.type IN ('dead_letter', 'outbox_intent') GROUP BY c.type";
const SOON_MS: u64 = 60_000;
/// However dear a look is, there is another one within an hour.
const PAUSE_SECONDS_MAX: f64 = 3600.0;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_become_figures() {
        let rows = [
            json!({"type": "orch_queue", "number": 3, "ready": 2, "oldest": 6_000}),
            json!({"type": "orch_queue", "number": 2, "ready": 1, "oldest": 4_000}),
            json!({"type": "worker_queue", "number": 2, "ready": 0, "oldest": 12_000}),
            json!({"type": "dead_letter", "number": 4, "ready": 0}),
        ];
        let rows: Vec<Counted> = rows.into_iter().map(|row| serde_json::from_value(row).unwrap()).collect();
        let members = [
            json!({"id": "member:a", "type": "member", "owner": "a", "beatAt": 9_000, "leaseUntil": 19_000,
                "running": 2, "capacity": 8}),
            json!({"id": "member:b", "type": "member", "owner": "b", "beatAt": 1_000, "leaseUntil": 2_000,
                "running": 7, "capacity": 8}),
        ];
        let seen = Seen::of(&rows, &Fleet::new(&members, 10_000), 10_000);
        assert_eq!(seen.turns, Waiting { ready: 3, soon: 2, oldest: Duration::from_secs(6) });
        assert_eq!(seen.activities, Waiting { ready: 0, soon: 2, oldest: Duration::ZERO });
        assert_eq!((seen.dead_letters, seen.undelivered), (4, 0));
        assert_eq!((seen.alive, seen.running, seen.capacity), (1, 2, 8), "a dead one runs nothing");
        assert_eq!(scale(seen.demand(), Rule { per_process: None }).needed, 1);
    }
}
