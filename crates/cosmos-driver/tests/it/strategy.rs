//! How reads are made: the strategy of a driver or a call, in headers and in routes.

use std::time::Duration;

use cosmos_driver::{
    CallOptions, Config, Consistency, ErrorKind, Hedging, HedgingMode, ItemOptions, ReadConsistencyStrategy,
};
use cosmos_emulator::Config as Account;
use serde_json::json;

use crate::globe::{Globe, Mood};

fn with(strategy: ReadConsistencyStrategy) -> ItemOptions {
    ItemOptions::from(CallOptions::default().with_read_consistency(strategy))
}

fn config(strategy: ReadConsistencyStrategy) -> Config {
    let mut config = Config::default();
    config.regions.preferred = vec!["West".to_owned(), "East".to_owned()];
    config.hedging = Hedging { mode: HedgingMode::Off, ..Hedging::default() };
    config.read_consistency = strategy;
    config
}

/// Writes in East, while nothing arrives in West, where reads go.
async fn behind(strategy: ReadConsistencyStrategy) -> (Globe, cosmos_driver::Container) {
    let globe = Globe::start(&["East", "West"]).await;
    let driver = globe.builder().config(config(strategy)).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    items.upsert_item("p", &json!({ "id": "0", "pk": "p" }), ItemOptions::default()).await.expect("written");
    globe.fall_behind(1);
    items.upsert_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await.expect("written");
    (globe, items)
}

#[tokio::test]
async fn a_session_read_goes_on_to_the_region_that_has_what_was_written() {
    let (_globe, items) = behind(ReadConsistencyStrategy::Session).await;
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("East has it");
    let regions: Vec<&str> = read.diagnostics().attempts().iter().map(|attempt| &*attempt.region).collect();
    assert_eq!(regions, ["West", "East"]);
}

#[tokio::test]
async fn reads_without_a_session_take_what_their_region_has() {
    for strategy in [ReadConsistencyStrategy::Eventual, ReadConsistencyStrategy::LatestCommitted] {
        let (_globe, items) = behind(strategy).await;
        let error = items.read_item("p", "1", ItemOptions::default()).await.expect_err("not in West yet");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{strategy:?}: {error}");
        assert_eq!(error.diagnostics().attempts().len(), 1, "{strategy:?}");
        // The call's word goes before the driver's, as a strategy and as a level.
        items.read_item("p", "1", with(ReadConsistencyStrategy::Session)).await.expect("East has it");
        let level = CallOptions::default().with_consistency(Consistency::Session);
        items.read_item("p", "1", ItemOptions::from(level)).await.expect("East has it");
    }
}

#[tokio::test]
async fn a_globally_strong_read_needs_a_strong_account_and_is_not_sent_elsewhere() {
    let (_globe, items) = behind(ReadConsistencyStrategy::Default).await;
    let error =
        items.read_item("p", "1", with(ReadConsistencyStrategy::GlobalStrong)).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::BadRequest);
    assert!(error.to_string().contains("Session"), "{error}");
    assert!(error.diagnostics().attempts().is_empty(), "nothing was sent");
    let account = Account::default().with_consistency(cosmos_emulator::Consistency::Strong);
    let globe = Globe::with(account.with_regions(&["East", "West"])).await;
    let driver = globe.builder().build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    items.upsert_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await.expect("written");
    items.read_item("p", "1", with(ReadConsistencyStrategy::GlobalStrong)).await.expect("served");
}

#[tokio::test]
async fn the_latest_of_a_region_is_not_raced_for() {
    let globe = Globe::start(&["East", "West"]).await;
    let soon = Hedging { mode: HedgingMode::After(Duration::from_millis(10)), ..Hedging::default() };
    let driver = globe.builder().hedging(soon).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    items.upsert_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await.expect("written");
    globe.mood(0, Mood::Slow(Duration::from_millis(150)));
    let raced = items.read_item("p", "1", ItemOptions::default()).await.expect("read");
    assert!(raced.diagnostics().is_hedged(), "{}", raced.diagnostics());
    let latest =
        items.read_item("p", "1", with(ReadConsistencyStrategy::LatestCommitted)).await.expect("read");
    assert!(!latest.diagnostics().is_hedged(), "{}", latest.diagnostics());
}

#[tokio::test]
async fn a_driver_that_must_see_its_writes_cannot_be_told_to_read_whatever_there_is() {
    let globe = Globe::start(&["East"]).await;
    let mut config = config(ReadConsistencyStrategy::Eventual);
    config.requirements.session_reads = true;
    let error = globe.builder().config(config).build().await.expect_err("a contradiction");
    assert_eq!(error.kind(), ErrorKind::Configuration);
}
