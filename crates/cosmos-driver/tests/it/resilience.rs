//! The emulator's faults: throttling, resets, lost answers.

use std::time::Duration;

use cosmos_driver::{CallOptions, Context, ErrorKind, ItemOptions, Retry};
use cosmos_emulator::{Config, FaultRule, Operation, Verdict};
use serde_json::json;

use crate::account::Account;

fn throttle(wait: Duration) -> FaultRule {
    FaultRule::new(Verdict::Status { code: 429, sub_status: 3200, retry_after: Some(wait) })
}

#[tokio::test]
async fn throttling_is_waited_out_as_long_as_the_service_says() {
    let account = Account::start().await;
    let item = json!({ "id": "1", "pk": "p" });
    let wait = Duration::from_millis(40);
    let _busy = account.emulator.faults().add(throttle(wait).on(Operation::CreateItem).times(2));
    let created =
        account.container.create_item("p", &item, ItemOptions::default()).await.expect("in the end");
    let attempts = created.diagnostics().attempts();
    assert_eq!(attempts.len(), 3);
    assert!(attempts[1..].iter().all(|attempt| attempt.context == Context::Retry));
    assert!(created.diagnostics().elapsed() >= wait * 2);
}

#[tokio::test]
async fn throttling_ends_with_the_deadline_or_the_budget() {
    let account = Account::with(Config::default(), |builder| {
        builder.retry(Retry { throttle_max: 2, ..Retry::default() })
    })
    .await;
    let _busy = account.emulator.faults().add(throttle(Duration::from_millis(1)).on(Operation::ReadItem));
    let error = account.container.read_item("p", "1", ItemOptions::default()).await.expect_err("still busy");
    assert_eq!((error.kind(), error.diagnostics().attempts().len()), (ErrorKind::Throttled, 3));
    assert_eq!(error.retry_after(), Some(Duration::from_millis(1)));
    let _longer = account.emulator.faults().add(throttle(Duration::from_secs(60)).on(Operation::CreateItem));
    let options = ItemOptions::default().with_timeout(Duration::from_millis(100));
    let item = json!({ "id": "1", "pk": "p" });
    let error = account.container.create_item("p", &item, options).await.expect_err("no time to wait");
    assert_eq!(error.kind(), ErrorKind::Throttled);
}

#[tokio::test]
async fn transient_conflicts_are_retried_in_place() {
    let account = Account::start().await;
    let _conflict =
        account.emulator.faults().add(FaultRule::status(449, 0).on(Operation::UpsertItem).times(3));
    let item = json!({ "id": "1", "pk": "p" });
    let written =
        account.container.upsert_item("p", &item, ItemOptions::default()).await.expect("in the end");
    assert_eq!(written.diagnostics().attempts().len(), 4);
}

#[tokio::test]
async fn a_reset_after_the_commit_leaves_a_write_unknown_and_a_conditional_one_safe() {
    let account = Account::start().await;
    let items = &account.container;
    let item = json!({ "id": "1", "pk": "p", "n": 1 });
    let created = items.create_item("p", &item, ItemOptions::default()).await.expect("created");
    let etag = created.etag().expect("an etag").to_owned();
    {
        let _reset = account
            .emulator
            .faults()
            .add(FaultRule::new(Verdict::ResetAfterCommit).on(Operation::UpsertItem).times(1));
        let error = items.upsert_item("p", &item, ItemOptions::default()).await.expect_err("unknown");
        assert!(error.may_have_been_applied(), "{error:?}");
    }
    let etag_now = items
        .read_item("p", "1", ItemOptions::default())
        .await
        .expect("read")
        .etag()
        .expect("etag")
        .to_owned();
    assert_ne!(etag, etag_now, "it had been applied");
    let _reset = account
        .emulator
        .faults()
        .add(FaultRule::new(Verdict::ResetAfterCommit).on(Operation::ReplaceItem).times(1));
    let options = ItemOptions::default().with_if_match(etag_now);
    // The second execution fails its condition, and says that the first may have been the cause.
    let error = items.replace_item("p", "1", &item, options).await.expect_err("its own first attempt won");
    assert_eq!(error.kind(), ErrorKind::PreconditionFailed);
    assert!(error.may_have_been_applied());
}

#[tokio::test]
async fn a_reset_before_the_engine_acts_costs_a_read_nothing() {
    let account = Account::start().await;
    let items = &account.container;
    items.create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await.expect("created");
    let _reset =
        account.emulator.faults().add(FaultRule::new(Verdict::ResetBefore).on(Operation::ReadItem).times(1));
    items.read_item("p", "1", ItemOptions::default()).await.expect("read again");
}

#[tokio::test]
async fn a_container_that_was_made_anew_is_recognised() {
    let account = Account::start().await;
    let items = &account.container;
    items.create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await.expect("created");
    // Another driver replaces the container behind our back.
    let other =
        cosmos_driver::Driver::builder(account.emulator.endpoint(), cosmos_driver::Credential::emulator())
            .build()
            .await
            .expect("a second driver");
    other.container("db", "items").expect("a name").delete(CallOptions::default()).await.expect("deleted");
    let properties = cosmos_driver::ContainerProperties::new("items", &["/pk"]);
    other.database("db").create_container(&properties, None, CallOptions::default()).await.expect("created");
    items
        .create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default())
        .await
        .expect("created there");
    items.read_item("p", "1", ItemOptions::default()).await.expect("read there");
}

#[tokio::test]
async fn limits_are_refused_without_asking_the_service() {
    let account = Account::start().await;
    account.container.read(CallOptions::default()).await.expect("reachable");
    let error = account.container.read_item("p", "a/b", ItemOptions::default()).await.expect_err("a slash");
    assert_eq!(error.kind(), ErrorKind::Limit);
    let big = json!({ "id": "1", "pk": "p", "x": "y".repeat(2 << 20) });
    let error = account.container.create_item("p", &big, ItemOptions::default()).await.expect_err("too big");
    assert!(error.to_string().contains("2 MB"), "{error}");
    assert!(error.diagnostics().attempts().is_empty());
}
