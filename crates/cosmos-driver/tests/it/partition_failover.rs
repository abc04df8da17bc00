//! Accounts whose partitions fail over on their own: one write region, but not for every partition all the time.

use std::time::{Duration, Instant};

use cosmos_driver::{
    Breaker, Builder, Container, ErrorKind, Hedging, HedgingMode, ItemOptions, OnUnknown, Response,
};
use cosmos_emulator::{FaultRule, Operation, SplitMode};
use serde_json::json;

use crate::globe::Globe;
use crate::ranges::{WITH_A_LOCK, ids, settled};

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3600);

fn driver(globe: &Globe, probe_after: Duration) -> Builder {
    globe
        .builder()
        .hedging(Hedging { mode: HedgingMode::Off, ..Hedging::default() })
        .breaker(Breaker { probe_after, ..Breaker::default() })
}

async fn open(builder: Builder) -> Container {
    builder.build().await.expect("the driver starts").container("db", "items").expect("a valid name")
}

async fn write(items: &Container, id: &str) -> Response {
    let item = json!({ "id": id, "pk": "p" });
    items.upsert_item("p", &item, ItemOptions::default()).await.unwrap_or_else(|e| panic!("{id}: {e:?}"))
}

fn regions(response: &Response) -> Vec<String> {
    response.diagnostics().attempts().iter().map(|attempt| attempt.region.to_string()).collect()
}

/// An account of two regions that says whether its partitions fail over on their own.
async fn account(says: bool) -> Globe {
    let globe = Globe::start(&["East", "West"]).await;
    globe.emulator.regions().set_per_partition_failover(says);
    globe
}

#[tokio::test]
async fn a_partition_whose_writer_is_down_is_written_elsewhere_and_comes_back() {
    let globe = account(true).await;
    let items = open(driver(&globe, Duration::from_millis(200))).await;
    assert_eq!(regions(&write(&items, "0").await), ["East"]);
    globe.emulator.regions().fail_over_partition("db", "items", 0, "West").expect("moved");
    for n in 1..=5 {
        assert_eq!(
            regions(&write(&items, &n.to_string()).await),
            ["East", "West"],
            "write {n} finds the new place"
        );
    }
    // Five failures in a row have opened the breaker; until its probe is due nobody asks East.
    let moved = write(&items, "6").await;
    assert_eq!(regions(&moved).last().map(String::as_str), Some("West"));
    let read = items.read_item("p", "6", ItemOptions::default()).await.expect("what was written is there");
    assert_eq!(read.json::<serde_json::Value>().expect("an item")["id"], "6");
    globe.emulator.regions().return_partition("db", "items", 0);
    let begun = Instant::now();
    while regions(&write(&items, "7").await) != ["East"] {
        assert!(begun.elapsed() < Duration::from_secs(20), "the writes never returned");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_open_breaker_sends_writes_of_that_partition_alone_straight_to_the_other_region() {
    let globe = account(true).await;
    let items = open(driver(&globe, NEVER)).await;
    globe.emulator.regions().fail_over_partition("db", "items", 0, "West").expect("moved");
    for n in 0..5 {
        write(&items, &n.to_string()).await;
    }
    assert_eq!(regions(&write(&items, "after").await), ["West"]);
    let driver = driver(&globe, NEVER).build().await.expect("the driver starts");
    let properties = cosmos_driver::ContainerProperties::new("others", &["/pk"]);
    let created = driver
        .database("db")
        .create_container(&properties, None, cosmos_driver::CallOptions::default())
        .await;
    assert_eq!(
        regions(&created.expect("created")),
        ["East"],
        "containers are written where the account writes"
    );
}

#[tokio::test]
async fn without_the_accounts_word_a_write_never_leaves_the_write_region() {
    let globe = account(false).await;
    let items = open(driver(&globe, NEVER)).await;
    write(&items, "0").await;
    globe.emulator.regions().fail_over_partition("db", "items", 0, "West").expect("moved");
    let item = json!({ "id": "1", "pk": "p" });
    let error = items.upsert_item("p", &item, ItemOptions::default()).await.expect_err("East is down for it");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.diagnostics().attempts().iter().all(|attempt| &*attempt.region == "East"), "{error:?}");
}

#[tokio::test]
async fn a_region_that_has_not_taken_the_partition_refuses_and_the_write_returns() {
    let globe = account(true).await;
    let items = open(driver(&globe, NEVER)).await;
    write(&items, "0").await;
    // One bad moment of East, and nothing has moved: West refuses the write, and East takes it the second time.
    let _once = globe.emulator.faults().add(FaultRule::status(503, 0).on(Operation::UpsertItem).times(1));
    let written = write(&items, "1").await;
    assert_eq!(regions(&written), ["East", "West", "East"]);
    assert_eq!(
        written.diagnostics().attempts()[1].status.map(|status| (status.code, status.sub)),
        Some((403, 3))
    );
}

#[tokio::test]
async fn a_write_that_may_have_happened_is_not_sent_to_the_other_region() {
    let globe = account(true).await;
    let items = open(driver(&globe, NEVER)).await;
    write(&items, "0").await;
    globe.mood(0, crate::globe::Mood::Forgetful);
    let item = json!({ "id": "1", "pk": "p" });
    let error = items.create_item("p", &item, ItemOptions::default()).await.expect_err("nobody knows");
    assert!(error.may_have_been_applied(), "{error:?}");
    assert_eq!(error.diagnostics().attempts().len(), 1, "{error:?}");
    let allowed = ItemOptions::from(cosmos_driver::CallOptions::default().with_on_unknown(OnUnknown::Repeat));
    let repeated = items.create_item("p", &json!({ "id": "2", "pk": "p" }), allowed).await;
    let asked = match &repeated {
        Ok(response) => regions(response),
        Err(error) => {
            error.diagnostics().attempts().iter().map(|attempt| attempt.region.to_string()).collect()
        }
    };
    assert!(asked.contains(&"West".to_owned()), "what the caller allows goes elsewhere: {asked:?}");
}

#[tokio::test]
async fn a_partition_that_splits_while_it_is_written_elsewhere_loses_and_doubles_nothing() {
    let globe = account(true).await;
    let items = open(driver(&globe, Duration::from_millis(100))).await;
    write(&items, "0").await;
    globe.emulator.regions().fail_over_partition("db", "items", 0, "West").expect("moved");
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let items = items.clone();
            tokio::spawn(async move {
                for n in 0..60 {
                    let item = json!({ "id": format!("{writer}-{n}"), "pk": format!("p{}", n % 12) });
                    let key = format!("p{}", n % 12);
                    // A create that was executed twice would meet itself.
                    let created = items.create_item(key, &item, ItemOptions::default()).await;
                    created.unwrap_or_else(|e| panic!("{writer}-{n}: {e:?}"));
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        })
        .collect();
    // The range splits while its writes go to West; then one of its halves moves there as well, and returns.
    tokio::time::sleep(Duration::from_millis(50)).await;
    globe.emulator.split("db", "items", 0, SplitMode::Midpoint, WITH_A_LOCK).expect("it splits");
    settled(&globe).await;
    let half = ids(&globe)[0];
    globe.emulator.regions().fail_over_partition("db", "items", half, "West").expect("moved");
    tokio::time::sleep(Duration::from_millis(50)).await;
    globe.emulator.regions().return_partition("db", "items", half);
    for writer in writers {
        writer.await.expect("every write was taken once");
    }
    let mut rows = 0;
    let query = "SELECT VALUE c.id FROM c WHERE c.id != '0'";
    let options = cosmos_driver::QueryOptions::default();
    let mut pager = items.query(query, cosmos_driver::Scope::Container, options);
    while let Some(page) = pager.next().await.expect("read") {
        rows += page.items::<String>().expect("ids").len();
    }
    assert_eq!(rows, 240);
}
