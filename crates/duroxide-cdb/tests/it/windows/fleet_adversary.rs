//! The fleet, attacked: lost answers, partitions that do not answer, strangers' documents, and members that leave and come
//! back. A process is a provider of its own here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cosmos_driver::ItemOptions;
use cosmos_emulator::{FaultRule, Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{DispatcherCapabilityFilter, Provider as _, SemverRange, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::{Value, json};

use super::{LOCK, NOW};
use crate::fleet::{Account, LEASES, join, named_as, open};
use crate::world::{activity, behind, event, named, start, until};

/// The documents of the members, by name.
async fn members(account: &Account) -> BTreeMap<String, Value> {
    let all = account.fleet("member").await.into_iter();
    all.map(|member| (member["owner"].as_str().unwrap_or_default().to_owned(), member)).collect()
}

/// When a member last told of itself.
async fn beat_at(account: &Account, name: &str) -> u64 {
    members(account).await.get(name).and_then(|member| member["beatAt"].as_u64()).unwrap_or(0)
}

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Settings of members that tell of themselves twice a second, and search only once.
fn lively(account: &Account) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig { lease_duration: Duration::from_secs(2), ..account.calm() }
}

#[tokio::test]
async fn a_member_whose_heartbeat_is_not_answered_stays_who_it_is() {
    let account = Account::new();
    let one = open(named_as("one", lively(&account))).await;
    join(&one).await;
    let lost = FaultRule::new(Verdict::ResetAfterCommit).on(Operation::Batch).for_key(LEASES).nth(1);
    let fault = account.emulator.faults().add(lost);
    until("an answer was lost", async || fault.struck() == 1).await;
    let struck = beat_at(&account, "one").await;
    let mut seen = BTreeSet::new();
    until("it tells of itself again", async || {
        seen.extend(members(&account).await.into_keys());
        beat_at(&account, "one").await > struck + 1_000 || seen.len() > 1
    })
    .await;
    assert_eq!(seen, BTreeSet::from(["one".to_owned()]));
    assert_eq!(account.shares().await, BTreeMap::from([("one".to_owned(), 256)]));
}

/// Lets a process hold turns of so many instances, with locks that are in its memory only.
async fn hold(provider: &CosmosDBProvider, count: usize) -> Vec<String> {
    let mut held = Vec::new();
    for n in 0..count {
        provider.enqueue_for_orchestrator(start(&format!("held {n}"), "Hello", ""), None).await.unwrap();
        let fetched = provider.fetch_orchestration_item(LOCK, LOCK, None).await.unwrap();
        held.push(fetched.unwrap().0.instance);
    }
    held
}

#[tokio::test]
async fn a_member_that_cannot_write_down_what_it_holds_is_not_taken_for_dead() {
    let account = Account::new();
    let one = open(named_as("one", lively(&account))).await;
    join(&one).await;
    // Some of them are in the half that the other will ask for.
    let held = hold(&one, 8).await;
    let busy = Verdict::Status { code: 429, sub_status: 3200, retry_after: Some(Duration::from_millis(50)) };
    let mut faults = Vec::new();
    for instance in &held {
        let refused = FaultRule::new(busy.clone()).on(Operation::CreateItem).for_key(instance.as_str());
        faults.push(account.emulator.faults().add(refused));
    }
    let two = open(named_as("two", lively(&account))).await;
    join(&two).await;
    // It goes on asking, for what is not there, as a member does.
    let two = Arc::new(two);
    let asking = tokio::spawn(stays(Arc::clone(&two)));
    until("it was asked for slots", async || faults.iter().any(|fault| fault.struck() > 0)).await;
    let asked = beat_at(&account, "one").await;
    let begun = Instant::now();
    until("it has told of itself for several leases", async || {
        let shares = account.shares().await;
        assert!(shares.contains_key("one"), "after {:?}: {shares:?}", begun.elapsed());
        beat_at(&account, "one").await > asked + 6_000
    })
    .await;
    drop(faults);
    until("the other gets its half", async || account.shares().await.values().all(|size| *size == 128)).await;
    asking.abort();
}

/// Asks again and again for activities that nobody schedules.
async fn stays(member: Arc<CosmosDBProvider>) {
    let nothing = TagFilter::Tags(["nobody schedules it".to_owned()].into());
    loop {
        let fetched = member.fetch_work_item(LOCK, Duration::from_secs(1), None, &nothing).await;
        assert!(fetched.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_partition_that_does_not_answer_does_not_keep_the_locks_of_others_from_being_written() {
    let account = Account::new();
    let config = CosmosDBProviderConfig { steal_after: Duration::from_secs(8), ..account.calm() };
    let provider = open(config).await;
    join(&provider).await;
    let busy = Verdict::Status { code: 429, sub_status: 3200, retry_after: Some(Duration::from_millis(50)) };
    assert_eq!(hold(&provider, 1).await, ["held 0"]);
    let fault =
        account.emulator.faults().add(FaultRule::new(busy).on(Operation::CreateItem).for_key("held 0"));
    until("its lock is to be written", async || fault.struck() > 0).await;
    provider.enqueue_for_orchestrator(start("other", "Hello", ""), None).await.unwrap();
    let (item, ..) = provider.fetch_orchestration_item(LOCK, LOCK, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "other");
    let fetched = Instant::now();
    until("the other lock is stored", async || account.head("other").await.is_some()).await;
    // Half of the first lock: it is tried for as long as that lasts.
    assert!(fetched.elapsed() < LOCK / 2, "{:?}", fetched.elapsed());
    drop(fault);
}

#[tokio::test]
async fn a_stranger_that_claims_a_lease_for_ever_gets_no_slots() {
    let account = Account::new();
    drop(open(account.config()).await);
    let container = behind(&account.config()).await;
    let far = 4_102_444_800_000_u64;
    for (name, beat, until) in [("old", 0, far), ("future", far, far + 1_000), ("endless", now_ms(), far)] {
        let stranger = json!({
            "id": format!("member:{name}"), "instanceId": LEASES, "type": "member", "owner": name,
            "life": name, "beatAt": beat, "leaseUntil": until, "servesTurns": true, "servesWork": true,
            "ttl": 3600,
        });
        container.upsert_item(LEASES, &stranger, ItemOptions::default()).await.unwrap();
    }
    let shares = json!([{ "first": 0, "last": 255, "owner": "endless" }]);
    let table =
        json!({ "id": "slots", "instanceId": LEASES, "type": "slot_table", "epoch": 7, "shares": shares });
    container.upsert_item(LEASES, &table, ItemOptions::default()).await.unwrap();
    let one = open(named_as("one", account.calm())).await;
    join(&one).await;
    assert_eq!(account.shares().await, BTreeMap::from([("one".to_owned(), 256)]));
}

#[tokio::test]
async fn a_process_that_has_left_takes_part_again_when_it_fetches_again() {
    let account = Account::new();
    let one = open(named_as("one", account.calm())).await;
    join(&one).await;
    one.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = one.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert!(account.head("a").await.is_none(), "the lock is in memory");
    // In the middle of a turn, while another dispatcher waits.
    let waiting = one.fetch_orchestration_item(LOCK, Duration::from_secs(5), None);
    let leaving = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        one.shutdown().await;
    };
    assert!(futures::join!(waiting, leaving).0.unwrap().is_none());
    assert!(members(&account).await.is_empty());
    assert!(account.head("a").await.is_some_and(|head| head["lockToken"].is_string()), "it is written down");
    let work = vec![activity("a", 2)];
    one.ack_orchestration_item(&token, 1, vec![event("a", 1)], work, vec![], named(), vec![]).await.unwrap();
    // Nobody else may take anything for minutes, and nobody searches.
    let brief = Duration::from_secs(60);
    let fetched = one.fetch_work_item(LOCK, brief, None, &TagFilter::Any).await.unwrap();
    assert!(fetched.is_some(), "what it committed itself waits for nobody");
    one.enqueue_for_orchestrator(start("b", "Hello", ""), None).await.unwrap();
    assert!(one.fetch_orchestration_item(LOCK, brief, None).await.unwrap().is_some());
    assert_eq!(account.shares().await, BTreeMap::from([("one".to_owned(), 256)]));
    // Nobody asks any more.
    one.shutdown().await;
    assert!(members(&account).await.is_empty());
    assert!(account.head("b").await.is_none(), "the turn is given back");
}

#[tokio::test]
async fn an_instance_that_its_owner_cannot_run_is_said_to_be_passed_over() {
    let account = Account::new();
    let one = open(named_as("one", lively(&account))).await;
    let range = SemverRange::new("0.0.0".parse().unwrap(), "0.1.32".parse().unwrap());
    let old = DispatcherCapabilityFilter { supported_duroxide_versions: vec![range] };
    let since = now_ms() - 3_600_000;
    let head = json!({
        "id": "new:instance", "instanceId": "new", "type": "instance", "formatVersion": 2, "started": true,
        "orchestrationName": "Hello", "currentExecutionId": 1, "status": "Running", "createdAt": since,
        "updatedAt": since, "pinnedVersion": [9, 0, 0],
    });
    let container = behind(&account.config()).await;
    container.upsert_item("new", &head, ItemOptions::default()).await.unwrap();
    let mail = WorkItem::QueueMessage { instance: "new".into(), name: "q".into(), data: String::new() };
    let message = json!({
        "id": "mail", "instanceId": "new", "type": "orch_queue", "visibleAt": since, "enqueuedAt": since,
        "workItem": serde_json::to_string(&mail).unwrap(),
    });
    container.upsert_item("new", &message, ItemOptions::default()).await.unwrap();
    assert!(one.fetch_orchestration_item(LOCK, NOW, Some(&old)).await.unwrap().is_none());
    assert!(one.fetch_orchestration_item(LOCK, NOW, Some(&old)).await.unwrap().is_none());
    let begun = beat_at(&account, "one").await;
    until("it has told of itself a few times", async || beat_at(&account, "one").await > begun + 2_000).await;
    let passed = members(&account).await["one"]["passed"].as_u64().unwrap();
    assert!(passed > since + 60_000, "{passed}, and the message is due since {since}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_fires_in_time_whoever_set_it_and_whoever_owns_its_slot() {
    const INSTANCES: usize = 12;
    let account = Account::new();
    let mut providers = Vec::new();
    for name in ["one", "two"] {
        let provider = Arc::new(open(named_as(name, account.calm())).await);
        join(&provider).await;
        providers.push(provider);
    }
    until("both have their part", async || account.shares().await.values().all(|size| *size == 128)).await;
    until("somebody listens", async || !account.fleet("bell").await.is_empty()).await;
    let fired = Arc::new(Mutex::new(BTreeMap::new()));
    let mut running = tokio::task::JoinSet::new();
    for provider in &providers {
        let (provider, fired) = (Arc::clone(provider), Arc::clone(&fired));
        running.spawn(async move {
            loop {
                let fetched = provider.fetch_orchestration_item(LOCK, LOCK, None).await.unwrap();
                let Some((item, token, _)) = fetched else { continue };
                let is_timer = matches!(item.messages.first(), Some(WorkItem::TimerFired { .. }));
                let at = now_ms() + 8_000;
                let timer = WorkItem::TimerFired {
                    instance: item.instance.clone(),
                    execution_id: 1,
                    id: 2,
                    fire_at_ms: at,
                };
                let (events, timers) = if is_timer {
                    fired.lock().unwrap().insert(item.instance.clone(), now_ms());
                    (vec![event(&item.instance, 2)], vec![])
                } else {
                    (vec![event(&item.instance, 1)], vec![timer])
                };
                let acked =
                    provider.ack_orchestration_item(&token, 1, events, vec![], timers, named(), vec![]);
                acked.await.unwrap();
            }
        });
    }
    let client = open(account.config()).await;
    for n in 0..INSTANCES {
        client.enqueue_for_orchestrator(start(&format!("i{n}"), "Hello", ""), None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // Whoever searches does so in ten minutes.
    let begun = Instant::now();
    while fired.lock().unwrap().len() < INSTANCES {
        let so_far = fired.lock().unwrap().len();
        assert!(begun.elapsed() < Duration::from_secs(120), "{so_far} of {INSTANCES} timers have fired");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_activity_whose_lock_had_ended_at_its_renewal_is_never_acked_under_it() {
    let account = Account::new();
    let provider = open(account.calm()).await;
    join(&provider).await;
    provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let short = Duration::from_millis(200);
    let (_, token, _) = provider.fetch_work_item(short, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    tokio::time::sleep(short * 2).await;
    provider.renew_work_item_lock(&token, LOCK).await.unwrap_err();
    // The runtime takes the error for a cancellation and acks without a result; the clock may be right again by then.
    let error = provider.ack_work_item(&token, None).await.unwrap_err();
    assert!(error.message.contains("an earlier call with this token failed"), "{error}");
}
