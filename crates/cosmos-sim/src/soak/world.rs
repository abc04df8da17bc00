//! One world: a server, clients, and what must be true of their dealings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use super::feed::{Feed, Polled, rows};
use super::http::{self, Answer, Connection, Request, Silence};
use super::model::{Change, Log, Session, State};
use super::plan::{Plan, Promise, Writes};
use super::routing::Routing;
use super::server::Server;

pub(super) const DOCS: &str = "/dbs/d/colls/c/docs";
/// Logical partitions with one writer each.
pub(super) const KEYS: usize = 6;
/// Ids in each of them.
const IDS: usize = 4;
const SESSIONS: usize = 3;
/// Lines of history that are shown.
const HISTORY_SHOWN: usize = 60;
/// Times that the clock is put forward to let replication finish.
const SETTLE_TIMES_MAX: u64 = 200;

/// A region as its clients know it.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) name: String,
    pub(super) endpoint: String,
    pub(super) connection: Connection,
    pub(super) is_online: bool,
    pub(super) is_paused: bool,
    pub(super) lag_commits: u64,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Applied,
    NotApplied,
    Unknown,
}

/// One world.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: fastrand::Rng,
    pub(super) server: Server,
    pub(super) regions: Vec<Region>,
    pub(super) hub: String,
    pub(super) routing: Routing,
    pub(super) logs: BTreeMap<String, Log>,
    pub(super) sessions: Vec<Session>,
    /// The cut of each key that each region has shown.
    shown: BTreeMap<(String, String), usize>,
    pub(super) feed: Feed,
    /// Versions written to items that every region may write.
    pub(super) contended: BTreeMap<String, BTreeSet<u64>>,
    pub(super) operation: Option<u64>,
    pub(super) regions_made: usize,
    versions: u64,
    history: Vec<String>,
    pub(super) counts: Counts,
}

/// What happened, so that nobody takes an idle world for a clean one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests to the account.
    pub requests: u64,
    /// Commits that were acknowledged, or found to have happened.
    pub commits: u64,
    /// Acknowledged commits that forced failovers lost, as they may.
    pub lost: u64,
    /// Splits and merges.
    pub reshapings: u64,
    /// Failovers.
    pub failovers: u64,
    /// Regions that went offline or were cut off.
    pub outages: u64,
    /// Restarts of the server.
    pub restarts: u64,
}

impl Counts {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            commits: self.commits + other.commits,
            lost: self.lost + other.lost,
            reshapings: self.reshapings + other.reshapings,
            failovers: self.failovers + other.failovers,
            outages: self.outages + other.outages,
            restarts: self.restarts + other.restarts,
        }
    }
}

impl World {
    pub(super) fn new(
        plan: Plan,
        random: fastrand::Rng,
        folder: &Path,
        program: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let server = Server::start(&plan, folder, program)?;
        let mut world = Self {
            regions_made: plan.regions,
            plan,
            random,
            server,
            regions: Vec::new(),
            hub: String::new(),
            routing: Routing::default(),
            logs: (0..KEYS).map(|number| (format!("k{number}"), Log::default())).collect(),
            sessions: (0..SESSIONS).map(|_| Session::default()).collect(),
            shown: BTreeMap::new(),
            feed: Feed::new(""),
            contended: BTreeMap::new(),
            operation: None,
            versions: 0,
            history: Vec::new(),
            counts: Counts::default(),
        };
        world.look_at_regions()?;
        world.feed = Feed::new(&world.regions[0].name);
        let hub = world.hub.clone();
        let database = Request::new("POST", "/dbs").json(json!({"id": "d"}));
        ensure!(world.ask(&hub, &database).is_ok_and(|answer| answer.status == 201), "no database");
        let key = json!({"paths": ["/pk"], "kind": "Hash", "version": 2});
        let container = Request::new("POST", "/dbs/d/colls").json(json!({"id": "c", "partitionKey": key}));
        ensure!(world.ask(&hub, &container).is_ok_and(|answer| answer.status == 201), "no container");
        world.look_at_ranges()?;
        Ok(world)
    }

    /// Notes a line of history.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        self.history.push(line());
    }

    /// The last lines of history.
    pub(super) fn recent(&self) -> &[String] {
        &self.history[self.history.len().saturating_sub(HISTORY_SHOWN)..]
    }

    /// Asks the management port which regions there are.
    pub(super) fn look_at_regions(&mut self) -> anyhow::Result<()> {
        let answer = self.server.get("/regions")?;
        self.hub = http::text(&answer["writeRegion"])?;
        let mut before = std::mem::take(&mut self.regions);
        for line in answer["regions"].as_array().into_iter().flatten() {
            let (name, endpoint) = (http::text(&line["name"])?, http::text(&line["endpoint"])?);
            // A connection outlives a look, so that those that are told to leave are met as clients meet them.
            let known = before.iter().position(|region| region.name == name && region.endpoint == endpoint);
            let is_online = line["offline"].is_null();
            let connection = match known {
                Some(place) if is_online && before[place].is_online => before.remove(place).connection,
                _ => Connection::new(&endpoint),
            };
            self.regions.push(Region {
                connection,
                is_online,
                is_paused: line["isReplicationPaused"] == true,
                lag_commits: line["replicationLag"]["commits"].as_u64().unwrap_or(0),
                name,
                endpoint,
            });
        }
        ensure!(!self.regions.is_empty(), "the account has no regions: {answer}");
        Ok(())
    }

    /// Asks a region that is online which ranges there are.
    pub(super) fn look_at_ranges(&mut self) -> anyhow::Result<()> {
        let Some(region) = self.regions.iter().find(|region| region.is_online) else { return Ok(()) };
        let name = region.name.clone();
        let answer = self.ask(&name, &Request::new("GET", "/dbs/d/colls/c/pkranges"));
        let answer = answer.map_err(|silence| anyhow::anyhow!("no ranges: {silence:?}"))?;
        ensure!(answer.status == 200, "no ranges: {}", answer.brief());
        self.routing = Routing::parse(&answer.json()).map_err(anyhow::Error::msg)?;
        Ok(())
    }

    /// Sends a request to a region.
    pub(super) fn ask(&mut self, region: &str, request: &Request) -> Result<Answer, Silence> {
        self.counts.requests += 1;
        match self.regions.iter_mut().find(|known| known.name == region) {
            Some(region) => region.connection.send(request),
            None => Err(Silence::Refused),
        }
    }

    pub(super) fn region(&self, name: &str) -> Option<&Region> {
        self.regions.iter().find(|region| region.name == name)
    }

    pub(super) fn is_online(&self, name: &str) -> bool {
        self.region(name).is_some_and(|region| region.is_online)
    }

    /// Where the writes of a key go.
    pub(super) fn authority(&self, key: &str) -> String {
        match self.plan.writes {
            Writes::One => self.hub.clone(),
            Writes::All => {
                let number: usize = key.trim_start_matches('k').parse().unwrap_or(0);
                super::server::region_name(number % self.plan.regions)
            }
        }
    }

    pub(super) fn any_key(&mut self) -> String {
        format!("k{}", self.random.usize(..KEYS))
    }

    pub(super) fn any_id(&mut self) -> String {
        format!("i{}", self.random.usize(..IDS))
    }

    pub(super) fn any_region(&mut self) -> String {
        let index = self.random.usize(..self.regions.len());
        self.regions[index].name.clone()
    }

    pub(super) fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Sends a write and judges how it ended. Only what the state of the world explains may fail.
    pub(super) fn write(
        &mut self,
        session: usize,
        key: &str,
        request: &Request,
        change: Change,
    ) -> anyhow::Result<Outcome> {
        let authority = self.authority(key);
        let answer = self.ask(&authority, request);
        let is_online = self.is_online(&authority);
        let outcome = match &answer {
            Ok(answer) if answer.status < 300 => Outcome::Applied,
            Ok(answer) if answer.status == 410 && self.operation.is_some() => Outcome::NotApplied,
            Ok(answer) if answer.status == 503 && !is_online => Outcome::NotApplied,
            Ok(answer) => bail!("{} of {key} at {authority} answers {}", request.method, answer.brief()),
            Err(Silence::Refused) if !is_online => Outcome::NotApplied,
            Err(Silence::Refused) => bail!("{authority} refuses connections though it is online"),
            Err(Silence::Broken) => Outcome::Unknown,
        };
        self.note(|| format!("s{session} {} {key} {change:?} at {authority}: {outcome:?}", request.method));
        match outcome {
            Outcome::Applied => {
                self.commit(key, change, &authority);
                let cut = self.log(key).len();
                if let Ok(answer) = &answer {
                    self.remember(session, key, cut, answer)?;
                }
            }
            Outcome::Unknown => self.resolve(key, change)?,
            Outcome::NotApplied => {}
        }
        Ok(outcome)
    }

    /// Notes a commit that happened.
    fn commit(&mut self, key: &str, change: Change, authority: &str) {
        self.counts.commits += 1;
        let log = self.logs.entry(key.to_owned()).or_default();
        log.push(change);
        let cut = log.len();
        self.shown.insert((authority.to_owned(), key.to_owned()), cut);
    }

    /// Notes a commit of a client that no session followed.
    pub(super) fn acknowledge(&mut self, key: &str, change: Change) {
        let authority = self.authority(key);
        self.commit(key, change, &authority);
    }

    /// Finds out whether a write without an answer happened. All of it did, or nothing.
    pub(super) fn resolve(&mut self, key: &str, change: Change) -> anyhow::Result<()> {
        let authority = self.authority(key);
        let seen = self.state_at(&authority, key, None)?.context("the write region answers")?;
        let before = self.log(key).last();
        let mut after = before.clone();
        super::model::apply(&mut after, &change);
        if seen == after {
            self.note(|| format!("  {key}: it happened"));
            self.commit(key, change, &authority);
        } else if seen == before {
            self.note(|| format!("  {key}: it did not happen"));
        } else {
            bail!(
                "{key} at {authority} is {seen:?}: neither {before:?} nor {after:?} (a write without an answer)"
            );
        }
        Ok(())
    }

    pub(super) fn log(&self, key: &str) -> &Log {
        &self.logs[key]
    }

    /// Notes what a session has seen.
    fn remember(&mut self, session: usize, key: &str, cut: usize, answer: &Answer) -> anyhow::Result<()> {
        let text = answer.header("x-ms-session-token");
        ensure!(!text.is_empty(), "an answer without a session token: {}", answer.brief());
        let token = text.parse().map_err(|_| anyhow::anyhow!("{text:?} is no session token"))?;
        self.sessions[session].token.merge(&token);
        self.sessions[session].raise(key, cut);
        Ok(())
    }

    /// Whether every region has every write. One that was away while there were some catches up when it comes back,
    /// unless the write region is away by then.
    fn is_strong(&self) -> bool {
        self.plan.consistency == Promise::Strong && self.is_online(&self.hub)
    }

    /// The least a region may show of a key.
    fn floor(&self, region: &str, key: &str, session: Option<usize>) -> usize {
        if region == self.authority(key) || self.is_strong() {
            return self.log(key).len();
        }
        let shown = self.shown.get(&(region.to_owned(), key.to_owned())).copied().unwrap_or(0);
        session.map_or(shown, |session| shown.max(self.sessions[session].floor(key)))
    }

    /// Whether an answer is explained by the state of the world rather than by data.
    pub(super) fn is_excused(
        &self,
        region: &str,
        key: &str,
        answer: &Result<Answer, Silence>,
    ) -> anyhow::Result<bool> {
        let is_online = self.is_online(region);
        match answer {
            Ok(answer) if answer.status == 410 && self.operation.is_some() => Ok(true),
            Ok(answer) if answer.status == 503 && !is_online => Ok(true),
            Ok(answer) if (answer.status, answer.sub_status()) == (404, 1002) => {
                // A token speaks of a whole range. Where all regions write, each may miss something of it.
                let is_behind = region != self.authority(key) || self.plan.writes == Writes::All;
                let may_lag = is_behind && !self.is_strong();
                ensure!(may_lag, "{region} answers 404/1002 for {key}, of which it has every write");
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(_) if !is_online => Ok(true),
            Err(silence) => bail!("{region} is online and silent: {silence:?}"),
        }
    }

    /// Reads one item in a session.
    pub(super) fn read(&mut self, session: usize, region: &str, key: &str, id: &str) -> anyhow::Result<()> {
        let mut request = Request::new("GET", format!("{DOCS}/{id}")).key(key);
        if let Some(token) = self.routing.token(key, &self.sessions[session].token) {
            request = request.header("x-ms-session-token", token);
        }
        let answer = self.ask(region, &request);
        if self.is_excused(region, key, &answer)? {
            self.note(|| format!("s{session} read {key}/{id} at {region}: not now"));
            return Ok(());
        }
        let Ok(answer) = answer else { return Ok(()) };
        let seen = match answer.status {
            200 => Some(answer.json()["v"].as_u64().context("an item without version")?),
            404 => None,
            _ => bail!("a read of {key}/{id} at {region} answers {}", answer.brief()),
        };
        let floor = self.floor(region, key, Some(session));
        self.note(|| format!("s{session} read {key}/{id} at {region}: {seen:?}"));
        let Some(cut) = self.log(key).cut_of_item(id, seen, floor) else {
            bail!(
                "{key}/{id} at {region} is {seen:?}, but session {session} must see commit {floor} of {}: {:?}",
                self.log(key).len(),
                self.log(key).state(floor).get(id)
            );
        };
        self.shown.insert((region.to_owned(), key.to_owned()), cut);
        self.remember(session, key, cut, &answer)
    }

    /// Reads a logical partition in a session: it must be as it was at one moment, not before what the session knows.
    pub(super) fn query(&mut self, session: usize, region: &str, key: &str) -> anyhow::Result<()> {
        let Some(seen) = self.state_at(region, key, Some(session))? else {
            self.note(|| format!("s{session} query {key} at {region}: not now"));
            return Ok(());
        };
        let floor = self.floor(region, key, Some(session));
        self.note(|| format!("s{session} query {key} at {region}: {seen:?}"));
        let Some(cut) = self.log(key).cut_of(&seen, floor) else {
            bail!(
                "{key} at {region} is {seen:?}, which it never was since commit {floor} of {}: {:?}, now {:?}",
                self.log(key).len(),
                self.log(key).state(floor),
                self.log(key).last()
            );
        };
        self.shown.insert((region.to_owned(), key.to_owned()), cut);
        self.sessions[session].raise(key, cut);
        Ok(())
    }

    /// The items of a logical partition as a region shows them; none when it does not answer now.
    pub(super) fn state_at(
        &mut self,
        region: &str,
        key: &str,
        session: Option<usize>,
    ) -> anyhow::Result<Option<State>> {
        let mut state = State::new();
        let mut continuation = String::new();
        loop {
            let mut request = Request::new("POST", DOCS)
                .key(key)
                .header("content-type", "application/query+json")
                .header("x-ms-documentdb-isquery", "True")
                .header("x-ms-max-item-count", "3")
                .json(json!({"query": "SELECT c.id, c.v FROM c", "parameters": []}));
            if let Some(session) = session
                && let Some(token) = self.routing.token(key, &self.sessions[session].token)
            {
                request = request.header("x-ms-session-token", token);
            }
            if !continuation.is_empty() {
                request = request.header("x-ms-continuation", continuation);
            }
            let answer = self.ask(region, &request);
            if self.is_excused(region, key, &answer)? {
                return Ok(None);
            }
            let Ok(answer) = answer else { return Ok(None) };
            ensure!(answer.status == 200, "a query of {key} at {region} answers {}", answer.brief());
            for row in rows(&answer.json()) {
                let version = row["v"].as_u64().context("a row without version")?;
                let id = row["id"].as_str().context("a row without id")?;
                ensure!(
                    state.insert(id.to_owned(), version).is_none(),
                    "{key}/{id} is there twice at {region}"
                );
            }
            if let (Some(session), Ok(token)) = (session, answer.header("x-ms-session-token").parse()) {
                self.sessions[session].token.merge(&token);
            }
            continuation = answer.header("x-ms-continuation").to_owned();
            if continuation.is_empty() {
                return Ok(Some(state));
            }
        }
    }

    /// Reads on in the change feed.
    pub(super) fn poll(&mut self) -> anyhow::Result<Polled> {
        if self.region(&self.feed.region).is_none() {
            self.feed = Feed::new(&self.regions[0].name.clone());
        }
        let region = self.feed.region.clone();
        let Some(place) = self.regions.iter().position(|known| known.name == region) else {
            return Ok(Polled::Later);
        };
        let logs = &self.logs;
        let polled = self.feed.poll(
            &mut self.regions[place].connection,
            &self.routing,
            DOCS,
            |feed, key, id, version| {
                let place = (key.to_owned(), id.to_owned());
                if let Some(log) = logs.get(key) {
                    let now = log.place_of(id, version);
                    ensure!(
                        now.is_some(),
                        "the change feed shows {key}/{id} at {version}, which nobody wrote"
                    );
                    let before = feed.seen.get(&place).and_then(|version| log.place_of(id, *version));
                    ensure!(
                        now >= before,
                        "the change feed goes back from {before:?} to {now:?} of {key}/{id}"
                    );
                }
                feed.seen.insert(place, version);
                Ok(())
            },
        )?;
        self.note(|| format!("feed at {region}: {polled:?}"));
        Ok(polled)
    }

    /// What a forced failover left: of each key, what it was at one moment. `may_lose` says whether anything may be gone.
    pub(super) fn count_losses(&mut self, region: &str, may_lose: bool) -> anyhow::Result<()> {
        let keys: Vec<String> = self.logs.keys().cloned().collect();
        for key in keys {
            let seen = self.state_at(region, &key, None)?;
            // A range that is being swapped cannot be read now; nothing is known of it until it can.
            let seen =
                seen.with_context(|| format!("{region} is the write region and does not answer for {key}"))?;
            let (len, least) =
                (self.log(&key).len(), self.shown.get(&(region.to_owned(), key.clone())).copied());
            let Some(cut) = self.log(&key).last_cut_of(&seen) else {
                bail!("{key} after a forced failover is {seen:?}, which it never was");
            };
            ensure!(
                cut == len || may_lose,
                "{key} lost {} commits in a failover that had them all",
                len - cut
            );
            ensure!(
                cut >= least.unwrap_or(0),
                "{key} lost commit {cut}, which {region} had shown: {least:?}"
            );
            if cut < len {
                self.note(|| format!("  {key}: {} of {len} commits lost", len - cut));
                self.counts.lost += (len - cut) as u64;
                self.forget(&key, cut);
            }
            self.shown.insert((region.to_owned(), key), cut);
        }
        Ok(())
    }

    fn forget(&mut self, key: &str, cut: usize) {
        if let Some(log) = self.logs.get_mut(key) {
            log.truncate(cut);
        }
        for session in &mut self.sessions {
            session.lower(key, cut);
        }
        for ((_, shown_key), shown) in &mut self.shown {
            if shown_key == key {
                *shown = (*shown).min(cut);
            }
        }
        // A reader that saw what is lost begins anew.
        self.feed = Feed::new(&self.feed.region.clone());
    }

    /// Ends every disturbance and lets replication finish.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        for region in self.regions.iter().map(|region| region.name.clone()).collect::<Vec<_>>() {
            self.server.post(&format!("/regions/{region}/online"), json!({}))?;
            self.server.post(&format!("/regions/{region}/replication/resume"), json!({}))?;
        }
        while let Some(operation) = self.operation {
            let state = self.server.post(&format!("/operations/{operation}/advance"), Value::Null)?;
            if state["status"] == "Succeeded" {
                self.operation = None;
            }
        }
        for time in 0..SETTLE_TIMES_MAX {
            // More each time: a process that was killed has forgotten how far its clock was put forward.
            self.server.advance(Duration::from_millis(self.plan.delay_ms + 1 + 100 * time))?;
            self.look_at_regions()?;
            if self.regions.iter().all(|region| region.lag_commits == 0 && region.is_online) {
                return self.look_at_ranges();
            }
        }
        bail!("replication does not finish: {:?}", self.server.get("/regions")?)
    }

    /// What must be true when everything has come to rest.
    pub(super) fn check_all(&mut self) -> anyhow::Result<()> {
        self.settle()?;
        let names: Vec<String> = self.regions.iter().map(|region| region.name.clone()).collect();
        let keys: Vec<String> = self.logs.keys().cloned().collect();
        for region in &names {
            for key in &keys {
                let expected = self.log(key).last();
                for session in 0..self.sessions.len() {
                    let seen = self.state_at(region, key, Some(session))?;
                    if seen.as_ref() != Some(&expected) {
                        let wanted = self.routing.token(key, &self.sessions[session].token);
                        let answer = self.ask(region, &Request::new("GET", format!("{DOCS}/i0")).key(key));
                        let stands = answer.map(|answer| answer.header("x-ms-session-token").to_owned());
                        bail!(
                            "at rest {key} at {region} in session {session} is {seen:?}, not {expected:?}: the session \
                             is at {wanted:?} of {}, the region at {stands:?}",
                            self.sessions[session].token
                        );
                    }
                }
                for (id, version) in &expected {
                    let answer = self.ask(region, &Request::new("GET", format!("{DOCS}/{id}")).key(key));
                    let seen = answer.ok().and_then(|answer| answer.json()["v"].as_u64());
                    ensure!(
                        seen == Some(*version),
                        "at rest {key}/{id} at {region} is {seen:?}, not {version}"
                    );
                }
            }
            self.check_total(region)?;
        }
        self.check_contended(&names)?;
        self.check_feed()
    }

    /// A query over all partitions shows every item once.
    fn check_total(&mut self, region: &str) -> anyhow::Result<()> {
        let mut seen: BTreeMap<(String, String), u64> = BTreeMap::new();
        let ranges: Vec<String> = self.routing.ranges.iter().map(|range| range.id.clone()).collect();
        for range in ranges {
            let mut continuation = String::new();
            loop {
                let mut request = Request::new("GET", DOCS)
                    .header("x-ms-documentdb-partitionkeyrangeid", range.clone())
                    .header("x-ms-max-item-count", "5");
                if !continuation.is_empty() {
                    request = request.header("x-ms-continuation", continuation);
                }
                let answer = self.ask(region, &request);
                let answer =
                    answer.map_err(|silence| anyhow::anyhow!("{region} is silent at rest: {silence:?}"))?;
                ensure!(answer.status == 200, "range {range} at {region} answers {}", answer.brief());
                for row in rows(&answer.json()) {
                    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
                    let version = row["v"].as_u64().unwrap_or(0);
                    let twice = seen.insert((text("pk"), text("id")), version);
                    ensure!(twice.is_none(), "{}/{} is in two ranges at {region}", text("pk"), text("id"));
                }
                continuation = answer.header("x-ms-continuation").to_owned();
                if continuation.is_empty() {
                    break;
                }
            }
        }
        seen.retain(|(key, _), _| self.logs.contains_key(key));
        let expected: BTreeMap<(String, String), u64> = self
            .logs
            .iter()
            .flat_map(|(key, log)| log.last().into_iter().map(|(id, version)| ((key.clone(), id), version)))
            .collect();
        ensure!(seen == expected, "all ranges of {region} together hold {seen:?}, not {expected:?}");
        Ok(())
    }

    /// Items that several regions wrote are the same everywhere, and somebody wrote them.
    fn check_contended(&mut self, names: &[String]) -> anyhow::Result<()> {
        for (id, written) in self.contended.clone() {
            let mut agreed = None;
            for region in names {
                let answer = self.ask(region, &Request::new("GET", format!("{DOCS}/{id}")).key("x"));
                let seen = answer.ok().and_then(|answer| answer.json()["v"].as_u64());
                let seen = seen.with_context(|| format!("x/{id} is not at {region}"))?;
                ensure!(written.contains(&seen), "x/{id} at {region} is {seen}, which nobody wrote");
                ensure!(
                    *agreed.get_or_insert(seen) == seen,
                    "x/{id} is {seen} at {region} and {agreed:?} elsewhere"
                );
            }
        }
        Ok(())
    }

    /// The change feed showed every item as it is.
    fn check_feed(&mut self) -> anyhow::Result<()> {
        ensure!(self.poll()? == Polled::Drained, "the change feed does not answer at rest");
        for (key, log) in &self.logs {
            for (id, version) in log.last() {
                let seen = self.feed.seen.get(&(key.clone(), id.clone()));
                ensure!(
                    seen == Some(&version),
                    "the change feed showed {key}/{id} at {seen:?}, not {version}"
                );
            }
        }
        Ok(())
    }
}
