//! What a process tells of itself: logs and metrics say what happened and to whom, and never a secret.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cosmos_driver::ItemOptions;
use cosmos_emulator::{Config, Emulator, FaultRule, Operation, Verdict};
use duroxide::providers::Provider as _;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};
use serde_json::json;
use tracing::subscriber::DefaultGuard;

use crate::flows::{Machine, options};
use crate::tap::Tap;
use crate::windows::{LOCK, NOW, mail, place, status};
use crate::world::{emulator, raw, start};

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

/// Sums of counters and how often histograms were told something, by name and operation.
#[derive(Debug, Clone, Default)]
struct Meter(Arc<Mutex<BTreeMap<(String, String), f64>>>);

/// One metric of a meter.
struct Gauged {
    meter: Meter,
    name: (String, String),
}

impl Meter {
    fn gauged(&self, key: &Key) -> Arc<Gauged> {
        let operation =
            key.labels().find(|label| label.key() == "operation").map(|label| label.value().to_owned());
        Arc::new(Gauged { meter: self.clone(), name: (key.name().to_owned(), operation.unwrap_or_default()) })
    }

    fn sum(&self, name: &str, operation: &str) -> f64 {
        *self.0.lock().unwrap().get(&(name.to_owned(), operation.to_owned())).unwrap_or(&0.0)
    }
}

impl Gauged {
    fn add(&self, value: f64) {
        *self.meter.0.lock().unwrap().entry(self.name.clone()).or_default() += value;
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

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
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
