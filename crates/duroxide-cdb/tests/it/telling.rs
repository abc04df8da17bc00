//! What a process tells of itself: logs and metrics say what happened and to whom, and never a secret.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cosmos_driver::ItemOptions;
use cosmos_emulator::{Config, Emulator, FaultRule, Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::Provider as _;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};
use serde_json::json;
use tracing::subscriber::DefaultGuard;

use crate::flows::{Machine, options};
use crate::tap::Tap;
use crate::windows::{LOCK, NOW, mail, place, status};
use crate::world::{activity, config, emulator, fresh_name, raw, start};

/// Everything that is logged on this thread, which is where a test and all its tasks run.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn listen() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Whether one line says all of this.
    fn has(&self, words: &[&str]) -> bool {
        self.text().lines().any(|line| words.iter().all(|word| line.contains(word)))
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn neither_the_key_nor_what_is_signed_with_it_is_told() {
    let (log, _listening) = Log::listen();
    let account = Emulator::start(Config::default()).unwrap();
    let tap = Tap::new(&account, |_| None).await;
    let key = account.key();
    let config = CosmosDBProviderConfig::new(&tap.endpoint, key);
    let provider = CosmosDBProvider::new_with_config(config.clone()).await.unwrap();
    let mut shown = format!("{config:?} {config:#?} {provider:?} {provider:#?}");

    let machine = Machine::start(provider.clone(), options(Duration::from_secs(30))).await;
    assert_eq!(machine.run("a", "Hello", "Ann").await, "Hello, Ann!");
    machine.stop().await;

    let wrong = STANDARD.encode("a key that is wrong but could be one");
    let broken = "no-key-at-all!";
    for key in [wrong.as_str(), broken] {
        let refused = CosmosDBProvider::new(&tap.endpoint, key, "flows").await.expect_err("refused");
        shown += &format!("{refused} {refused:?}");
    }
    for rule in [FaultRule::status(401, 0), FaultRule::status(403, 0), FaultRule::status(500, 0)] {
        let fault = account.faults().add(rule.on(Operation::CreateItem).times(3));
        if let Err(refused) = provider.enqueue_for_orchestrator(start("b", "Hello", ""), None).await {
            shown += &format!("{refused} {refused:?}");
        }
        assert!(fault.struck() > 0);
    }

    let told = log.text() + &shown;
    assert!(told.contains("Hello") && told.contains("enqueue_for_orchestrator"), "nobody listens");
    let bytes = format!("{:?}", &STANDARD.decode(key).unwrap()[..8]);
    for secret in [key, wrong.as_str(), broken, bytes.trim_end_matches(']')] {
        assert!(!told.contains(secret), "{secret} is told");
    }
    let asked = tap.asked();
    let headers: Vec<&str> = asked.iter().filter_map(|asked| asked.header("authorization")).collect();
    assert!(headers.len() > 20, "{headers:?}");
    for header in headers {
        let plain = cosmos_wire::resource::percent_decode(header).unwrap();
        let (_, signature) = plain.split_once("sig=").unwrap();
        assert!(!told.contains(header) && !told.contains(signature), "{header} is told");
    }
}

#[tokio::test]
async fn trouble_is_told_with_the_operation_and_the_instance() {
    let (log, _listening) = Log::listen();
    let place = place().await;
    let provider = &place.provider;
    // By the driver where it may by itself, else by the provider.
    for (who, verdict, times) in [
        ("reset", Verdict::ResetBefore, 1),
        ("unready", status(503, 0), 1),
        ("unlucky", status(429, 3200), 12),
    ] {
        let fault = emulator().faults().add(place.rule(verdict).on(Operation::CreateItem).times(times));
        provider.enqueue_for_orchestrator(start(who, "Hello", ""), None).await.unwrap();
        assert_eq!(fault.struck(), times);
        let told = |what| log.has(&["DEBUG", "enqueue_for_orchestrator", who, what]);
        assert!(told("retrying") || told("trying again"), "{who}:\n{}", log.text());
    }
    assert!(log.has(&["trying again", "429"]), "{}", log.text());

    let broken = emulator().faults().add(place.rule(status(403, 0)).on(Operation::Query).for_key("unlucky"));
    while provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_some() {}
    assert!(broken.struck() > 0);
    drop(broken);
    assert!(
        log.has(&["WARN", "fetch_orchestration_item", "cannot fetch", "unlucky", "403"]),
        "{}",
        log.text()
    );

    let _refused = emulator().faults().add(place.rule(status(403, 0)).on(Operation::ReadItem));
    let error = provider.read("unlucky").await.unwrap_err();
    assert_eq!(error.operation, "read");
    assert!(error.message.contains("unlucky") && error.message.contains("403"), "{error}");
}

/// Sums of counters, of what histograms were told, and the last of what gauges show, by name and labels.
#[derive(Debug, Clone, Default)]
struct Meter(Arc<Mutex<Book>>);

/// Figures by name and labels.
type Book = BTreeMap<(String, Vec<String>), f64>;

/// One metric of a meter.
struct Gauged {
    meter: Meter,
    name: (String, Vec<String>),
}

impl Meter {
    fn gauged(&self, key: &Key) -> Arc<Gauged> {
        let labels = key.labels().map(|label| label.value().to_owned()).collect();
        Arc::new(Gauged { meter: self.clone(), name: (key.name().to_owned(), labels) })
    }

    /// All of a name that have this value among their labels; an empty one is all of them.
    fn of(&self, name: &str, label: &str) -> Vec<f64> {
        let book = self.0.lock().unwrap();
        let is_meant = |labels: &[String]| label.is_empty() || labels.iter().any(|value| value == label);
        book.iter()
            .filter(|((known, labels), _)| known == name && is_meant(labels))
            .map(|(_, sum)| *sum)
            .collect()
    }

    fn sum(&self, name: &str, label: &str) -> f64 {
        self.of(name, label).iter().sum()
    }

    fn has(&self, name: &str, label: &str) -> bool {
        !self.of(name, label).is_empty()
    }
}

impl Gauged {
    fn add(&self, value: f64) {
        *self.meter.0.lock().unwrap().entry(self.name.clone()).or_default() += value;
    }
}

impl GaugeFn for Gauged {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, value: f64) {
        self.meter.0.lock().unwrap().insert(self.name.clone(), value);
    }
}

impl CounterFn for Gauged {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, value: u64) {
        self.add(value as f64);
    }
}

impl HistogramFn for Gauged {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl metrics::Recorder for Meter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.gauged(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.gauged(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.gauged(key))
    }
}

#[tokio::test]
async fn what_is_spent_and_what_cannot_be_read_is_measured() {
    let meter = Meter::default();
    let _listening = metrics::set_default_local_recorder(&meter);
    let place = place().await;
    place.begin("a").await;
    for operation in ["enqueue_for_orchestrator", "fetch_orchestration_item", "ack_orchestration_item"] {
        let spending = place.provider.spending();
        let (_, spent) = spending.operations.iter().find(|(name, _)| *name == operation).unwrap();
        assert_eq!(meter.sum("duroxide_cdb_requests_total", operation), spent.requests as f64, "{operation}");
        let units = meter.sum("duroxide_cdb_request_units", operation);
        assert!((units - spent.request_units).abs() < 0.01 && units > 1.0, "{operation}: {units}, {spent:?}");
        assert!(meter.sum("duroxide_cdb_request_seconds", operation) > 0.0, "{operation}");
    }
    let stray =
        json!({ "id": "s", "instanceId": "stray", "type": "orch_queue", "visibleAt": 1, "seq": "first" });
    raw(&place.name).await.create_item("stray", &stray, ItemOptions::default()).await.unwrap();
    let unreadable = || meter.sum("duroxide_cdb_unreadable_documents_total", "fetch_orchestration_item");
    assert!(unreadable() < 0.5);
    for _ in 0..2 {
        assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
        assert!((unreadable() - 1.0).abs() < 0.5, "each is counted once");
    }
}

#[tokio::test]
async fn turns_activities_refused_writes_and_the_backlog_are_measured() {
    let meter = Meter::default();
    let _listening = metrics::set_default_local_recorder(&meter);
    let place = place().await;
    let of = |name: &str, label: &str| meter.sum(name, label);
    place.begin("a").await;
    assert!((of("duroxide_cdb_turns_total", "") - 1.0).abs() < 0.5, "one turn is committed");
    place.provider.enqueue_for_worker(activity("a", 2)).await.unwrap();
    let (_, token, _) =
        place.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::default()).await.unwrap().unwrap();
    place.provider.ack_work_item(&token, None).await.unwrap();
    assert!((of("duroxide_cdb_activities_total", "") - 1.0).abs() < 0.5);
    assert!(of("duroxide_cdb_refused_writes_total", "") < 0.5, "nobody was in the way");

    // Somebody else writes the head while a turn is held: its commit is refused.
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (turn, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let container = raw(&place.name).await;
    let head = place.of_type("a", "instance").await.remove(0);
    let mut theirs = head.clone();
    theirs["lockToken"] = json!("somebody else");
    theirs["lockedUntil"] = json!(4_000_000_000_000_u64);
    container.replace_item("a", "a:instance", &theirs, ItemOptions::default()).await.unwrap();
    let late = place
        .provider
        .ack_orchestration_item(
            &token,
            turn.execution_id,
            vec![],
            vec![],
            vec![],
            duroxide::providers::ExecutionMetadata::default(),
            vec![],
        )
        .await;
    assert!(late.is_err(), "the lock is another's");
    assert!(of("duroxide_cdb_refused_writes_total", "ack_orchestration_item") > 0.5);
}

#[tokio::test]
async fn the_members_their_backlog_and_what_they_take_from_each_other_are_measured() {
    let meter = Meter::default();
    let _listening = metrics::set_default_local_recorder(&meter);
    let name = fresh_name();
    // Nobody beats by itself: a lease outlasts the test, and a beat comes with joining.
    let settings = |owner: &str, steal_after: Duration| CosmosDBProviderConfig {
        owner: owner.to_owned(),
        lease_duration: Duration::from_secs(600),
        steal_after,
        ..config(&name)
    };
    let one = CosmosDBProvider::new_with_config(settings("one", Duration::from_secs(600))).await.unwrap();
    assert!(one.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert!((meter.sum("duroxide_cdb_members", "") - 1.0).abs() < 0.5);
    assert!((meter.sum("duroxide_cdb_slots_owned", "") - 256.0).abs() < 0.5);
    let two = CosmosDBProvider::new_with_config(settings("two", Duration::from_millis(200))).await.unwrap();
    assert!(two.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert!((meter.sum("duroxide_cdb_members", "") - 2.0).abs() < 0.5);
    // Half of the slots at least are the first one's, whose lease lasts; the second takes what it leaves.
    assert!(meter.sum("duroxide_cdb_steals_total", "") < 0.5);
    for n in 0..12 {
        one.enqueue_for_orchestrator(start(&format!("a{n}"), "Hello", ""), None).await.unwrap();
    }
    let wait = Duration::from_secs(30);
    for _ in 0..12 {
        let taken = two.fetch_orchestration_item(LOCK, wait, None).await.unwrap();
        assert!(taken.is_some(), "it is old enough");
    }
    let steals = meter.sum("duroxide_cdb_steals_total", "turns");
    assert!((0.5..=12.5).contains(&steals), "{steals} were another's");
    assert!(meter.has("duroxide_cdb_backlog", "below 1 s") && meter.has("duroxide_cdb_backlog", "older"));
    assert!(meter.has("duroxide_cdb_backlog_oldest_seconds", "activities"));
}

/// A message as the public crate up to 0.1.10 enqueues it.
fn old_message(instance: &str, enqueued_at: u64) -> serde_json::Value {
    let item = serde_json::to_string(&start(instance, "Hello", "")).unwrap();
    json!({ "id": format!("old-{instance}"), "instanceId": instance, "type": "orch_queue", "workItem": item,
        "dispatchSlot": 7, "visibleAt": 1500, "enqueuedAt": enqueued_at, "lockToken": null, "lockedUntil": null,
        "attemptCount": 0 })
}

#[tokio::test]
async fn a_process_of_the_public_crate_that_still_writes_is_noticed_by_what_it_enqueues() {
    let (log, _listening) = Log::listen();
    let meter = Meter::default();
    let _metering = metrics::set_default_local_recorder(&meter);
    let place = place().await;
    let container = raw(&place.name).await;
    let noticed = || log.has(&["ERROR", "0.1.10", "stop it", "message"]);
    let hour = Duration::from_secs(3600);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for (name, at, expected) in [("left", now - hour, false), ("fresh", now + hour, true)] {
        let message = old_message(name, u64::try_from(at.as_millis()).unwrap());
        container.create_item(name, &message, ItemOptions::default()).await.unwrap();
        let found = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
        assert_eq!(found.expect("it is carried on").0.instance, name);
        assert_eq!(noticed(), expected, "{name}:\n{}", log.text());
    }
    assert!(meter.sum("duroxide_cdb_old_writes_total", "") > 0.5);
}

#[tokio::test]
async fn a_process_of_the_public_crate_that_still_writes_is_noticed_by_what_it_rewrites() {
    let (log, _listening) = Log::listen();
    let place = place().await;
    place.begin("a").await;
    let ours = place.of_type("a", "instance").await.remove(0);
    let names = [
        "id",
        "instanceId",
        "type",
        "orchestrationName",
        "orchestrationVersion",
        "currentExecutionId",
        "status",
        "createdAt",
        "updatedAt",
    ];
    let theirs: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).to_owned(), ours[*name].clone())).collect();
    let container = raw(&place.name).await;
    container.replace_item("a", "a:instance", &theirs, ItemOptions::default()).await.unwrap();
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (turn, ..) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(turn.history.len(), 1, "the history is read as it is");
    assert!(log.has(&["ERROR", "0.1.10", "stop it", "instance"]), "{}", log.text());
}
