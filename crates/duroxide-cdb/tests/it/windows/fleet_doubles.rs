//! The fleet, attacked again: ways in which two believe to own the same, and in which an activity runs twice although nobody
//! died. A process is a provider of its own here; one that can be frozen has a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cosmos_driver::ItemOptions;
use cosmos_emulator::{Config, Emulator, FaultRule, Operation, ReplicationDelay, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{DispatcherCapabilityFilter, Provider as _, SemverRange, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, slot_of};
use serde_json::json;

use super::{LOCK, NOW};
use crate::cut::Cut;
use crate::fleet::{Account, LEASES, join, named_as, open};
use crate::flows::{Machine, options};
use crate::tap::Tap;
use crate::world::{activity, behind, event, named, start, until};

async fn member_names(account: &Account) -> BTreeSet<String> {
    let members = account.fleet("member").await.into_iter();
    members.map(|member| member["owner"].as_str().unwrap().to_owned()).collect()
}

/// Commits the first turn of an instance, with one activity. The instance begins in this process.
async fn schedule(provider: &CosmosDBProvider, instance: &str) {
    provider.enqueue_for_orchestrator(start(instance, "Hello", ""), None).await.unwrap();
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, LOCK, None).await.unwrap().unwrap();
    assert_eq!(item.instance, instance);
    let work = vec![activity(instance, 2)];
    let acked =
        provider.ack_orchestration_item(&token, 1, vec![event(instance, 1)], work, vec![], named(), vec![]);
    acked.await.unwrap();
}

/// The first of the names `i0`, `i1`… whose instance is in one of these slots.
fn name_in(slots: std::ops::RangeInclusive<u8>) -> String {
    (0..).map(|n| format!("i{n}")).find(|name| slots.contains(&slot_of(name))).unwrap()
}

fn instance_of(item: &WorkItem) -> String {
    let WorkItem::ActivityExecute { instance, .. } = item else { panic!("{item:?}") };
    instance.clone()
}

#[tokio::test]
async fn two_that_come_under_one_name_at_the_same_moment_are_two() {
    let account = Account::new();
    let (one, two) =
        (open(named_as("same", account.calm())).await, open(named_as("same", account.calm())).await);
    // Each has looked who is there before the other has said that it is.
    let late = Verdict::Delay { duration: Duration::from_millis(700) };
    let faults = [Operation::UpsertItem, Operation::CreateItem].map(|operation| {
        account.emulator.faults().add(FaultRule::new(late.clone()).on(operation).for_key(LEASES))
    });
    // Nobody hears of tables, so nobody looks again.
    let deaf = [Operation::ReadItem, Operation::PatchItem].map(|operation| {
        account.emulator.faults().add(FaultRule::status(503, 0).on(operation).for_key(LEASES))
    });
    futures::join!(join(&one), join(&two));
    drop((faults, deaf));
    assert_eq!(member_names(&account).await.len(), 2, "nobody is somebody else");
}

#[tokio::test]
async fn who_comes_where_the_account_is_behind_takes_nothing_from_the_living() {
    let emulator = Emulator::start(Config::default().with_regions(&["East", "West"])).unwrap();
    let account = Account { emulator };
    let brief = CosmosDBProviderConfig { lease_duration: Duration::from_secs(1), ..account.calm() };
    let near = open(named_as("near", brief.clone())).await;
    join(&near).await;
    let regions = account.emulator.regions();
    until("all has arrived", async || regions.replication_lag("West").unwrap().commits == 0).await;
    account.emulator.regions().set_replication_delay(ReplicationDelay::everywhere(Duration::from_secs(600)));
    let mut far = named_as("far", brief);
    far.driver.regions.preferred = vec!["West".to_owned()];
    let far = open(far).await;
    // Where it reads, the last word of the other is older than a lease.
    tokio::time::sleep(Duration::from_secs(3)).await;
    join(&far).await;
    let shares = account.shares().await;
    assert!(shares.contains_key("near"), "{shares:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_was_frozen_takes_no_activity_before_it_has_heard_whose_it_is() {
    let account = Account::new();
    let config = CosmosDBProviderConfig {
        lease_duration: Duration::from_secs(2),
        steal_after: Duration::from_secs(600),
        ..account.config()
    };
    let is_thawed = Arc::new(AtomicBool::new(false));
    let slow = Arc::clone(&is_thawed);
    // What it asks about the fleet then takes a while.
    let tap = Tap::new(&account.emulator, move |asked| {
        let is_of_fleet =
            asked.header("x-ms-documentdb-partitionkey").is_some_and(|key| key.contains(LEASES));
        if is_of_fleet && slow.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(900));
        }
        None
    })
    .await;
    let wired = CosmosDBProviderConfig { endpoint: tap.endpoint.clone(), ..named_as("a", config.clone()) };
    let (freeze, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let taken = Arc::new(Mutex::new(Vec::new()));
    let end = Arc::new(AtomicBool::new(false));
    let process = {
        let (freeze, begun, taken, end) =
            (Arc::clone(&freeze), Arc::clone(&begun), Arc::clone(&taken), Arc::clone(&end));
        let is_thawed = Arc::clone(&is_thawed);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let provider = open(wired).await;
                join(&provider).await;
                begun.store(true, Ordering::SeqCst);
                let brief = Duration::from_millis(50);
                while !end.load(Ordering::SeqCst) {
                    let work = provider.fetch_work_item(LOCK, brief, None, &TagFilter::Any).await.unwrap();
                    taken.lock().unwrap().extend(work.map(|(item, ..)| instance_of(&item)));
                    if freeze.swap(false, Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_secs(8));
                        is_thawed.store(true, Ordering::SeqCst);
                    }
                }
            });
        })
    };
    until("it has begun", async || begun.load(Ordering::SeqCst)).await;
    let other = open(named_as("b", config)).await;
    join(&other).await;
    until("both have their part", async || account.shares().await.values().all(|size| *size == 128)).await;
    freeze.store(true, Ordering::SeqCst);
    until("the other has everything", async || account.shares().await.get("b") == Some(&256)).await;
    // The other has run one of these, so that it keeps the lock of the next in memory.
    let name = name_in(0..=100);
    let before = format!("before {name}");
    schedule(&other, &before).await;
    let any = &TagFilter::Any;
    let (_, token, _) = other.fetch_work_item(LOCK, LOCK, None, any).await.unwrap().unwrap();
    other.ack_work_item(&token, None).await.unwrap();
    schedule(&other, &name).await;
    let (item, ..) = other.fetch_work_item(LOCK, LOCK, None, any).await.unwrap().unwrap();
    assert_eq!(instance_of(&item), name);
    assert!(!is_thawed.load(Ordering::SeqCst), "it was in time");
    until("the other is back", async || is_thawed.load(Ordering::SeqCst)).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    end.store(true, Ordering::SeqCst);
    process.join().unwrap();
    assert_eq!(*taken.lock().unwrap(), Vec::<String>::new(), "it is in another's hands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activity_that_holds_up_its_whole_process_runs_once() {
    let account = Account::new();
    let config = CosmosDBProviderConfig {
        lease_duration: Duration::from_secs(2),
        steal_after: Duration::from_secs(1),
        ..account.config()
    };
    let other = open(named_as("b", config.clone())).await;
    join(&other).await;
    let taken = Arc::new(Mutex::new(Vec::new()));
    let (is_held_up, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let process = {
        let (taken, is_held_up, end) = (Arc::clone(&taken), Arc::clone(&is_held_up), Arc::clone(&end));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let provider = open(named_as("a", config)).await;
                join(&provider).await;
                // Until it is known that this process runs activities, locks are written in any case.
                tokio::time::sleep(Duration::from_secs(4)).await;
                schedule(&provider, &name_in(0..=127)).await;
                let any = &TagFilter::Any;
                let (item, token, _) =
                    provider.fetch_work_item(LOCK, LOCK, None, any).await.unwrap().unwrap();
                taken.lock().unwrap().push(instance_of(&item));
                is_held_up.store(true, Ordering::SeqCst);
                // As code does that computes for long, or waits without `await`.
                std::thread::sleep(Duration::from_secs(10));
                let acked = provider.ack_work_item(&token, None).await;
                end.store(true, Ordering::SeqCst);
                acked.unwrap();
            });
        })
    };
    while !end.load(Ordering::SeqCst) {
        let brief = Duration::from_millis(100);
        let work = other.fetch_work_item(LOCK, brief, None, &TagFilter::Any).await.unwrap();
        taken.lock().unwrap().extend(work.map(|(item, ..)| instance_of(&item)));
    }
    process.join().unwrap();
    assert_eq!(taken.lock().unwrap().len(), 1, "{taken:?}");
}

#[tokio::test]
async fn a_turn_that_is_given_back_while_its_lock_is_being_written_is_free() {
    let account = Account::new();
    let config = CosmosDBProviderConfig { steal_after: Duration::from_secs(4), ..account.calm() };
    let provider = open(config).await;
    join(&provider).await;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let late = Verdict::Delay { duration: Duration::from_millis(500) };
    let fault = account.emulator.faults().add(FaultRule::new(late).on(Operation::CreateItem).for_key("a"));
    until("its lock is being written", async || fault.struck() == 1).await;
    provider.abandon_orchestration_item(&token, None, true).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(fault);
    let head = account.head("a").await;
    let locked = head.as_ref().is_some_and(|head| head["lockToken"].is_string());
    assert!(!locked, "{head:?}");
    let again = provider.fetch_orchestration_item(LOCK, Duration::from_secs(5), None).await.unwrap();
    assert_eq!(again.map(|(.., attempts)| attempts), Some(1));
}

#[tokio::test]
async fn who_knows_that_a_member_has_ended_tells_the_others() {
    let account = Account::new();
    let one = open(named_as("one", account.calm())).await;
    join(&one).await;
    let machine = account.fleet("member").await[0]["machine"].as_str().unwrap().to_owned();
    if machine.is_empty() {
        return;
    }
    let now = account.fleet("member").await[0]["beatAt"].as_u64().unwrap();
    let dead = json!({
        "id": "member:dead", "instanceId": LEASES, "type": "member", "owner": "dead", "life": "x", "joinedAt": now,
        "beatAt": now, "leaseUntil": now + 600_000, "servesTurns": true, "servesWork": true, "machine": machine,
        "process": u32::MAX, "ttl": 3600,
    });
    behind(&account.config()).await.upsert_item(LEASES, &dead, ItemOptions::default()).await.unwrap();
    let two = open(named_as("two", account.calm())).await;
    join(&two).await;
    // On other machines nobody can tell before its lease ends, and would ask for its slots in its name.
    assert_eq!(member_names(&account).await, BTreeSet::from(["one".to_owned(), "two".to_owned()]));
}

#[tokio::test]
async fn a_process_whose_runtime_has_ended_keeps_no_slots() {
    let account = Account::new();
    let brief = CosmosDBProviderConfig { lease_duration: Duration::from_secs(1), ..account.config() };
    let ended = open(named_as("ended", brief.clone())).await;
    join(&ended).await;
    let other = Machine::start(open(named_as("other", brief)).await, options(Duration::from_secs(5))).await;
    until("the other has everything", async || {
        account.shares().await == BTreeMap::from([("other".to_owned(), 256)])
    })
    .await;
    // It may go on as a client, and may come back.
    assert_eq!(other.run("a", "Hello", "Ann").await, "Hello, Ann!");
    assert!(ended.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    until("it is there again", async || member_names(&account).await.len() == 2).await;
    other.stop().await;
}

#[tokio::test]
async fn the_last_ring_of_a_client_that_shuts_down_is_heard() {
    let account = Account::new();
    let member = open(named_as("one", account.calm())).await;
    join(&member).await;
    until("somebody listens", async || !account.fleet("bell").await.is_empty()).await;
    let client = open(account.config()).await;
    let cut = Cut::new(&account.emulator).await;
    drop(client);
    let client = open(CosmosDBProviderConfig { endpoint: cut.endpoint.clone(), ..account.config() }).await;
    let late = Verdict::Delay { duration: Duration::from_millis(300) };
    let _fault = account.emulator.faults().add(FaultRule::new(late).on(Operation::PatchItem).for_key(LEASES));
    client.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    client.shutdown().await;
    // The process ends.
    cut.sever();
    let begun = Instant::now();
    let fetched = member.fetch_orchestration_item(LOCK, Duration::from_secs(20), None).await.unwrap();
    assert!(fetched.is_some(), "not heard within {:?}", begun.elapsed());
}

#[tokio::test]
async fn work_that_kills_its_process_is_counted_from_the_second_death_on() {
    let account = Account::new();
    let brief = CosmosDBProviderConfig {
        lease_duration: Duration::from_secs(1),
        steal_after: Duration::from_secs(1),
        ..account.config()
    };
    let client = open(account.config()).await;
    let short = Duration::from_secs(1);
    let mut attempts = Vec::new();
    for death in 0..4 {
        let cut = Cut::new(&account.emulator).await;
        let wired = CosmosDBProviderConfig { endpoint: cut.endpoint.clone(), ..named_as("w", brief.clone()) };
        let provider = open(wired).await;
        if death == 0 {
            join(&provider).await;
            client.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        }
        let fetched = provider.fetch_orchestration_item(short, LOCK, None).await.unwrap().unwrap();
        attempts.push(fetched.2);
        cut.sever();
    }
    assert_eq!(attempts[1..], [attempts[0], attempts[0] + 1, attempts[0] + 2], "{attempts:?}");
}

#[tokio::test]
async fn what_the_owner_of_a_slot_cannot_run_comes_back_to_who_sent_it_and_can() {
    let account = Account::new();
    let (old, new) = (open(named_as("a", account.calm())).await, open(named_as("b", account.calm())).await);
    let range = SemverRange::new("0.0.0".parse().unwrap(), "0.1.32".parse().unwrap());
    let filter = DispatcherCapabilityFilter { supported_duroxide_versions: vec![range] };
    assert!(old.fetch_orchestration_item(LOCK, NOW, Some(&filter)).await.unwrap().is_none());
    join(&new).await;
    until("both have their part", async || account.shares().await.values().all(|size| *size == 128)).await;
    let name = name_in(0..=127);
    let head = json!({
        "id": format!("{name}:instance"), "instanceId": name, "type": "instance", "formatVersion": 2,
        "started": true, "orchestrationName": "Hello", "currentExecutionId": 1, "status": "Running",
        "createdAt": 1, "updatedAt": 1, "pinnedVersion": [9, 0, 0],
    });
    behind(&account.config()).await.upsert_item(name.as_str(), &head, ItemOptions::default()).await.unwrap();
    // Both listen from now on; nobody searches any more.
    until("somebody listens", async || !account.fleet("bell").await.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let wait = Duration::from_secs(20);
    let sent = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        new.enqueue_for_orchestrator(super::mail(&name, "m"), None).await.unwrap();
    };
    let asking = async {
        tokio::select! {
            _ = old.fetch_orchestration_item(LOCK, wait, Some(&filter)) => None,
            fetched = new.fetch_orchestration_item(LOCK, wait, None) => fetched.unwrap(),
        }
    };
    let (fetched, ()) = futures::join!(asking, sent);
    assert_eq!(fetched.map(|(item, ..)| item.instance), Some(name));
}
