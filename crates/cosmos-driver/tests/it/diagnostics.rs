//! What an operation tells about itself: where its time went, and what a tracer sees.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cosmos_driver::{Delivery, ItemOptions, Sharding};
use serde_json::{Value, json};
use tracing_subscriber::fmt::format::FmtSpan;

use crate::globe::{Globe, Mood};

#[tokio::test]
async fn a_slow_service_and_a_full_pool_are_told_apart() {
    let globe = Globe::start(&["East"]).await;
    let one_at_a_time =
        Sharding { connections_max: 1, streams_target: 1, streams_max: 1, ..Sharding::default() };
    let driver = globe.builder().sharding(one_at_a_time).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    let item = json!({ "id": "1", "pk": "p" });
    let first = items.upsert_item("p", &item, ItemOptions::default()).await.expect("written");
    let attempt = &first.diagnostics().attempts()[0];
    assert!(attempt.headers.is_some() && attempt.body.is_some(), "{attempt}");
    assert_eq!((attempt.delivery, attempt.request_bytes), (Delivery::Answered, item.to_string().len()));
    let slow = Duration::from_millis(200);
    globe.mood(0, Mood::Slow(slow));
    let read = || items.read_item("p", "1", ItemOptions::default());
    let (one, two) = tokio::join!(read(), read());
    let (one, two) = (one.expect("read"), two.expect("read"));
    let (one, two) = (&one.diagnostics().attempts()[0], &two.diagnostics().attempts()[0]);
    let waited = if one.slot_wait > two.slot_wait { one } else { two };
    assert!(waited.slot_wait >= slow / 2, "one waits for the other's slot: {waited}");
    assert!(one.headers >= Some(slow / 2) && two.headers >= Some(slow / 2), "both meet a slow service");
    let json: Value = serde_json::from_str(&first.diagnostics().to_json()).expect("JSON");
    assert!(
        json["attempts"][0]["headers_ms"].is_number() && json["attempts"][0]["sent_bytes"].is_number(),
        "{json}"
    );
}

#[tokio::test]
async fn a_new_connection_is_waited_for_and_shards_count_what_they_carried() {
    let globe = Globe::start(&["East"]).await;
    let faults = cosmos_driver::fault::Faults::new();
    let slow = cosmos_driver::fault::Fault::SlowConnect(Duration::from_millis(200));
    let _slow = faults.add(cosmos_driver::fault::Rule::new(slow));
    let driver = globe.builder().faults(faults).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    let item = json!({ "id": "1", "pk": "p" });
    items.upsert_item("p", &item, ItemOptions::default()).await.expect("written");
    globe.down(0);
    globe.up(0);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("read on a new connection");
    let waited: Duration = read.diagnostics().attempts().iter().map(|attempt| attempt.connect_wait).sum();
    assert!(waited >= Duration::from_millis(100), "{}", read.diagnostics());
    for _ in 0..3 {
        items.read_item("p", "1", ItemOptions::default()).await.expect("read");
    }
    let shards = driver.connections().remove(0).shards;
    let requests: u64 = shards.iter().map(|shard| shard.requests).sum();
    assert!(requests >= 3, "{shards:?}");
    assert_eq!(shards.iter().map(|shard| shard.failures).sum::<u64>(), 0, "{shards:?}");
}

/// Text that spans are written into.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "current_thread")]
async fn spans_have_the_names_of_opentelemetry() {
    let globe = Globe::start(&["East", "West"]).await;
    let driver = globe.builder().build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    let item = json!({ "id": "1", "pk": "p" });
    items.upsert_item("p", &item, ItemOptions::default()).await.expect("written");
    globe.mood(0, Mood::Status(503, 0));
    let page = Page::default();
    let writer = page.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let listening = tracing::subscriber::set_default(subscriber);
    items.read_item("p", "1", ItemOptions::default()).await.expect("West has it");
    items.read_item("p", "none", ItemOptions::default()).await.expect_err("nobody has it");
    drop(listening);
    let text = String::from_utf8(page.0.lock().expect("not poisoned").clone()).expect("text");
    for wanted in [
        "otel.kind=\"client\"",
        "db.system.name=\"azure.cosmosdb\"",
        "db.operation.name=\"read_item\"",
        "db.namespace=\"db\"",
        "db.collection.name=\"items\"",
        "db.response.status_code=200",
        "azure.cosmosdb.operation.contacted_regions=\"East,West\"",
        "azure.cosmosdb.operation.request_charge=",
        "db.response.status_code=404",
        "error.type=NotFound",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing in:\n{text}");
    }
}
