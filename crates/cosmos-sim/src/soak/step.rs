//! The steps of a world: work, and what disturbs it.

use std::time::Duration;

use serde_json::{Value, json};

use super::http::Request;
use super::model::{Change, Session};
use super::plan::{Home, Promise, Step, Writes};
use super::server::region_name;
use super::world::{DOCS, World};

/// Most ranges of the container.
const RANGES_MAX: usize = 8;
/// Most regions of the account.
const REGIONS_MAX: usize = 4;

impl World {
    /// Does a step, if it is possible now.
    pub(super) fn take(&mut self, step: Step) -> anyhow::Result<()> {
        match step {
            Step::Write => self.write_one(),
            Step::Batch => self.write_batch(),
            Step::WrongBatch => self.write_wrong_batch(),
            Step::WrongWrite => self.write_wrong(),
            Step::Contend => self.contend(),
            Step::LoseAnswer => self.lose_answer(),
            Step::Read => {
                let (session, region) = (self.any_session(), self.any_region());
                let (key, id) = (self.any_key(), self.any_id());
                self.read(session, &region, &key, &id)
            }
            Step::Query => {
                let (session, region, key) = (self.any_session(), self.any_region(), self.any_key());
                self.query(session, &region, &key)
            }
            Step::Feed => self.poll().map(drop),
            Step::Tick => {
                let time = Duration::from_millis(self.random.u64(1..=300));
                self.note(|| format!("tick {time:?}"));
                self.server.advance(time)
            }
            Step::Split => self.split(),
            Step::Merge => self.merge(),
            Step::Advance => self.advance_operation(),
            Step::Pause => self.disturb(|region| region.is_online && !region.is_paused, "replication/pause"),
            Step::Resume => self.disturb(|region| region.is_paused, "replication/resume"),
            Step::Offline => self.disturb(|region| region.is_online, "offline"),
            Step::Online => self.disturb(|region| !region.is_online, "online"),
            Step::PlannedFailover => self.plan_failover(),
            Step::ForcedFailover => self.force_failover(),
            Step::AddRegion => self.add_region(),
            Step::RemoveRegion => self.remove_region(),
            Step::Restart => self.restart(),
            Step::Burst => self.burst(),
        }
    }

    pub(super) fn any_session(&mut self) -> usize {
        self.random.usize(..self.sessions.len())
    }

    /// A write of one item that must succeed where its region serves.
    pub(super) fn any_write(&mut self, key: &str) -> (Request, Change) {
        let (id, version) = (self.any_id(), self.next_version());
        let item = json!({"id": id, "pk": key, "v": version});
        let path = format!("{DOCS}/{id}");
        let set = |version| vec![(id.clone(), Some(version))];
        let is_there = self.log(key).last().contains_key(&id);
        match (is_there, self.random.u32(..4)) {
            (true, 0) => (Request::new("PUT", path).key(key).json(item), set(version)),
            (true, 1) => {
                let patch = json!({"operations": [{"op": "set", "path": "/v", "value": version}]});
                (Request::new("PATCH", path).key(key).json(patch), set(version))
            }
            (true, 2) => (Request::new("DELETE", path).key(key), vec![(id.clone(), None)]),
            (false, 0 | 1) => (Request::new("POST", DOCS).key(key).json(item), set(version)),
            (true | false, _) => (upsert(key, item), set(version)),
        }
    }

    fn write_one(&mut self) -> anyhow::Result<()> {
        let (session, key) = (self.any_session(), self.any_key());
        let (request, change) = self.any_write(&key);
        self.write(session, &key, &request, change).map(drop)
    }

    /// A batch that must succeed: ids are different, so that its order does not matter.
    pub(super) fn any_batch(&mut self, key: &str) -> (Vec<Value>, Change) {
        let (mut steps, mut change) = (Vec::new(), Change::new());
        let state = self.log(key).last();
        for number in 0..4 {
            if self.random.u32(..3) == 0 {
                continue;
            }
            let (id, version) = (format!("i{number}"), self.next_version());
            let item = json!({"id": id, "pk": key, "v": version});
            if state.contains_key(&id) && self.random.bool() {
                steps.push(json!({"operationType": "Delete", "id": id}));
                change.push((id, None));
            } else {
                steps.push(json!({"operationType": "Upsert", "resourceBody": item}));
                change.push((id, Some(version)));
            }
        }
        if steps.is_empty() {
            let version = self.next_version();
            steps.push(
                json!({"operationType": "Upsert", "resourceBody": {"id": "i0", "pk": key, "v": version}}),
            );
            change.push(("i0".to_owned(), Some(version)));
        }
        (steps, change)
    }

    fn write_batch(&mut self) -> anyhow::Result<()> {
        let (session, key) = (self.any_session(), self.any_key());
        let (steps, change) = self.any_batch(&key);
        self.write(session, &key, &batch(&key, steps), change).map(drop)
    }

    /// A batch whose last step fails: nothing of it may be seen.
    fn write_wrong_batch(&mut self) -> anyhow::Result<()> {
        let key = self.any_key();
        let (mut steps, _) = self.any_batch(&key);
        steps.push(
            json!({"operationType": "Replace", "id": "absent", "resourceBody": {"id": "absent", "pk": key}}),
        );
        let authority = self.authority(&key);
        let answer = self.ask(&authority, &batch(&key, steps));
        self.note(|| format!("wrong batch {key} at {authority}"));
        if self.is_excused(&authority, &key, &answer)? {
            return Ok(());
        }
        let Ok(answer) = answer else { return Ok(()) };
        anyhow::ensure!(answer.status == 207, "a batch with a wrong step answers {}", answer.brief());
        let session = self.any_session();
        self.query(session, &authority, &key)
    }

    /// A write that must be refused.
    fn write_wrong(&mut self) -> anyhow::Result<()> {
        let key = self.any_key();
        let authority = self.authority(&key);
        let present = self.log(&key).last().keys().next().cloned();
        let item = |id: &str| json!({"id": id, "pk": key, "v": 0});
        let (request, expected) = match present {
            Some(id) if self.random.bool() => (Request::new("POST", DOCS).key(&key).json(item(&id)), 409),
            Some(id) => {
                let request = Request::new("PUT", format!("{DOCS}/{id}")).key(&key).json(item(&id));
                (request.header("if-match", "\"00000000-0000-0000-0000-000000000000\""), 412)
            }
            None => (Request::new("PUT", format!("{DOCS}/i0")).key(&key).json(item("i0")), 404),
        };
        let answer = self.ask(&authority, &request);
        if self.is_excused(&authority, &key, &answer)? {
            return Ok(());
        }
        let Ok(answer) = answer else { return Ok(()) };
        anyhow::ensure!(answer.status == expected, "expected {expected} of {key}, got {}", answer.brief());
        Ok(())
    }

    /// Where all regions write, they may write the same item.
    fn contend(&mut self) -> anyhow::Result<()> {
        if self.plan.writes == Writes::One {
            return Ok(());
        }
        let (region, id, version) = (self.any_region(), self.any_id(), self.next_version());
        let request = upsert("x", json!({"id": id, "pk": "x", "v": version}));
        if self.ask(&region, &request).is_ok_and(|answer| answer.status < 300) {
            self.contended.entry(id.clone()).or_default().insert(version);
            self.note(|| format!("contend x/{id} = {version} at {region}"));
        }
        Ok(())
    }

    /// A write whose answer is lost, before or after it happens.
    fn lose_answer(&mut self) -> anyhow::Result<()> {
        let (session, key) = (self.any_session(), self.any_key());
        let kind = if self.random.bool() { "resetBefore" } else { "resetAfterCommit" };
        let verdict = json!({"count": 1, "verdict": {"kind": kind}});
        if !self.is_online(&self.authority(&key)) || self.operation.is_some() {
            return Ok(());
        }
        self.server.post("/faults", verdict)?;
        let (steps, change) = self.any_batch(&key);
        self.note(|| format!("next answer is lost ({kind})"));
        let ended = self.write(session, &key, &batch(&key, steps), change);
        self.server.delete("/faults")?;
        ended.map(drop)
    }

    fn split(&mut self) -> anyhow::Result<()> {
        if self.operation.is_some() || !self.is_reachable() || self.routing.ranges.len() >= RANGES_MAX {
            return Ok(());
        }
        let index = self.random.usize(..self.routing.ranges.len());
        let id = self.routing.ranges[index].id.clone();
        self.reshape(&format!("{id}/split"), json!({"mode": "midpoint"}))
    }

    /// Whether a client could ask which ranges there are.
    fn is_reachable(&self) -> bool {
        self.regions.iter().any(|region| region.is_online)
    }

    fn merge(&mut self) -> anyhow::Result<()> {
        if self.operation.is_some() || !self.is_reachable() || self.routing.ranges.len() < 2 {
            return Ok(());
        }
        let index = self.random.usize(..self.routing.ranges.len() - 1);
        let ids = [&self.routing.ranges[index].id, &self.routing.ranges[index + 1].id];
        let body = json!({"partitionIds": ids});
        self.reshape("merge", body)
    }

    fn reshape(&mut self, what: &str, mut body: Value) -> anyhow::Result<()> {
        let is_manual = self.random.bool();
        body["progressionMode"] = if is_manual { "manual" } else { "automatic" }.into();
        self.note(|| format!("{what} {body}"));
        let begun = self.server.post(&format!("/databases/d/containers/c/partitions/{what}"), body)?;
        self.counts.reshapings += 1;
        self.operation = if begun["status"] == "Succeeded" { None } else { begun["id"].as_u64() };
        self.look_at_ranges()
    }

    fn advance_operation(&mut self) -> anyhow::Result<()> {
        let Some(operation) = self.operation else { return Ok(()) };
        let state = self.server.post(&format!("/operations/{operation}/advance"), Value::Null)?;
        self.note(|| format!("advance to {}", state["status"]));
        if state["status"] == "Succeeded" {
            self.operation = None;
            self.look_at_ranges()?;
        }
        Ok(())
    }

    /// Does something to a region that is as described.
    fn disturb(
        &mut self,
        is_meant: impl Fn(&super::world::Region) -> bool,
        what: &str,
    ) -> anyhow::Result<()> {
        if self.regions.len() < 2 || (what == "replication/pause" && self.plan.consistency == Promise::Strong)
        {
            return Ok(());
        }
        let meant: Vec<String> =
            self.regions.iter().filter(|region| is_meant(region)).map(|region| region.name.clone()).collect();
        if meant.is_empty() {
            return Ok(());
        }
        let region = meant[self.random.usize(..meant.len())].clone();
        let body = match what {
            "offline" if self.random.bool() => json!({"manner": "unavailable"}),
            _ => json!({}),
        };
        self.note(|| format!("{region} {what} {body}"));
        self.server.post(&format!("/regions/{region}/{what}"), body)?;
        if matches!(what, "offline" | "replication/pause") {
            self.counts.outages += 1;
        }
        self.look_at_regions()?;
        self.look_at_ranges()
    }

    /// Regions that could become the write region.
    fn successors(&self) -> Vec<String> {
        let is_meant = |region: &&super::world::Region| {
            region.is_online && region.name != self.hub && self.operation.is_none()
        };
        self.regions.iter().filter(is_meant).map(|region| region.name.clone()).collect()
    }

    fn plan_failover(&mut self) -> anyhow::Result<()> {
        let is_ready =
            |name: &str| self.region(name).is_some_and(|region| region.is_online && !region.is_paused);
        let ready: Vec<String> = self.successors().into_iter().filter(|name| is_ready(name)).collect();
        if ready.is_empty() || !is_ready(&self.hub) {
            return Ok(());
        }
        let to = ready[self.random.usize(..ready.len())].clone();
        self.note(|| format!("planned failover to {to}"));
        self.server.post("/failover", json!({"writeRegion": to, "kind": "planned"}))?;
        self.counts.failovers += 1;
        self.look_at_regions()?;
        anyhow::ensure!(self.hub == to, "{} is the write region after a failover to {to}", self.hub);
        match self.plan.writes {
            Writes::One => self.count_losses(&to, false),
            Writes::All => {
                self.begin_sessions();
                Ok(())
            }
        }
    }

    fn force_failover(&mut self) -> anyhow::Result<()> {
        let ready = self.successors();
        if ready.is_empty() {
            return Ok(());
        }
        let to = ready[self.random.usize(..ready.len())].clone();
        self.look_at_regions()?;
        let lag = self.region(&to).map_or(0, |region| region.lag_commits);
        self.note(|| format!("forced failover to {to}, {lag} commits behind"));
        self.server.post("/failover", json!({"writeRegion": to, "kind": "forced"}))?;
        self.counts.failovers += 1;
        self.look_at_regions()?;
        anyhow::ensure!(self.hub == to, "{} is the write region after a failover to {to}", self.hub);
        match self.plan.writes {
            Writes::One => self.count_losses(&to, lag > 0),
            Writes::All => {
                self.begin_sessions();
                Ok(())
            }
        }
    }

    /// Where all regions write, a session does not outlive a change of the regions: of two tokens the newer one's first
    /// number stands, by the rule of the SDKs, though the region that gave it may be behind.
    fn begin_sessions(&mut self) {
        for session in &mut self.sessions {
            *session = Session::default();
        }
    }

    fn add_region(&mut self) -> anyhow::Result<()> {
        if self.regions.len() >= REGIONS_MAX || self.operation.is_some() {
            return Ok(());
        }
        if !self.regions.iter().all(|region| region.is_online) {
            return Ok(());
        }
        let name = region_name(self.regions_made);
        self.regions_made += 1;
        self.note(|| format!("add {name}"));
        self.server.put(&format!("/regions/{name}"), json!({}))?;
        if self.plan.writes == Writes::All {
            self.begin_sessions();
        }
        self.look_at_regions()
    }

    fn remove_region(&mut self) -> anyhow::Result<()> {
        let ready: Vec<String> = self.successors();
        if self.plan.writes == Writes::All || ready.is_empty() {
            return Ok(());
        }
        let name = ready[self.random.usize(..ready.len())].clone();
        self.note(|| format!("remove {name}"));
        let endpoint = self.region(&name).map(|region| region.endpoint.clone()).unwrap_or_default();
        self.server.delete(&format!("/regions/{name}"))?;
        self.look_at_regions()?;
        let gone = super::http::Connection::new(&endpoint).send(&Request::new("GET", "/dbs"));
        let gone = gone.map(|answer| (answer.status, answer.sub_status()));
        anyhow::ensure!(gone == Ok((403, 1008)), "a region that left answers {gone:?}");
        Ok(())
    }

    /// Ends the server without a word and starts it again.
    fn restart(&mut self) -> anyhow::Result<()> {
        if self.plan.home == Home::Memory {
            return Ok(());
        }
        self.note(|| "restart".to_owned());
        self.counts.restarts += 1;
        self.server.kill()?;
        self.server.revive(&self.plan)?;
        self.look_at_regions()?;
        self.look_at_ranges()
    }
}

pub(super) fn upsert(key: &str, item: Value) -> Request {
    Request::new("POST", DOCS).key(key).header("x-ms-documentdb-is-upsert", "True").json(item)
}

pub(super) fn batch(key: &str, steps: Vec<Value>) -> Request {
    Request::new("POST", DOCS)
        .key(key)
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "True")
        .json(Value::Array(steps))
}
