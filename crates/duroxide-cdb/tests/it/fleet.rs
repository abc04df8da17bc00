//! Several processes on one container. A process is a provider of its own here.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::{Config, Emulator, Operation};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, WorkItem};
use duroxide::runtime::RuntimeOptions;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, NoLeases};
use serde_json::{Value, json};

use crate::cut::Cut;
use crate::effects::Effects;
use crate::flows::{Machine, options};
use crate::windows::{LOCK, NOW};
use crate::world::{activity, behind, documents, event, named, start, until};

pub(crate) const LEASES: &str = "__leases__";

/// An emulator of its own, so that its ledger counts nothing else.
pub(crate) struct Account {
    pub(crate) emulator: Emulator,
}

impl Account {
    pub(crate) fn new() -> Self {
        Self { emulator: Emulator::start(Config::default()).unwrap() }
    }

    pub(crate) fn config(&self) -> CosmosDBProviderConfig {
        CosmosDBProviderConfig::new(self.emulator.endpoint(), self.emulator.key())
    }

    /// Settings under which nothing happens by itself within a test: leases last, and nobody searches but once.
    pub(crate) fn calm(&self) -> CosmosDBProviderConfig {
        CosmosDBProviderConfig {
            lease_duration: Duration::from_secs(600),
            steal_after: Duration::from_secs(600),
            poll_interval_min: Duration::from_secs(600),
            poll_interval_max: Duration::from_secs(600),
            ..self.config()
        }
    }

    /// The documents of the fleet of one type.
    pub(crate) async fn fleet(&self, kind: &str) -> Vec<Value> {
        let mut documents = documents(&behind(&self.config()).await, LEASES).await;
        documents.retain(|document| document["type"] == kind);
        documents
    }

    /// How many slots each member has.
    pub(crate) async fn shares(&self) -> BTreeMap<String, u64> {
        let mut sizes = BTreeMap::new();
        for table in self.fleet("slot_table").await {
            for share in table["shares"].as_array().unwrap() {
                let size = share["last"].as_u64().unwrap() - share["first"].as_u64().unwrap() + 1;
                *sizes.entry(share["owner"].as_str().unwrap().to_owned()).or_default() += size;
            }
        }
        sizes
    }

    pub(crate) async fn head(&self, instance: &str) -> Option<Value> {
        let all = documents(&behind(&self.config()).await, instance).await;
        all.into_iter().find(|document| document["type"] == "instance")
    }
}

pub(crate) async fn open(config: CosmosDBProviderConfig) -> CosmosDBProvider {
    CosmosDBProvider::new_with_config(config).await.unwrap()
}

pub(crate) fn named_as(owner: &str, config: CosmosDBProviderConfig) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig { owner: owner.to_owned(), ..config }
}

/// A process that takes what it likes, whoever owns it.
async fn intruder(account: &Account) -> CosmosDBProvider {
    open(CosmosDBProviderConfig { leases: Some(Arc::new(NoLeases)), ..account.config() }).await
}

/// Lets a provider take part.
pub(crate) async fn join(provider: &CosmosDBProvider) {
    // As a runtime does: dispatchers and workers at once.
    let (turn, work) = futures::join!(
        provider.fetch_orchestration_item(LOCK, NOW, None),
        provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any)
    );
    assert!(turn.unwrap().is_none() && work.unwrap().is_none());
}

fn done(instance: &str, id: u64) -> WorkItem {
    WorkItem::ActivityCompleted { instance: instance.into(), execution_id: 1, id, result: String::new() }
}

#[tokio::test]
async fn what_a_member_does_not_fetch_is_taken_by_another_within_half_a_minute() {
    let account = Account::new();
    let stuck = open(named_as("stuck", account.config())).await;
    join(&stuck).await;
    let other = open(named_as("other", account.config())).await;
    join(&other).await;
    until("both have their part", async || account.shares().await.len() == 2).await;
    // It lives and says so, but all its dispatchers are busy for ever: nobody fetches there any more.
    let sent = std::time::Instant::now();
    for number in 0..8 {
        other.enqueue_for_orchestrator(start(&format!("i{number}"), "Hello", ""), None).await.unwrap();
        let message = WorkItem::QueueMessage {
            instance: format!("i{number}"),
            name: "mail".into(),
            data: String::new(),
        };
        stuck.enqueue_for_orchestrator(message, None).await.unwrap();
    }
    let mut taken = BTreeMap::new();
    while taken.len() < 8 {
        let fetched = other.fetch_orchestration_item(LOCK * 60, Duration::from_secs(5), None).await.unwrap();
        if let Some((item, ..)) = fetched {
            taken.insert(item.instance, sent.elapsed());
        }
        assert!(sent.elapsed() < Duration::from_secs(30), "after half a minute: {taken:?}");
    }
}

#[tokio::test]
async fn an_activity_is_handed_out_once_whoever_ran_the_turn_that_wrote_it() {
    let account = Account::new();
    let (one, two) = (open(account.config()).await, open(account.config()).await);
    join(&one).await;
    join(&two).await;
    until("both have their part", async || account.shares().await.len() == 2).await;
    let given = std::sync::Mutex::new(Vec::new());
    let until = tokio::time::Instant::now() + Duration::from_secs(4);
    // Workers that have nothing to do, in both; one of the two runs all turns, also of what is the other's.
    let work = async |provider: &CosmosDBProvider| {
        while let Some(left) = until.checked_duration_since(tokio::time::Instant::now()) {
            let fetched = provider.fetch_work_item(LOCK, left, None, &TagFilter::default()).await.unwrap();
            if let Some((WorkItem::ActivityExecute { instance, .. }, ..)) = fetched {
                given.lock().unwrap().push(instance);
            }
        }
    };
    let turns = async {
        let starts = (0..40).map(|number| start(&format!("i{number}"), "Hello", ""));
        let sends = starts.map(|item| one.enqueue_for_orchestrator(item, None));
        futures::future::try_join_all(sends).await.unwrap();
        while let Some(left) = until.checked_duration_since(tokio::time::Instant::now()) {
            let fetched = one.fetch_orchestration_item(LOCK, left.min(Duration::from_millis(100)), None);
            let Some((item, token, _)) = fetched.await.unwrap() else { continue };
            let events = vec![event(&item.instance, 1)];
            let works = vec![activity(&item.instance, 2)];
            one.ack_orchestration_item(&token, 1, events, works, vec![], named(), vec![]).await.unwrap();
        }
    };
    futures::join!(turns, work(&one), work(&one), work(&two), work(&two));
    let mut given = given.into_inner().unwrap();
    given.sort();
    let count = given.len();
    given.dedup();
    assert!(count > 10, "{count} activities ran");
    assert_eq!(given.len(), count, "each was handed out once");
}

#[tokio::test]
async fn members_share_the_slots_and_one_that_leaves_hands_its_own_over_at_once() {
    let account = Account::new();
    let one = open(named_as("one", account.calm())).await;
    join(&one).await;
    assert_eq!(account.shares().await, BTreeMap::from([("one".to_owned(), 256)]));
    let two = open(named_as("two", account.calm())).await;
    join(&two).await;
    // The first one hears of the second by the bell: its next heartbeat would come in minutes.
    let half = |name: &str| (name.to_owned(), 128);
    until("both have their part", async || {
        account.shares().await == BTreeMap::from([half("one"), half("two")])
    })
    .await;
    one.shutdown().await;
    assert_eq!(account.shares().await, BTreeMap::from([("two".to_owned(), 256)]));
    assert_eq!(account.fleet("member").await.len(), 1);
    two.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    assert!(two.fetch_orchestration_item(LOCK, LOCK, None).await.unwrap().is_some());
}

#[tokio::test]
async fn who_only_starts_and_reads_takes_no_part() {
    let account = Account::new();
    let client = open(account.config()).await;
    client.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    assert!(client.read("a").await.unwrap().is_empty());
    assert!(account.fleet("member").await.is_empty() && account.fleet("slot_table").await.is_empty());
}

#[tokio::test]
async fn what_another_process_writes_is_heard_without_a_search() {
    let account = Account::new();
    let member = open(account.calm()).await;
    join(&member).await;
    // The first look at the bell is not news.
    until("somebody listens", async || !account.fleet("bell").await.is_empty()).await;
    let client = open(account.config()).await;
    for n in 0..3 {
        let instance = format!("i{n}");
        until("it was heard", async || {
            // A ring before the first look is found by the first search, which was made before it.
            client.enqueue_for_orchestrator(start(&instance, "Hello", ""), None).await.unwrap();
            let wait = Duration::from_secs(3);
            member.fetch_orchestration_item(LOCK, wait, None).await.unwrap().is_some()
        })
        .await;
    }
    client.enqueue_for_worker(activity("i0", 1)).await.unwrap();
    let taken = member.fetch_work_item(LOCK, LOCK, None, &TagFilter::Any).await.unwrap();
    assert!(taken.is_some(), "a ring for an activity is followed by a search");
}

#[tokio::test]
async fn fresh_work_of_an_own_slot_is_locked_and_done_without_a_write_of_the_lock() {
    let account = Account::new();
    let provider = open(account.calm()).await;
    join(&provider).await;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, attempt) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!((attempt, account.head("a").await), (1, None), "nothing is stored");
    let again = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
    assert!(again.is_none(), "it is locked all the same");
    let work = vec![activity("a", 2)];
    let events = vec![event("a", 1)];
    provider.ack_orchestration_item(&token, 1, events, work, vec![], named(), vec![]).await.unwrap();
    let any = &TagFilter::Any;
    let (_, token, attempt) = provider.fetch_work_item(LOCK, NOW, None, any).await.unwrap().unwrap();
    assert_eq!(attempt, 1);
    assert!(provider.fetch_work_item(LOCK, NOW, None, any).await.unwrap().is_none());
    provider.ack_work_item(&token, Some(done("a", 2))).await.unwrap();
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!((item.messages.len(), item.history.len()), (1, 1));
    provider
        .ack_orchestration_item(&token, 1, vec![event("a", 2)], vec![], vec![], named(), vec![])
        .await
        .unwrap();
    assert_eq!(provider.read("a").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_lock_in_memory_is_written_before_others_may_take_the_work() {
    let account = Account::new();
    let config = CosmosDBProviderConfig { steal_after: Duration::from_secs(20), ..account.calm() };
    let provider = open(config).await;
    join(&provider).await;
    for name in ["new", "old"] {
        provider.enqueue_for_orchestrator(start(name, "Hello", ""), None).await.unwrap();
    }
    // One has a head already, one has not.
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let first = item.instance;
    let work = vec![activity(&first, 2)];
    provider
        .ack_orchestration_item(&token, 1, vec![event(&first, 1)], work, vec![], named(), vec![])
        .await
        .unwrap();
    let (_, work, _) = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    let mail = WorkItem::QueueMessage { instance: first.clone(), name: "q".into(), data: String::new() };
    provider.enqueue_for_orchestrator(mail, None).await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        tokens.push(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap());
    }
    until("all locks are stored", async || {
        let mut locked = 0;
        for name in ["new", "old"] {
            let all = documents(&behind(&account.config()).await, name).await;
            locked += all.iter().filter(|document| document["lockToken"].is_string()).count();
        }
        locked == 3
    })
    .await;
    for (item, token, _) in tokens {
        let last = item.history.len() as u64;
        let events = vec![event(&item.instance, last + 1)];
        provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![]).await.unwrap();
    }
    provider.renew_work_item_lock(&work, LOCK).await.unwrap();
    provider.ack_work_item(&work, Some(done(&first, 2))).await.unwrap();
}

#[tokio::test]
async fn what_others_have_done_meanwhile_is_not_done_again_under_a_lock_in_memory() {
    let account = Account::new();
    let frozen = open(account.calm()).await;
    join(&frozen).await;
    frozen.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = frozen.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let other = intruder(&account).await;
    let (_, theirs, _) = other.fetch_orchestration_item(LOCK, LOCK, None).await.unwrap().unwrap();
    let work = vec![activity("a", 2)];
    other
        .ack_orchestration_item(&theirs, 1, vec![event("a", 1)], work, vec![], named(), vec![])
        .await
        .unwrap();
    let twice = vec![activity("a", 2), activity("a", 3)];
    let late = frozen.ack_orchestration_item(&token, 1, vec![event("a", 1)], twice, vec![], named(), vec![]);
    let error = late.await.unwrap_err();
    assert!(!error.retryable && error.message.contains("Invalid lock token"), "{error}");
    assert_eq!(frozen.read("a").await.unwrap().len(), 1, "nothing was committed twice");
    // The same with an activity, and with a turn of an instance that has begun.
    let any = &TagFilter::Any;
    let (_, theirs, _) = other.fetch_work_item(LOCK, LOCK, None, any).await.unwrap().unwrap();
    other.ack_work_item(&theirs, Some(done("a", 2))).await.unwrap();
    let (item, theirs, _) = other.fetch_orchestration_item(LOCK, LOCK, None).await.unwrap().unwrap();
    assert_eq!(item.messages.len(), 1, "one completion");
    other
        .ack_orchestration_item(&theirs, 1, vec![event("a", 2)], vec![], vec![], named(), vec![])
        .await
        .unwrap();
    assert_eq!(other.read("a").await.unwrap().len(), 2);
    frozen.enqueue_for_orchestrator(start("b", "Hello", ""), None).await.unwrap();
    let (_, theirs, _) = frozen.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let work = vec![activity("b", 2)];
    let committing =
        frozen.ack_orchestration_item(&theirs, 1, vec![event("b", 1)], work, vec![], named(), vec![]);
    committing.await.unwrap();
    let (_, token, _) = frozen.fetch_work_item(LOCK, NOW, None, any).await.unwrap().unwrap();
    let (_, theirs, _) = other.fetch_work_item(LOCK, LOCK, None, any).await.unwrap().unwrap();
    other.ack_work_item(&theirs, Some(done("b", 2))).await.unwrap();
    let error = frozen.ack_work_item(&token, Some(done("b", 2))).await.unwrap_err();
    assert!(!error.retryable, "{error}");
    let completions = documents(&behind(&account.config()).await, "b")
        .await
        .iter()
        .filter(|d| d["type"] == "orch_queue")
        .count();
    assert_eq!(completions, 1, "one completion");
}

#[tokio::test]
async fn a_member_that_dies_without_a_word_is_followed_by_another() {
    let account = Account::new();
    let brief = CosmosDBProviderConfig {
        lease_duration: Duration::from_secs(2),
        steal_after: Duration::from_millis(500),
        ..account.config()
    };
    let cut = Cut::new(&account.emulator).await;
    let wired = CosmosDBProviderConfig { endpoint: cut.endpoint.clone(), ..named_as("dead", brief.clone()) };
    let dead = Machine::start(open(wired).await, options(Duration::from_secs(2))).await;
    dead.run("before", "Hello", "Ann").await;
    let alive = Machine::start(open(named_as("alive", brief)).await, options(Duration::from_secs(2))).await;
    cut.sever();
    dead.die().await;
    for n in 0..20 {
        alive.client.start_orchestration(format!("i{n}"), "Hello", "Ann").await.unwrap();
    }
    for n in 0..20 {
        assert_eq!(alive.output(&format!("i{n}")).await, "Hello, Ann!");
    }
    until("its slots are the other's", async || {
        account.shares().await == BTreeMap::from([("alive".to_owned(), 256)])
    })
    .await;
    alive.stop().await;
}

#[tokio::test]
async fn a_wide_fan_out_is_everybodys() {
    let account = Account::new();
    let effects = [Arc::new(Effects::default()), Arc::new(Effects::default())];
    let mut machines = Vec::new();
    for (n, effects) in effects.iter().enumerate() {
        let provider = open(named_as(&format!("m{n}"), account.config())).await;
        let machine = Machine::with_effects(provider, options(LOCK), Arc::clone(effects));
        machines.push(machine.await);
    }
    until("both have their part", async || account.shares().await.values().all(|size| *size == 128)).await;
    let width = 120_u64;
    let output = machines[0].run("x", "FanOut", &width.to_string()).await;
    assert_eq!(output, (0..width).map(|n| n * n).sum::<u64>().to_string());
    let runs = effects.each_ref().map(|effects| effects.runs("Square"));
    assert!(runs.iter().all(|runs| *runs >= 30), "{runs:?}");
    for machine in machines {
        machine.stop().await;
    }
}

#[tokio::test]
async fn members_do_not_race_for_a_backlog() {
    const ORCHESTRATIONS: u64 = 60;
    let account = Account::new();
    let client = open(account.config()).await;
    let mut machines = Vec::new();
    for n in 0..3 {
        let provider = open(named_as(&format!("m{n}"), account.config())).await;
        machines.push(Machine::start(provider, RuntimeOptions::default()).await);
    }
    until("all have their part", async || {
        let shares = account.shares().await;
        shares.len() == 3 && shares.values().all(|size| *size >= 85)
    })
    .await;
    account.emulator.ledger().reset();
    for n in 0..ORCHESTRATIONS {
        client.enqueue_for_orchestrator(start(&format!("i{n}"), "Hello", "Ann"), None).await.unwrap();
    }
    for n in 0..ORCHESTRATIONS {
        assert_eq!(machines[0].output(&format!("i{n}")).await, "Hello, Ann!");
    }
    let lines = account.emulator.ledger().snapshot().recent;
    let refused = lines.iter().filter(|line| matches!(line.status, 409 | 412)).count() as u64;
    assert!(refused <= ORCHESTRATIONS / 6, "{refused} writes were refused");
    for machine in machines {
        machine.stop().await;
    }
}

#[tokio::test]
async fn work_goes_on_whatever_is_in_the_place_of_the_fleets_documents() {
    let account = Account::new();
    // The container is there.
    drop(open(account.config()).await);
    let container = behind(&account.config()).await;
    let far = 4_102_444_800_000_u64;
    let strange = [
        json!({ "id": "slots", "instanceId": LEASES, "type": "slot_table", "shares": "all", "epoch": {} }),
        json!({ "id": "bell", "instanceId": LEASES, "type": "bell", "rings": 5 }),
        json!({ "id": "member:a", "instanceId": LEASES, "type": "member", "owner": 7 }),
        json!({ "id": "member:b", "instanceId": LEASES, "type": "member", "owner": "b", "ttl": 9,
                "leaseUntil": far, "beatAt": 0 }),
    ];
    for document in &strange {
        container.upsert_item(LEASES, document, ItemOptions::default()).await.unwrap();
    }
    let brief = CosmosDBProviderConfig { steal_after: Duration::from_millis(300), ..account.config() };
    let machine = Machine::start(open(named_as("real", brief.clone())).await, options(LOCK)).await;
    let twin = Machine::start(open(named_as("real", brief)).await, options(LOCK)).await;
    for n in 0..10 {
        assert_eq!(machine.run(&format!("i{n}"), "Hello", "Ann").await, "Hello, Ann!");
    }
    for document in ["slots", "bell", "member:real"] {
        drop(container.delete_item(LEASES, document, ItemOptions::default()).await);
    }
    for n in 10..20 {
        assert_eq!(twin.run(&format!("i{n}"), "Hello", "Ann").await, "Hello, Ann!");
    }
    machine.stop().await;
    twin.stop().await;
}

#[tokio::test]
async fn a_member_that_runs_no_activities_hides_none() {
    let account = Account::new();
    let turns = RuntimeOptions { worker_concurrency: 0, ..options(LOCK) };
    let work = RuntimeOptions { orchestration_concurrency: 0, ..options(LOCK) };
    let turns = Machine::start(open(named_as("turns", account.config())).await, turns).await;
    let work = Machine::start(open(named_as("work", account.config())).await, work).await;
    for n in 0..8 {
        assert_eq!(turns.run(&format!("i{n}"), "Hello", "Ann").await, "Hello, Ann!");
    }
    turns.stop().await;
    work.stop().await;
}

/// Of two members one puts off whatever it gets, as a runtime does that lacks the handlers while a deployment is under way.
/// The other waits for work and returns what it got first.
async fn taken_from_who_puts_off<T>(
    give: impl AsyncFn(&CosmosDBProvider),
    put_off: impl AsyncFn(&CosmosDBProvider) -> bool,
    take: impl AsyncFn(&CosmosDBProvider) -> Option<T>,
) -> (T, usize) {
    let account = Account::new();
    let (old, new) =
        (open(named_as("old", account.config())).await, open(named_as("new", account.config())).await);
    join(&old).await;
    join(&new).await;
    until("both have their part", async || account.shares().await.len() == 2).await;
    give(&old).await;
    // The new one comes too late for the first time, whoever the owner is.
    until("it is put off", async || put_off(&old).await).await;
    let (is_taken, times) = (Cell::new(false), Cell::new(0));
    let putting_off = async {
        while !is_taken.get() {
            times.set(times.get() + usize::from(put_off(&old).await));
            assert!(times.get() < 3, "nobody else gets it");
        }
    };
    let taking = async {
        loop {
            if let Some(taken) = take(&new).await {
                is_taken.set(true);
                return taken;
            }
        }
    };
    let (taken, ()) = futures::join!(taking, putting_off);
    (taken, times.get())
}

#[tokio::test]
async fn a_turn_that_one_member_puts_off_comes_to_the_others_before_it_comes_back() {
    let poll = Duration::from_secs(1);
    for number in 0..2 {
        let instance = format!("i{number}");
        let (taken, times) = taken_from_who_puts_off(
            async |one| one.enqueue_for_orchestrator(start(&instance, "Hello", ""), None).await.unwrap(),
            async |old| {
                let Some((_, token, _)) = old.fetch_orchestration_item(LOCK, poll, None).await.unwrap()
                else {
                    return false;
                };
                old.abandon_orchestration_item(&token, Some(Duration::from_millis(300)), false)
                    .await
                    .unwrap();
                true
            },
            async |new| new.fetch_orchestration_item(LOCK, poll, None).await.unwrap(),
        )
        .await;
        assert_eq!((taken.0.instance, times), (instance, 0));
    }
}

#[tokio::test]
async fn an_activity_that_one_member_puts_off_comes_to_the_others_before_it_comes_back() {
    let poll = Duration::from_secs(1);
    for number in 0..2 {
        let instance = format!("i{number}");
        let ((item, ..), times) = taken_from_who_puts_off(
            async |one| one.enqueue_for_worker(activity(&instance, 1)).await.unwrap(),
            async |old| {
                let fetched = old.fetch_work_item(LOCK, poll, None, &TagFilter::Any).await.unwrap();
                let Some((_, token, _)) = fetched else { return false };
                old.abandon_work_item(&token, Some(Duration::from_millis(300)), false).await.unwrap();
                true
            },
            async |new| new.fetch_work_item(LOCK, poll, None, &TagFilter::Any).await.unwrap(),
        )
        .await;
        assert_eq!((item, times), (activity(&instance, 1), 0));
    }
}

#[tokio::test]
async fn a_lone_member_pays_its_heartbeat_and_its_looks() {
    let account = Account::new();
    let provider =
        open(CosmosDBProviderConfig { lease_duration: Duration::from_secs(10), ..account.calm() }).await;
    join(&provider).await;
    account.emulator.ledger().reset();
    tokio::time::sleep(Duration::from_secs(9)).await;
    let spent = account.emulator.ledger().snapshot();
    let totals = spent.totals;
    // Three heartbeats, one of them with a look at the members, and a look at the bell each second.
    assert!(totals.requests <= 9 + 6 + 4, "{} requests", totals.requests);
    assert!(spent.operation(Operation::Batch).requests >= 1, "nobody has heard of it");
}
