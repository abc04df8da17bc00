//! What a caller requires of the account: looked at before the driver is built, and again whenever the account changes.

use std::time::Duration;

use cosmos_driver::{
    Builder, CallOptions, ContainerProperties, Credential, Driver, ErrorKind, Hedging, HedgingMode,
    ItemOptions, QueryOptions, Requirements, Scope, Timeouts,
};
use cosmos_emulator::{
    Config, Consistency, Emulator, FaultRule, Operation, ReplicationDelay, Verdict, WriteMode,
};
use serde_json::{Value, json};

use crate::globe::{Globe, Mood};

const STRICT: Requirements = Requirements { session_reads: true, single_write: true };

fn strict(emulator: &Emulator) -> Builder {
    Driver::builder(emulator.endpoint(), Credential::emulator()).requirements(STRICT)
}

#[tokio::test]
async fn an_account_that_promises_less_than_required_is_refused_before_a_driver_is_built() {
    let two = || Config::default().with_regions(&["East", "West"]);
    for (config, hint) in [
        (Config::default().with_consistency(Consistency::Eventual), "Eventual"),
        (Config::default().with_consistency(Consistency::ConsistentPrefix), "ConsistentPrefix"),
        (two().with_write_mode(WriteMode::Multiple), "East, West"),
    ] {
        let emulator = Emulator::start(config).expect("the emulator starts");
        let error = strict(&emulator).build().await.expect_err(hint);
        assert_eq!(error.kind(), ErrorKind::AccountUnfit, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
        let lenient = Driver::builder(emulator.endpoint(), Credential::emulator()).build().await;
        lenient.expect("nothing is required");
    }
    for level in [Consistency::Session, Consistency::BoundedStaleness, Consistency::Strong] {
        let emulator = Emulator::start(two().with_consistency(level)).expect("the emulator starts");
        strict(&emulator).build().await.expect("it promises enough");
    }
}

#[tokio::test]
async fn nothing_is_sent_once_the_account_takes_writes_in_a_second_region() {
    let config = Config::default().with_regions(&["East"]).with_write_mode(WriteMode::Multiple);
    let globe = Globe::with(config).await;
    let driver = strict(&globe.emulator).build().await.expect("all write in one region");
    let items = driver.container("db", "items").expect("a valid name");
    let item = json!({ "id": "1", "pk": "p" });
    items.create_item("p", &item, ItemOptions::default()).await.expect("created");
    globe.emulator.regions().add_region("West").expect("added");
    driver.refresh_account().await.expect("answered");
    let sent = globe.emulator.ledger().snapshot().lines.iter().map(|line| line.totals.requests).sum::<u64>();
    let error = items.upsert_item("p", &item, ItemOptions::default()).await.expect_err("two regions");
    assert_eq!(error.kind(), ErrorKind::AccountUnfit, "{error}");
    assert!(!error.may_have_been_applied());
    let error = items.read_item("p", "1", ItemOptions::default()).await.expect_err("two regions");
    assert_eq!(error.kind(), ErrorKind::AccountUnfit, "{error}");
    let after = globe.emulator.ledger().snapshot().lines.iter().map(|line| line.totals.requests).sum::<u64>();
    assert_eq!(sent, after, "nothing was sent");
    globe.emulator.regions().remove_region("West").expect("removed");
    driver.refresh_account().await.expect("answered");
    items.upsert_item("p", &item, ItemOptions::default()).await.expect("one region again");
}

/// A write that the second region gets in ten minutes, read there by a driver that prefers it.
async fn seen_from_behind(consistency: Consistency, requirements: Requirements) -> (bool, usize) {
    let config = Config {
        replication_delays: vec![ReplicationDelay::everywhere(Duration::from_secs(600))],
        consistency,
        ..Config::default().with_regions(&["East", "West"])
    };
    let emulator = Emulator::start(config).expect("the emulator starts");
    let hedging = Hedging { mode: HedgingMode::Off, ..Hedging::default() };
    let builder = Driver::builder(emulator.endpoint(), Credential::emulator());
    let driver = builder
        .requirements(requirements)
        .preferred_regions(["West"])
        .hedging(hedging)
        .build()
        .await
        .expect("the driver starts");
    driver.create_database("db", CallOptions::default()).await.expect("created");
    let properties = ContainerProperties::new("items", &["/pk"]);
    driver.database("db").create_container(&properties, None, CallOptions::default()).await.expect("created");
    let items = driver.container("db", "items").expect("a valid name");
    let item = json!({ "id": "1", "pk": "p" });
    items.create_item("p", &item, ItemOptions::default()).await.expect("created");
    let read = items.read_item("p", "1", ItemOptions::default()).await.is_ok();
    let scope = Scope::PartitionKey("p".into());
    let query = items.query("SELECT * FROM c", scope, QueryOptions::default());
    let found: Vec<Value> = query.collect().await.expect("answered");
    (read, found.len())
}

#[tokio::test]
async fn reads_of_an_account_of_bounded_staleness_see_what_was_written_where_that_is_required() {
    assert_eq!(seen_from_behind(Consistency::BoundedStaleness, STRICT).await, (true, 1));
    assert_eq!(seen_from_behind(Consistency::Session, STRICT).await, (true, 1));
    let as_the_account = seen_from_behind(Consistency::BoundedStaleness, Requirements::default()).await;
    assert_eq!(as_the_account, (false, 0), "by itself the account shows an earlier state");
}

#[tokio::test]
async fn a_read_that_is_refused_at_the_accounts_level_is_tried_again_after_the_account_was_read() {
    let globe = Globe::start(&["East"]).await;
    let timeouts = Timeouts { account_refresh_min: Duration::ZERO, ..Timeouts::default() };
    let driver = strict(&globe.emulator).timeouts(timeouts).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a valid name");
    items.create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await.expect("created");
    let account =
        globe.emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::ReadAccount).times(0));
    let refusal = FaultRule::status(400, 0).on(Operation::ReadItem);
    let refused = globe.emulator.faults().add(refusal.clone().times(1));
    items.read_item("p", "1", ItemOptions::default()).await.expect("the second try is served");
    assert_eq!((refused.struck(), account.matched()), (1, 1));
    drop(refused);
    let refused = globe.emulator.faults().add(refusal);
    let error = items.read_item("p", "1", ItemOptions::default()).await.expect_err("refused for good");
    assert_eq!((error.kind(), refused.struck()), (ErrorKind::BadRequest, 2), "{error}");
}

#[tokio::test]
async fn a_read_that_wants_the_write_region_goes_there_and_nowhere_else() {
    let globe = Globe::start(&["East", "West"]).await;
    let hedging = Hedging { mode: HedgingMode::After(Duration::from_millis(10)), ..Hedging::default() };
    let builder = Driver::builder(globe.endpoint(), Credential::emulator()).preferred_regions(["West"]);
    let driver = builder.hedging(hedging).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a valid name");
    let item = json!({ "id": "1", "pk": "p" });
    items.create_item("p", &item, ItemOptions::default()).await.expect("created");
    globe.mood(0, Mood::Slow(Duration::from_millis(100)));
    for (options, region) in
        [(CallOptions::default(), "West"), (CallOptions::default().at_write_region(), "East")]
    {
        let read = items.read_item("p", "1", ItemOptions::from(options)).await.expect("found");
        let regions: Vec<String> =
            read.diagnostics().attempts().iter().map(|attempt| attempt.region.to_string()).collect();
        assert_eq!(regions, [region]);
    }
}
