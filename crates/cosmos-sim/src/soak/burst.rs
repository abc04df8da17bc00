//! Several clients write at once while something happens to the server. Each has keys of its own, so the order of the
//! commits of a key is known, whatever the interleaving.

use std::thread;

use serde_json::json;

use super::http::{Connection, Request, Silence};
use super::model::Change;
use super::plan::Home;
use super::step::batch;
use super::world::{KEYS, Outcome, World};

const CLIENTS: usize = 3;
/// Commits that each client tries.
const COMMITS: usize = 8;

/// What a client did to one key.
#[derive(Debug)]
struct Attempt {
    key: String,
    change: Change,
    outcome: Outcome,
}

impl World {
    /// Lets clients write while the server is disturbed, and takes up what they did.
    pub(super) fn burst(&mut self) -> anyhow::Result<()> {
        if !self.regions.iter().all(|region| region.is_online) || self.operation.is_some() {
            return Ok(());
        }
        let plans: Vec<Vec<(String, String, Request, Change)>> =
            (0..CLIENTS).map(|client| self.work_of(client)).collect();
        let disturbance = self.random.u32(..3);
        self.note(|| format!("burst with disturbance {disturbance}"));
        let attempts: anyhow::Result<Vec<Attempt>> = thread::scope(|scope| {
            let clients: Vec<_> = plans.into_iter().map(|plan| scope.spawn(move || work(plan))).collect();
            let disturbed = match (disturbance, self.plan.home) {
                (0, Home::Folder | Home::Process) => self.kill_in_burst(),
                (0 | 1, _) => self.split_in_burst(),
                (_, _) => Ok(()),
            };
            let attempts = clients.into_iter().flat_map(|client| client.join().unwrap_or_default()).collect();
            disturbed.map(|()| attempts)
        });
        let attempts = attempts?;
        if disturbance == 0 && self.plan.home != Home::Memory {
            self.server.revive(&self.plan)?;
        }
        self.look_at_regions()?;
        self.look_at_ranges()?;
        attempts.into_iter().try_for_each(|attempt| self.take_up(attempt))
    }

    fn work_of(&mut self, client: usize) -> Vec<(String, String, Request, Change)> {
        let mut work = Vec::new();
        for _ in 0..COMMITS {
            let key = format!("k{}", client + CLIENTS * self.random.usize(..KEYS / CLIENTS));
            let versions = [self.next_version(), self.next_version()];
            let step = |(id, version): (&str, u64)| json!({"operationType": "Upsert", "resourceBody": {"id": id, "pk": key, "v": version}});
            let pairs = [("i0", versions[0]), ("i1", versions[1])];
            let change = pairs.iter().map(|(id, version)| ((*id).to_owned(), Some(*version))).collect();
            let authority = self.authority(&key);
            let endpoint = self.region(&authority).map(|region| region.endpoint.clone()).unwrap_or_default();
            let request = batch(&key, pairs.into_iter().map(step).collect());
            work.push((endpoint, key, request, change));
        }
        work
    }

    fn kill_in_burst(&mut self) -> anyhow::Result<()> {
        self.counts.restarts += 1;
        // Long enough for some of the work, short enough to hit the middle of it.
        thread::sleep(std::time::Duration::from_micros(self.random.u64(..20_000)));
        self.server.kill()
    }

    fn split_in_burst(&mut self) -> anyhow::Result<()> {
        if self.routing.ranges.len() >= 8 {
            return Ok(());
        }
        let index = self.random.usize(..self.routing.ranges.len());
        let path = format!("/databases/d/containers/c/partitions/{}/split", self.routing.ranges[index].id);
        self.counts.reshapings += 1;
        self.server.post(&path, json!({})).map(drop)
    }

    fn take_up(&mut self, attempt: Attempt) -> anyhow::Result<()> {
        let Attempt { key, change, outcome } = attempt;
        self.note(|| format!("  burst {key} {change:?}: {outcome:?}"));
        match outcome {
            Outcome::Applied => {
                self.acknowledge(&key, change);
                Ok(())
            }
            Outcome::NotApplied => Ok(()),
            Outcome::Unknown => self.resolve(&key, change),
        }
    }
}

/// Does a client's work. After a request without an answer it leaves that key alone.
fn work(plan: Vec<(String, String, Request, Change)>) -> Vec<Attempt> {
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut connections: Vec<(String, Connection)> = Vec::new();
    for (endpoint, key, request, change) in plan {
        if attempts.iter().any(|attempt| attempt.key == key && attempt.outcome == Outcome::Unknown) {
            continue;
        }
        if !connections.iter().any(|(known, _)| *known == endpoint) {
            connections.push((endpoint.clone(), Connection::new(&endpoint)));
        }
        let Some((_, connection)) = connections.iter_mut().find(|(known, _)| *known == endpoint) else {
            continue;
        };
        let outcome = match connection.send(&request) {
            Ok(answer) if answer.status < 300 => Outcome::Applied,
            Ok(_) | Err(Silence::Refused) => Outcome::NotApplied,
            Err(Silence::Broken) => Outcome::Unknown,
        };
        attempts.push(Attempt { key, change, outcome });
    }
    attempts
}
