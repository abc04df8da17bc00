//! Many operations in few requests.

use std::collections::BTreeSet;

use cosmos_driver::{Bulk, CallOptions, ItemOptions, Patch, Throughput};
use cosmos_emulator::{Config, FaultRule, Operation, Verdict};
use serde_json::{Value, json};

use crate::account::Account;

#[tokio::test]
async fn operations_of_many_partitions_go_in_one_request_per_range() {
    let account = Account::with(Config::default().with_partitions(4), |builder| builder).await;
    let items = &account.container;
    let bulk = (0..200).fold(Bulk::new(), |bulk, n| {
        bulk.create(format!("p{n}"), &json!({ "id": n.to_string(), "pk": format!("p{n}"), "n": n }))
    });
    let done = items.bulk(bulk, CallOptions::default()).await.expect("done");
    assert!(done.is_success());
    let requests = done.diagnostics().attempts().len();
    assert!(requests <= 6, "{requests} requests for four ranges");
    assert!(done.charge() > 200.0);

    let bulk = Bulk::new()
        .read("p1", "1")
        .create("p2", &json!({ "id": "2", "pk": "p2" }))
        .patch("p3", "3", &Patch::new().set("/n", 33), None)
        .delete("p4", "4", None)
        .replace("p5", "5", &json!({ "id": "5", "pk": "p5", "n": 55 }), Some("\"stale\""))
        .upsert("p6", &json!({ "id": "6", "pk": "p6", "n": 66 }));
    let done = items.bulk(bulk, CallOptions::default()).await.expect("done");
    let statuses: Vec<u16> =
        done.results().iter().map(|result| result.as_ref().expect("answered").status()).collect();
    assert_eq!(statuses, [200, 409, 200, 204, 412, 200], "each stands for itself");
    let read: Value = done.results()[0].as_ref().expect("answered").json().expect("json");
    assert_eq!(read["n"], 1);
    let read: Value =
        items.read_item("p3", "3", ItemOptions::default()).await.expect("read").json().expect("json");
    assert_eq!(read["n"], 33);
}

#[tokio::test]
async fn a_bulk_larger_than_one_request_is_cut() {
    let account = Account::start().await;
    let bulk = (0..250).fold(Bulk::new(), |bulk, n| {
        bulk.upsert("p", &json!({ "id": n.to_string(), "pk": "p", "text": "x".repeat(30_000) }))
    });
    let done = account.container.bulk(bulk, CallOptions::default()).await.expect("done");
    assert!(done.is_success());
    let requests = done.diagnostics().attempts().len();
    assert_eq!(requests, 4, "7.5 MB at two megabytes per request");
}

#[tokio::test]
async fn a_throttled_bulk_is_sent_again() {
    let account = Account::start().await;
    let wait = Some(std::time::Duration::from_millis(5));
    let busy = Verdict::Status { code: 429, sub_status: 3200, retry_after: wait };
    let _busy = account.emulator.faults().add(FaultRule::new(busy).on(Operation::Bulk).times(2));
    let bulk =
        (0..10).fold(Bulk::new(), |bulk, n| bulk.create("p", &json!({ "id": n.to_string(), "pk": "p" })));
    let done = account.container.bulk(bulk, CallOptions::default()).await.expect("done");
    assert!(done.is_success());
    let ids: BTreeSet<u16> =
        done.results().iter().map(|result| result.as_ref().expect("answered").status()).collect();
    assert_eq!(ids, BTreeSet::from([201]));
}

#[tokio::test]
async fn throughput_is_read_and_replaced() {
    let account = Account::start().await;
    let items = &account.container;
    let read = || items.throughput(CallOptions::default());
    assert_eq!(read().await.expect("read"), Some(Throughput::Manual(400)));
    for throughput in [Throughput::Manual(1200), Throughput::Autoscale { max: 4000 }, Throughput::Manual(800)]
    {
        items.replace_throughput(throughput, CallOptions::default()).await.expect("replaced");
        assert_eq!(read().await.expect("read"), Some(throughput));
    }
    let own = items.database();
    assert_eq!(own.throughput(CallOptions::default()).await.expect("read"), None);
    let error = own
        .replace_throughput(Throughput::Manual(400), CallOptions::default())
        .await
        .expect_err("it has none");
    assert_eq!(error.kind(), cosmos_driver::ErrorKind::NotFound);
    let shared = account.driver.database("shared");
    shared
        .create_with_throughput(Some(Throughput::Autoscale { max: 2000 }), CallOptions::default())
        .await
        .expect("created");
    assert_eq!(
        shared.throughput(CallOptions::default()).await.expect("read"),
        Some(Throughput::Autoscale { max: 2000 })
    );
}
