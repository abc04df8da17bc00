//! Searching for work: nothing that is not for the searcher hides what is, or is paid for without end.

use std::sync::Mutex;
use std::time::Duration;

use cosmos_driver::{CallOptions, Credential, Driver, ItemOptions};
use cosmos_emulator::{Auth, Config, Emulator, Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, SessionFetchConfig, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::{LOCK, NOW, commit, config, mail, of_session, place, place_with};
use crate::scale::{put, queued};
use crate::tap::{Asked, Tap};
use crate::world::{DATABASE, activity, documents, emulator, event, fresh_name, named, raw, start, until};

#[tokio::test]
async fn a_document_that_cannot_be_read_hides_no_other() {
    let place = place().await;
    let container = raw(&place.name).await;
    for (kind, at) in [("orch_queue", json!(1)), ("worker_queue", json!(1)), ("worker_queue", json!(1.5))] {
        let id = format!("{kind} {at}");
        let stray = json!({ "id": id, "instanceId": "stray", "type": kind, "visibleAt": at, "seq": "first" });
        container.create_item("stray", &stray, ItemOptions::default()).await.unwrap();
    }
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    place.provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
    let other = place.other().await;
    let turn = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
    assert_eq!(turn.expect("it can be read").0.instance, "a");
    let work = other.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap();
    assert_eq!(work.expect("it can be read").0, activity("b", 1));
    assert!(other.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().is_none());
}

/// An emulator of its own, so that nothing else is counted.
struct Account {
    emulator: Emulator,
}

impl Account {
    fn new() -> Self {
        Self { emulator: Emulator::start(Config::default()).unwrap() }
    }

    /// A process that has not searched yet.
    async fn process(&self) -> CosmosDBProvider {
        let config = CosmosDBProviderConfig {
            leases: Some(std::sync::Arc::new(duroxide_cdb::NoLeases)),
            ..CosmosDBProviderConfig::new(self.emulator.endpoint(), self.emulator.key())
        };
        CosmosDBProvider::new_with_config(config).await.unwrap()
    }

    /// How many searches there were since the last reset, and the documents that the greatest of them looked at.
    fn searches(&self) -> (usize, u64) {
        let recent = self.emulator.ledger().snapshot().recent;
        let is_search = |operation| operation == Operation::Query;
        let searches = recent.iter().filter(|r| is_search(r.operation) && r.partition_key.is_none());
        let visited: Vec<u64> = searches.map(|search| search.documents_visited).collect();
        (visited.len(), visited.into_iter().max().unwrap_or(0))
    }
}

fn tagged(item: WorkItem, with: &str) -> WorkItem {
    match item {
        WorkItem::ActivityExecute { instance, execution_id, id, name, input, session_id, .. } => {
            let tag = Some(with.to_owned());
            WorkItem::ActivityExecute { instance, execution_id, id, name, input, session_id, tag }
        }
        other => other,
    }
}

fn owner(name: &str) -> SessionFetchConfig {
    SessionFetchConfig { owner_id: name.to_owned(), lock_timeout: LOCK }
}

/// Takes everything a worker may have.
async fn take_all(
    provider: &CosmosDBProvider,
    session: Option<&SessionFetchConfig>,
    tags: &TagFilter,
) -> Vec<WorkItem> {
    let mut taken = Vec::new();
    while let Some((item, ..)) = provider.fetch_work_item(LOCK, NOW, session, tags).await.unwrap() {
        taken.push(item);
    }
    taken
}

#[tokio::test]
async fn items_with_other_tags_are_not_in_the_way_however_many_they_are() {
    let account = Account::new();
    let sender = account.process().await;
    for id in 0..MANY {
        sender.enqueue_for_worker(tagged(activity("crowd", id), "gpu")).await.unwrap();
    }
    let plain = [activity("b", 1), of_session("c", 1, "s")];
    for item in plain.clone().into_iter().chain([tagged(activity("d", 1), "cpu")]) {
        sender.enqueue_for_worker(item).await.unwrap();
    }
    let me = owner("me");
    for (tags, session, expected) in [
        (TagFilter::tags(["cpu", "tpu"]), None, vec![tagged(activity("d", 1), "cpu")]),
        (TagFilter::DefaultOnly, None, plain[..1].to_vec()),
        (TagFilter::DefaultOnly, Some(&me), plain[1..].to_vec()),
    ] {
        let worker = account.process().await;
        account.emulator.ledger().reset();
        assert_eq!(take_all(&worker, session, &tags).await, expected, "{tags:?}");
        let (searches, visited) = account.searches();
        assert!(
            visited <= PAGE && searches <= 20,
            "{tags:?}: {searches} searches, {visited} documents in one"
        );
    }
}

#[tokio::test]
async fn items_of_sessions_that_others_own_are_not_in_the_way_however_many_they_are() {
    let account = Account::new();
    let other = account.process().await;
    let (me, them) = (owner("me"), owner("them"));
    let mine = account.process().await;
    for (process, session, own) in [(&other, &them, "theirs"), (&mine, &me, "mine")] {
        process.enqueue_for_worker(of_session("a", 1, own)).await.unwrap();
        assert_eq!(take_all(process, Some(session), &TagFilter::Any).await.len(), 1);
    }
    for id in 2..MANY {
        other.enqueue_for_worker(of_session("crowd", id, "theirs")).await.unwrap();
    }
    let expected = [of_session("b", 1, "mine"), of_session("c", 1, "nobody's"), activity("d", 1)];
    for item in expected.clone() {
        other.enqueue_for_worker(item).await.unwrap();
    }
    for tags in [TagFilter::DefaultOnly, TagFilter::Any] {
        account.emulator.ledger().reset();
        let mut taken = take_all(&mine, Some(&me), &tags).await;
        if tags == TagFilter::Any {
            assert_eq!(taken, [], "all were taken before");
        } else {
            taken.sort_by_key(|item| format!("{item:?}"));
            assert_eq!(taken, expected, "{tags:?}");
        }
        let (searches, visited) = account.searches();
        assert!(
            visited <= PAGE && searches <= 50,
            "{tags:?}: {searches} searches, {visited} documents in one"
        );
    }
}

/// A container as an earlier version made it, before items had lanes.
async fn container_without_lanes(name: &str) {
    let credential = Credential::key(emulator().key()).unwrap();
    let driver = Driver::builder(emulator().endpoint(), credential).build().await.unwrap();
    let _ = driver.create_database(DATABASE, CallOptions::default()).await;
    let mut earlier = duroxide_cdb::container_definition(name);
    let composites = &mut earlier.indexing_policy.as_mut().unwrap()["compositeIndexes"];
    composites.as_array_mut().unwrap().truncate(1);
    driver.database(DATABASE).create_container(&earlier, None, CallOptions::default()).await.unwrap();
}

#[tokio::test]
async fn items_that_an_earlier_version_wrote_are_found_behind_a_crowd_of_their_kind() {
    // One after the other, and all at the same moment.
    for step in [1, 0] {
        let name = fresh_name();
        container_without_lanes(&name).await;
        let container = raw(&name).await;
        let crowd = (0..300).map(|id| (tagged(activity("crowd", id), "gpu"), id));
        for (item, id) in crowd.chain([(activity("b", 1), 300)]) {
            let WorkItem::ActivityExecute { instance, tag, .. } = &item else { panic!("{item:?}") };
            let at = 1000 + id * step;
            let document = json!({
                "id": format!("work:1:{id}"), "instanceId": instance, "type": "worker_queue", "tag": tag,
                "workItem": serde_json::to_string(&item).unwrap(), "visibleAt": at, "enqueuedAt": at,
            });
            container.create_item(instance.as_str(), &document, ItemOptions::default()).await.unwrap();
        }
        let worker = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
        assert_eq!(take_all(&worker, None, &TagFilter::DefaultOnly).await, [activity("b", 1)]);
        assert_eq!(documents(&container, "b").await[0]["lane"], "plain/~", "it has one now");
    }
}

#[tokio::test]
async fn a_page_that_ends_before_anything_was_found_is_read_on() {
    let place = place().await;
    place.provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let item = documents(&raw(&place.name).await, "a").await.remove(0);
    let answer = move |rows: &[Value], next: Option<&str>| {
        let body = json!({ "_rid": "", "Documents": rows, "_count": rows.len() }).to_string();
        let answer = Response::builder().header("x-ms-request-charge", "2.25");
        let answer = next.into_iter().fold(answer, |answer, next| answer.header("x-ms-continuation", next));
        answer.body(Full::new(Bytes::from(body))).unwrap()
    };
    let pages = Mutex::new(0);
    let judge = move |asked: &Asked| {
        let body = String::from_utf8_lossy(&asked.body);
        if !body.contains("worker_queue") || asked.header("x-ms-cosmos-is-query-plan-request").is_some() {
            return None;
        }
        let mut pages = pages.lock().unwrap();
        *pages += 1;
        let row = json!({ "visibleAt": item["visibleAt"], "lane": item["lane"], "item": item });
        Some(match *pages {
            page @ (1 | 2) => {
                let next = format!(r#"{{"token":"+RID:~{page}","range":{{"min":"","max":"FF"}}}}"#);
                answer(&[], Some(&next))
            }
            _ => answer(&[row], None),
        })
    };
    let tap = Tap::new(emulator(), judge).await;
    let behind = CosmosDBProviderConfig { endpoint: tap.endpoint.clone(), ..config(&place.name) };
    let worker = CosmosDBProvider::new_with_config(behind).await.unwrap();
    let found = worker.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap();
    assert_eq!(found.expect("it is on the third page").0, activity("a", 1));
}

/// A worker whose requests come by.
async fn worker_behind(tap: &Tap, name: &str) -> CosmosDBProvider {
    let behind = CosmosDBProviderConfig { endpoint: tap.endpoint.clone(), ..config(name) };
    CosmosDBProvider::new_with_config(behind).await.unwrap()
}

/// From which time of visibility on a request asks for the items of one lane, if it does.
fn lane_from(asked: &Asked) -> Option<u64> {
    let body: Value = serde_json::from_slice(&asked.body).ok()?;
    body["query"].as_str().filter(|text| text.contains("c.lane = @lane"))?;
    let parameters = body["parameters"].as_array()?;
    parameters.iter().find(|parameter| parameter["name"] == "@from")?["value"].as_u64()
}

#[tokio::test]
async fn a_search_asks_for_its_own_lanes_when_no_more_than_half_of_a_full_page_is_its_own() {
    // The first page is one of ten.
    for (own, others, expected) in [(6, 4, 0), (5, 5, 1), (1, 8, 0)] {
        let place = place().await;
        for id in 0..own {
            place.provider.enqueue_for_worker(activity("a", id)).await.unwrap();
        }
        for id in 0..others {
            place.provider.enqueue_for_worker(tagged(activity("b", id), "gpu")).await.unwrap();
        }
        let tap = Tap::new(emulator(), |_| None).await;
        let worker = worker_behind(&tap, &place.name).await;
        let found = worker.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await.unwrap();
        assert!(found.is_some(), "{own} of its own");
        let lanes = tap.asked().iter().filter_map(lane_from).count();
        assert_eq!(lanes, expected, "{own} of its own, {others} for others");
    }
}

#[tokio::test]
async fn a_lane_is_read_on_where_it_was_when_asking_for_it_failed_for_once() {
    const OWN: u64 = 30;
    let place = place().await;
    for id in 0..120 {
        place.provider.enqueue_for_worker(tagged(activity("crowd", id), "gpu")).await.unwrap();
    }
    for id in 0..OWN {
        place.provider.enqueue_for_worker(activity("a", id)).await.unwrap();
    }
    let failed = Mutex::new(false);
    let judge = move |asked: &Asked| {
        let is_further_on = lane_from(asked).is_some_and(|from| from > 0);
        let mut failed = failed.lock().unwrap();
        if *failed || !is_further_on {
            return None;
        }
        *failed = true;
        // Longer than anybody waits, so that it is not the driver who asks again.
        let refusal = Response::builder().status(429).header("x-ms-retry-after-ms", "3600000");
        Some(refusal.header("x-ms-substatus", "3200").body(Full::default()).unwrap())
    };
    let tap = Tap::new(emulator(), judge).await;
    let worker = worker_behind(&tap, &place.name).await;
    let mut taken = 0;
    until("all of its own are taken", async || {
        // A fetch that fails is tried again, as the runtime does.
        let fetched = worker.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await;
        taken += u64::from(fetched.is_ok_and(|fetched| fetched.is_some()));
        taken == OWN
    })
    .await;
    let asked: Vec<u64> = tap.asked().iter().filter_map(lane_from).collect();
    let further_on = asked.iter().position(|from| *from > 0).expect("the lane is longer than a page");
    assert_eq!(asked.get(further_on + 1), asked.get(further_on), "{asked:?}");
}

#[tokio::test]
async fn throttled_instances_hold_up_one_dispatcher_however_many_they_are() {
    // However busy the machine, nobody gives up on a connection and asks once more.
    let long = Duration::from_secs(600);
    let place = place_with(|mut config| {
        config.operation_timeout = long;
        config.driver.timeouts.operation = long;
        config.driver.timeouts.feed_attempt = long;
        config.driver.connections.ping_timeout = long;
        config.driver.sharding.read_hang = long;
        config
    })
    .await;
    let bad: Vec<String> = (0..4).map(|n| format!("bad{n}")).collect();
    let strike = |verdict: Verdict| -> Vec<_> {
        bad.iter()
            .map(|name| emulator().faults().add(place.rule(verdict.clone()).for_key(name.as_str())))
            .collect()
    };
    // Each time in vain makes the next try more patient: at last it is for a minute and a half.
    for _ in 0..5 {
        for name in &bad {
            place.provider.enqueue_for_orchestrator(start(name, "Hello", ""), None).await.unwrap();
        }
        // So long that nobody waits for it: all of them are tried and put off.
        let retry_after = Some(Duration::from_secs(3600));
        let faults = strike(Verdict::Status { code: 429, sub_status: 3200, retry_after });
        assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
        assert!(faults.iter().all(|fault| fault.struck() > 0), "all of them were tried");
    }
    let faults = strike(Verdict::Hang);
    let struck = || faults.iter().map(|fault| fault.struck()).sum::<u64>();
    let dispatchers = [(); 2].map(|()| Box::pin(place.provider.fetch_orchestration_item(LOCK, long, None)));
    let enqueue = async {
        until("one of them is tried again", async || struck() > 0).await;
        place.provider.enqueue_for_orchestrator(start("good", "Hello", ""), None).await.unwrap();
    };
    let (first, ()) = tokio::join!(futures::future::select_all(dispatchers), enqueue);
    assert_eq!(first.0.unwrap().expect("there is one").0.instance, "good");
    assert_eq!(struck(), 1, "the other dispatcher was left for it");
}

#[tokio::test]
async fn a_fetch_reads_no_more_of_a_long_queue_than_the_next_turns_take() {
    const WAITING: u64 = 5200;
    let account = Account { emulator: Emulator::start(Config::default().with_auth(Auth::Open)).unwrap() };
    let provider = account.process().await;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    for n in 0..WAITING {
        let item = serde_json::to_string(&mail("a", &n.to_string())).unwrap();
        let mut message = queued("orch_queue", "a", &format!("mail {n}"), &item, 1000);
        // Behind the start, and against the order in which they were written.
        message["seq"] = ((1 << 52) + WAITING - n).into();
        put(&account.emulator, "a", &message).await;
    }
    let mut seen = Vec::new();
    for turn in 0..20 {
        account.emulator.ledger().reset();
        let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let recent = account.emulator.ledger().snapshot().recent;
        let looks = recent.iter().filter(|r| r.operation == Operation::Query && r.partition_key.is_some());
        let looks = looks.count();
        // A long queue is looked at by several questions that one index answers each; the first look finds that it is long.
        assert!(looks <= 7, "turn {turn}: {looks} pages");
        seen.extend(item.messages.into_iter().filter_map(|message| match message {
            WorkItem::QueueMessage { data, .. } => data.parse::<u64>().ok(),
            _ => None,
        }));
        commit(&provider, &token, vec![event("a", turn + 1)], named()).await.unwrap();
    }
    let expected: Vec<u64> = (0..WAITING).rev().take(seen.len()).collect();
    assert!(seen.len() > 1000 && seen == expected, "{seen:?}");
}

const MANY: u64 = 600;
/// What one search may look at.
const PAGE: u64 = 100;

#[tokio::test]
async fn activities_are_handed_out_oldest_first_over_all_partitions() {
    const ITEMS: u64 = 120;
    let emulator = Emulator::start(Config::default().with_partitions(4)).unwrap();
    let account = Account { emulator };
    let writer = account.process().await;
    let mut random = fastrand::Rng::with_seed(7);
    for id in 1..=ITEMS {
        // One instance has most of them, so that its page is full long before the others' are.
        let instance = if random.u8(..4) > 0 { 0 } else { random.u8(1..8) };
        writer.enqueue_for_worker(activity(&format!("i{instance}"), id)).await.unwrap();
    }
    let settings = CosmosDBProviderConfig::new(account.emulator.endpoint(), account.emulator.key());
    let container = crate::world::behind(&settings).await;
    let mut ages = std::collections::HashMap::new();
    for instance in 0..8 {
        for document in documents(&container, &format!("i{instance}")).await {
            ages.insert(document["activityId"].as_u64().unwrap(), document["visibleAt"].as_u64().unwrap());
        }
    }
    let reader = account.process().await;
    let mut taken = Vec::new();
    while let Some((item, token, _)) = reader.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap()
    {
        let WorkItem::ActivityExecute { id, .. } = item else { panic!("{item:?}") };
        reader.ack_work_item(&token, None).await.unwrap();
        taken.push((ages[&id], id));
    }
    assert_eq!(taken.len() as u64, ITEMS);
    assert!(taken.is_sorted_by_key(|(at, _)| *at), "{taken:?}");
}
