//! A seeded comparison of the engine with a plain map: random operations, batches, patches, splits, merges and time,
//! with readers of both change feeds that follow the partitions wherever they go.

use std::collections::BTreeMap;

use cosmos_wire::epk::{Epk, EpkRange};

use super::*;

/// A small generator of numbers; the same seed gives the same numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

const DEFAULT_TTL: u64 = 30;

#[derive(Clone)]
struct Entry {
    document: Value,
    etag: String,
    written: u64,
}

impl Entry {
    fn is_alive(&self, now: u64) -> bool {
        match self.document["ttl"].as_i64() {
            Some(-1) => true,
            Some(ttl) => self.written + u64::try_from(ttl).expect("positive") > now,
            None => self.written + DEFAULT_TTL > now,
        }
    }
}

#[derive(Default, Clone)]
struct Model(BTreeMap<(String, String), Entry>);

impl Model {
    fn alive(&self, pk: &str, id: &str, now: u64) -> Option<&Entry> {
        self.0.get(&(pk.to_owned(), id.to_owned())).filter(|entry| entry.is_alive(now))
    }

    /// What an operation must answer, and what it leaves.
    fn apply(&mut self, pk: &str, op: &ItemOp, conditions: &Conditions, now: u64) -> (u16, Option<Value>) {
        let id = match op {
            ItemOp::Create { body } | ItemOp::Upsert { body } => {
                parse(body)["id"].as_str().expect("text").to_owned()
            }
            ItemOp::Replace { id, .. }
            | ItemOp::Read { id }
            | ItemOp::Delete { id }
            | ItemOp::Patch { id, .. } => id.clone(),
        };
        let old = self.alive(pk, &id, now).cloned();
        let stale = |old: &Entry| conditions.if_match.as_ref().is_some_and(|etag| *etag != old.etag);
        let slot = (pk.to_owned(), id);
        let mut put = |status: u16, document: Value| {
            self.0.insert(
                slot.clone(),
                Entry { document: document.clone(), etag: String::new(), written: now },
            );
            (status, Some(document))
        };
        match (op, old) {
            (ItemOp::Create { .. }, Some(_)) => (409, None),
            (ItemOp::Create { body } | ItemOp::Upsert { body }, None) => put(201, parse(body)),
            (
                ItemOp::Upsert { .. } | ItemOp::Replace { .. } | ItemOp::Delete { .. } | ItemOp::Patch { .. },
                Some(old),
            ) if stale(&old) => (412, None),
            (ItemOp::Upsert { body } | ItemOp::Replace { body, .. }, Some(_)) => put(200, parse(body)),
            (ItemOp::Patch { patch, .. }, Some(old)) => {
                match patch.apply(&old.document, |path| path[0] == "id") {
                    Ok(document) => put(200, document),
                    Err(_) => (400, None),
                }
            }
            (ItemOp::Read { .. }, Some(old)) => {
                if stale(&old) {
                    (412, None)
                } else {
                    (200, Some(old.document))
                }
            }
            (ItemOp::Delete { .. }, Some(_)) => {
                self.0.remove(&slot);
                (204, None)
            }
            (
                ItemOp::Replace { .. } | ItemOp::Read { .. } | ItemOp::Delete { .. } | ItemOp::Patch { .. },
                None,
            ) => (404, None),
        }
    }

    fn remember_etag(&mut self, pk: &str, id: &str, etag: Option<&String>) {
        if let (Some(entry), Some(etag)) = (self.0.get_mut(&(pk.to_owned(), id.to_owned())), etag) {
            entry.etag.clone_from(etag);
        }
    }
}

fn parse(body: &Bytes) -> Value {
    serde_json::from_slice(body).expect("JSON")
}

/// The document without what the service adds.
fn user_part(bytes: &[u8]) -> Value {
    let mut document: Value = serde_json::from_slice(bytes).expect("JSON");
    let map = document.as_object_mut().expect("an object");
    map.retain(|name, _| !name.starts_with('_'));
    document
}

fn document(random: &mut Random, pk: &str) -> Value {
    let mut document =
        json!({"id": random.below(6).to_string(), "pk": pk, "n": random.below(5), "l": [random.below(3)]});
    match random.below(6) {
        0 => document["ttl"] = json!(random.below(20) + 1),
        1 => document["ttl"] = json!(-1),
        _ => {}
    }
    document
}

fn operation(random: &mut Random, pk: &str) -> (ItemOp, String) {
    let draft = document(random, pk);
    let id = draft["id"].as_str().expect("text").to_owned();
    let op = match random.below(8) {
        0 | 1 => ItemOp::Create { body: text(&draft) },
        2 => ItemOp::Upsert { body: text(&draft) },
        3 => ItemOp::Replace { id: id.clone(), body: text(&draft) },
        4 => ItemOp::Delete { id: id.clone() },
        5 | 6 => {
            let operations = match random.below(4) {
                0 => json!([{"op": "incr", "path": "/n", "value": 1}]),
                1 => json!([{"op": "add", "path": "/l/-", "value": random.below(3)}]),
                2 => {
                    json!([{"op": "remove", "path": "/l/0"}, {"op": "set", "path": "/m", "value": {"x": 1}}])
                }
                _ => json!([{"op": "set", "path": "/ttl", "value": 7}]),
            };
            ItemOp::Patch { id: id.clone(), patch: Patch::from_value(operations).expect("valid") }
        }
        _ => ItemOp::Read { id: id.clone() },
    };
    (op, id)
}

fn check_all(world: &World, model: &Model, seed: u64) {
    let now = world.engine.clock().now_seconds();
    let mut expected: Vec<Value> =
        model.0.values().filter(|entry| entry.is_alive(now)).map(|entry| entry.document.clone()).collect();
    expected.sort_by_key(|d| (d["pk"].to_string(), d["id"].to_string()));
    let strip = |mut rows: Vec<Value>| {
        for row in &mut rows {
            row.as_object_mut().expect("an object").retain(|name, _| !name.starts_with('_'));
        }
        rows.sort_by_key(|d| (d["pk"].to_string(), d["id"].to_string()));
        rows
    };
    let all = strip(world.query(&Scope::All, "SELECT * FROM c").expect("served"));
    assert_eq!(all, expected, "seed {seed}");
    for n in 0..5 {
        let text = format!("SELECT * FROM c WHERE c.n = {n} OR c.n = 100");
        let rows = strip(world.query(&Scope::All, &text).expect("served"));
        let matching: Vec<_> = expected.iter().filter(|d| d["n"] == n).cloned().collect();
        assert_eq!(rows, matching, "seed {seed}: {text}");
    }
    let indexed =
        strip(world.query(&in_key("p0"), "SELECT * FROM c WHERE ARRAY_CONTAINS(c.l, 1)").expect("served"));
    let has_one = |d: &&Value| d["pk"] == "p0" && d["l"].as_array().is_some_and(|l| l.contains(&json!(1)));
    assert_eq!(indexed, expected.iter().filter(has_one).cloned().collect::<Vec<_>>(), "seed {seed}");
    let changes: usize = world
        .container()
        .range_ids()
        .into_iter()
        .map(|id| {
            let request = FeedRequest {
                scope: Scope::Range(id.to_string()),
                start: FeedStart::Beginning,
                page_size: PageSize::Dynamic,
                session_token: None,
            };
            world.engine.change_feed(&world.container(), request).expect("served").documents.len()
        })
        .sum();
    assert_eq!(changes, expected.len(), "seed {seed}: one change per item");
}

/// Somebody who reads a change feed of all keys, from the first change on.
struct Follower {
    is_full: bool,
    /// Keys, and behind which page to go on.
    places: Vec<(EpkRange, FeedStart)>,
    /// By partition key and id: what came, in order.
    seen: BTreeMap<(String, String), Vec<Value>>,
}

impl Follower {
    fn new(world: &World, is_full: bool) -> Self {
        let start = |range: &EpkRange| {
            let scope = Scope::EpkRange(range.min.to_hex(), range.max.to_hex());
            let now = follow(world, is_full, scope, FeedStart::Now, 1).expect("served");
            (range.clone(), FeedStart::After(now.etag))
        };
        let places = world.container().ranges().iter().map(start).collect();
        Self { is_full, places, seen: BTreeMap::new() }
    }

    /// Reads whatever is new, in pages of this many.
    fn catch_up(&mut self, world: &World, page: usize, seed: u64) {
        let ranges = world.container().ranges();
        let places = std::mem::take(&mut self.places);
        for (range, start) in places {
            for held in ranges.iter().filter_map(|held| held.intersection(&range)) {
                let start = self.read(world, &held, start.clone(), (page, seed));
                self.places.push((held, start));
            }
        }
        assert!(self.places.windows(2).all(|pair| pair[0].0.max <= pair[1].0.min));
        assert!(self.places.first().is_some_and(|(range, _)| range.min == Epk::MIN));
    }

    fn read(
        &mut self,
        world: &World,
        range: &EpkRange,
        mut start: FeedStart,
        (max, seed): (usize, u64),
    ) -> FeedStart {
        loop {
            let scope = Scope::EpkRange(range.min.to_hex(), range.max.to_hex());
            let page = follow(world, self.is_full, scope, start, max).expect("served");
            for bytes in &page.documents {
                let change: Value = serde_json::from_slice(bytes).expect("JSON");
                let item = if !self.is_full {
                    &change
                } else if change["metadata"]["operationType"] == "delete" {
                    &change["previous"]
                } else {
                    &change["current"]
                };
                let text = |name: &str| item[name].as_str().expect("text").to_owned();
                let seen = self.seen.entry((text("pk"), text("id"))).or_default();
                assert_ne!(seen.last(), Some(&change), "seed {seed}: nothing comes twice");
                seen.push(change);
            }
            start = FeedStart::After(page.etag);
            if page.status == 304 {
                return start;
            }
        }
    }

    /// Whether what was read last of each item is what it is.
    fn check(&self, model: &Model, now: u64, seed: u64) {
        for ((pk, id), entry) in model.0.iter().filter(|(_, entry)| entry.is_alive(now)) {
            let changes = self.seen.get(&(pk.clone(), id.clone()));
            let last = changes.and_then(|changes| changes.last()).expect("every item was seen");
            let item = if self.is_full { &last["current"] } else { last };
            assert_eq!(item["_etag"].as_str(), Some(entry.etag.as_str()), "seed {seed}: {pk} {id}");
        }
        if !self.is_full {
            return;
        }
        for ((pk, id), changes) in &self.seen {
            let kind =
                |change: &Value| change["metadata"]["operationType"].as_str().expect("text").to_owned();
            for pair in changes.windows(2) {
                assert_eq!(kind(&pair[1]) == "create", kind(&pair[0]) == "delete", "seed {seed}: {pair:?}");
                if kind(&pair[1]) == "delete" {
                    assert_eq!(pair[1]["previous"], pair[0]["current"], "seed {seed}");
                }
            }
            let is_gone = changes.last().is_some_and(|change| kind(change) == "delete");
            assert_eq!(model.alive(pk, id, now).is_none(), is_gone, "seed {seed}: {pk} {id}");
        }
    }
}

fn follow(
    world: &World,
    is_full: bool,
    scope: Scope,
    start: FeedStart,
    max: usize,
) -> Result<FeedPage, Failure> {
    let request = FeedRequest { scope, start, page_size: PageSize::AtMost(max), session_token: None };
    if is_full {
        world.engine.all_versions(&world.container(), request)
    } else {
        world.engine.change_feed(&world.container(), request)
    }
}

/// Splits or merges something, by hand or at once, perhaps with a restart in each phase.
fn reshape(mut world: World, random: &mut Random) -> World {
    let container = world.container();
    let ids = container.range_ids();
    let at = usize::try_from(random.below(ids.len() as u64)).expect("small");
    let progression = match random.below(2) {
        0 => Progression::Manual,
        _ => Progression::Automatic { lock_duration: Duration::ZERO },
    };
    let begun = if ids.len() > 4 || (ids.len() > 1 && random.below(3) == 0) {
        let low = at.min(ids.len() - 2);
        world.engine.merge(&container, [ids[low], ids[low + 1]], progression)
    } else {
        let mode = if random.below(2) == 0 { SplitMode::Midpoint } else { SplitMode::Storage };
        world.engine.split(&container, ids[at], &mode, progression)
    };
    drop(container);
    // A partition of one logical partition cannot be split by what it stores.
    let Ok(mut operation) = begun else { return world };
    while operation.phase != Phase::Succeeded {
        if random.below(3) == 0 {
            world = world.reopened();
        }
        operation = world.engine.advance(operation.id).expect("moved on");
    }
    if random.below(2) == 0 {
        world.engine.sweep(10_000).expect("swept");
    }
    world
}

/// The ids of a query that is read in small pages, with the partitions changing in between.
fn check_pages(mut world: World, random: &mut Random, seed: u64) -> World {
    let texts = [
        "SELECT * FROM c",
        "SELECT * FROM c ORDER BY c.n",
        "SELECT * FROM c WHERE c.n > 1 ORDER BY c.n DESC",
    ];
    let text = texts[usize::try_from(random.below(3)).expect("small")];
    let mut expected = world.ids(&Scope::All, text);
    let (mut seen, mut continuation) = (Vec::new(), None);
    loop {
        let request = QueryRequest {
            text: text.into(),
            parameters: Vec::new(),
            scope: Scope::All,
            page_size: PageSize::AtMost(3),
            continuation,
            session_token: None,
            resume: None,
        };
        let page = world.engine.query(&world.container(), request).expect("served");
        seen.extend(page.rows.iter().map(|row| row["id"].as_str().unwrap_or_default().to_owned()));
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
        if random.below(3) == 0 {
            world = reshape(world, random);
        }
    }
    if !text.contains("ORDER BY") {
        expected.sort();
        seen.sort();
    }
    assert_eq!(seen, expected, "seed {seed}: {text}");
    world
}

fn run(seed: u64, steps: usize) {
    let random = &mut Random(seed);
    let options = EngineOptions { partitions: Some(2), ..EngineOptions::default() };
    let mut world = World::with_options(
        json!({"defaultTtl": DEFAULT_TTL, "changeFeedPolicy": {"retentionDuration": 1_000}}),
        options,
    );
    let mut followers = [false, true].map(|is_full| Follower::new(&world, is_full));
    let mut model = Model::default();
    for step in 0..steps {
        let pk = format!("p{}", random.below(4));
        let now = world.engine.clock().now_seconds();
        match random.below(20) {
            0 => world.hand.advance(Duration::from_secs(random.below(6))),
            1 => {
                world.engine.sweep(3).expect("swept");
            }
            2 if random.below(2) == 0 => world = reshape(world, random),
            2..6 => batch(&world, &mut model, random, &pk, now, seed),
            _ => {
                let (op, id) = operation(random, &pk);
                let conditions = match (random.below(4), model.alive(&pk, &id, now)) {
                    (0, _) => if_match("\"stale\""),
                    (1, Some(entry)) => if_match(&entry.etag.clone()),
                    _ => Conditions::default(),
                };
                let (status, left) = model.apply(&pk, &op, &conditions, now);
                match world.item_if(&pk, op.clone(), conditions) {
                    Ok(reply) => {
                        assert_eq!(reply.status, status, "seed {seed}, step {step}: {op:?}");
                        if let Some(left) = left {
                            assert_eq!(user_part(&reply.body), left, "seed {seed}, step {step}");
                        }
                        model.remember_etag(&pk, &id, reply.etag.as_ref());
                    }
                    Err(failure) => {
                        assert_eq!(failure.status, status, "seed {seed}, step {step}: {op:?} {failure:?}");
                    }
                }
            }
        }
        if step % 50 == 49 {
            check_all(&world, &model, seed);
            world = check_pages(world, random, seed);
            for follower in &mut followers {
                follower.catch_up(&world, 5, seed);
                follower.check(&model, world.engine.clock().now_seconds(), seed);
            }
        }
        if step == steps / 2 {
            world = world.reopened();
        }
    }
    check_all(&world, &model, seed);
}

fn batch(world: &World, model: &mut Model, random: &mut Random, pk: &str, now: u64, seed: u64) {
    let steps: Vec<_> = (0..=random.below(4)).map(|_| operation(random, pk)).collect();
    let mut after = model.clone();
    let mut failed = None;
    for (at, (op, _)) in steps.iter().enumerate() {
        let (status, _) = after.apply(pk, op, &Conditions::default(), now);
        if status >= 400 {
            failed = Some((at, status));
            break;
        }
    }
    let operations = steps
        .iter()
        .map(|(op, _)| BatchOperation {
            op: op.clone(),
            conditions: Conditions::default(),
            partition_key: None,
        })
        .collect();
    let request = BatchRequest {
        mode: BatchMode::Atomic,
        partition_key: Some(key(pk)),
        operations,
        body_bytes: 0,
        range: None,
        content: Content::All,
        session_token: None,
    };
    let reply = world.engine.batch(&world.container(), request).expect("accepted");
    match failed {
        Some((at, status)) => {
            assert_eq!((reply.status, reply.results[at].status), (207, status), "seed {seed}: {steps:?}");
        }
        None => {
            assert_eq!(reply.status, 200, "seed {seed}: {steps:?}");
            for ((_, id), result) in steps.iter().zip(&reply.results) {
                after.remember_etag(pk, id, result.etag.as_ref());
            }
            *model = after;
        }
    }
}

#[test]
fn the_engine_agrees_with_a_map() {
    // 52 found pages that came twice behind a merge.
    for seed in (1..=4).chain([52]) {
        run(seed, 400);
    }
}
