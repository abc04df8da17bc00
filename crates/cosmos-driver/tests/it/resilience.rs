//! The emulator's faults: throttling, resets, lost answers.

use std::time::Duration;

use cosmos_driver::{
    Batch, Breaker, Builder, Bulk, CallOptions, Context, ErrorKind, ItemOptions, PartitionKey, Patch,
    QueryOptions, Retry, Timeouts,
};
use cosmos_emulator::{Clock, Config, FaultRule, Operation, Verdict};
use serde_json::{Value, json};

use crate::account::Account;
use crate::globe::{Globe, Mood};
use crate::world::World;

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
    let _longer = account.emulator.faults().add(throttle(Duration::from_secs(20)).on(Operation::CreateItem));
    let options = ItemOptions::default().with_timeout(Duration::from_secs(10));
    let item = json!({ "id": "1", "pk": "p" });
    let error = account.container.create_item("p", &item, options).await.expect_err("no time to wait");
    assert_eq!(error.kind(), ErrorKind::Throttled);
}

#[tokio::test]
async fn times_may_be_as_long_as_there_are() {
    let forever = Duration::MAX;
    let timeouts = Timeouts {
        operation: forever,
        attempt: forever,
        feed_attempt: forever,
        metadata_attempt: forever,
        account_refresh: forever,
        account_refresh_min: forever,
        endpoint_unavailable: forever,
    };
    let breaker = Breaker { window: forever, probe_after: forever, failback: forever, ..Breaker::default() };
    let world = Globe::start(&["East", "West"]).await;
    let driver = world.builder().timeouts(timeouts).breaker(breaker).build().await.expect("it starts");
    let items = driver.container("db", "items").expect("a name");
    let item = json!({ "id": "1", "pk": "p" });
    items.create_item("p", &item, ItemOptions::default()).await.expect("created");
    world.mood(0, Mood::Status(503, 0));
    for _ in 0..3 {
        items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    }
    world.down(0);
    items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
}

#[tokio::test]
async fn a_session_token_that_cannot_be_sent_is_not_left_out() {
    let account = Account::start().await;
    let options = ItemOptions::from(CallOptions::default().with_session_token("0:1#2\n"));
    let error = account.container.read_item("p", "1", options).await.expect_err("not a header");
    assert_eq!(error.kind(), ErrorKind::BadRequest, "{error}");
}

#[tokio::test]
async fn a_write_whose_answer_cannot_be_read_may_have_been_applied() {
    let world = World::start().await;
    let driver = world.builder().build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    let item = json!({ "id": "1", "pk": "p" });
    world.talk(Some("{"));
    let batch = Batch::new("p").create(&item);
    let error = items.batch(batch, CallOptions::default()).await.expect_err("nonsense");
    assert!(error.may_have_been_applied(), "{error}");
    assert_eq!(error.diagnostics().attempts().len(), 1);
    for (nonsense, kind) in [("{", ErrorKind::Serialization), ("[]", ErrorKind::Protocol)] {
        world.talk(Some(nonsense));
        let bulk = Bulk::new().create("p", &item);
        let done = items.bulk(bulk, CallOptions::default()).await.expect("a result for each");
        let error = done.results()[0].as_ref().expect_err(nonsense);
        assert_eq!(error.kind(), kind);
        assert!(error.may_have_been_applied(), "{error}");
    }
}

/// A batch that raises a counter and creates nineteen items.
fn counting(round: usize) -> Batch {
    let batch = Batch::new("p").patch("counter", &Patch::new().increment("/n", 1), None);
    (0..19).fold(batch, |batch, n| batch.create(&json!({ "id": format!("{round}-{n}"), "pk": "p", "x": n })))
}

/// Any time will do: the dates of requests are compared with the machine's clock, too.
const START: Duration = Duration::from_secs(1_794_700_800);

/// An account of 400 RU/s whose clock stands still: a slow machine gets none of them back.
async fn timeless(build: impl FnOnce(Builder) -> Builder) -> Account {
    let (clock, _hand) = Clock::manual(START);
    Account::by_clock(clock, Config::default().with_throttling(), build).await
}

/// How often the account has refused a request for want of throughput.
fn refusals(account: &Account) -> u64 {
    let partitions = account.emulator.partitions("db", "items").expect("listed");
    partitions.iter().map(|partition| partition.throttled).sum()
}

/// Lets a second pass on the account's clock after each refusal.
async fn refill(account: &Account) {
    let mut seen = 0;
    loop {
        let refused = refusals(account);
        if refused > seen {
            seen = refused;
            account.emulator.clock().advance(Duration::from_secs(1));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn batches_beyond_the_throughput_are_waited_for_and_applied_once() {
    let account = timeless(|builder| builder).await;
    tokio::select! {
        () = count_in_batches(&account) => {}
        () = refill(&account) => unreachable!("it never ends"),
    }
}

async fn count_in_batches(account: &Account) {
    let items = &account.container;
    let counter = json!({ "id": "counter", "pk": "p", "n": 0 });
    items.create_item("p", &counter, ItemOptions::default()).await.expect("created");
    let mut waited = 0;
    for round in 0..6 {
        let done = items.batch(counting(round), CallOptions::default()).await.expect("in the end");
        assert!(done.is_success(), "{:?}", done.failed());
        let attempts = done.diagnostics().attempts();
        waited += attempts.iter().filter(|attempt| attempt.context == Context::Retry).count();
    }
    let refused = refusals(account);
    assert!(waited > 0 && refused > 0, "400 RU/s are spent after two: {waited} waits, {refused} refusals");
    let counter = items.read_item("p", "counter", ItemOptions::default()).await.expect("read");
    assert_eq!(counter.json::<Value>().expect("an item")["n"], 6, "each batch counted once");
    let query = "SELECT VALUE COUNT(1) FROM c";
    let key = PartitionKey::from("p");
    let count: Vec<u64> = items.query(query, key, QueryOptions::default()).collect().await.expect("counted");
    assert_eq!(count, [6 * 19 + 1]);
}

#[tokio::test]
async fn a_throughput_spent_for_long_surfaces_with_the_time_to_wait() {
    let retry = Retry { throttle_wait_max: Duration::from_millis(200), ..Retry::default() };
    let account = timeless(|builder| builder.retry(retry)).await;
    let items = &account.container;
    // About 1200 RU, of which a second has 400.
    let big = json!({ "id": "big", "pk": "p", "x": "y".repeat(1_900_000) });
    items.create_item("p", &big, ItemOptions::default()).await.expect("a full budget may be overdrawn");
    let hasty = CallOptions::default().with_timeout(Duration::from_secs(1));
    for (options, why) in [(CallOptions::default(), "longer than is waited"), (hasty, "no time to wait")] {
        let batch = Batch::new("p").create(&json!({ "id": "1", "pk": "p" }));
        let error = items.batch(batch, options).await.expect_err(why);
        assert_eq!((error.kind(), error.status()), (ErrorKind::Throttled, Some(429)), "{why}");
        assert!(error.retry_after() > Some(Duration::from_millis(200)), "{why}: {:?}", error.retry_after());
        assert!(!error.may_have_been_applied(), "{why}");
        assert_eq!(error.diagnostics().attempts().len(), 1, "{why}");
    }
    let partitions = account.emulator.partitions("db", "items").expect("listed");
    assert_eq!(partitions.iter().map(|partition| partition.documents).sum::<u64>(), 1, "nothing was applied");
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
