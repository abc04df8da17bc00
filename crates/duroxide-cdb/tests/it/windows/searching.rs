//! Searching for work: nothing that is not for the searcher hides what is, or is paid for without end.

use cosmos_driver::ItemOptions;
use duroxide::TagFilter;
use duroxide::providers::Provider as _;
use serde_json::json;

use super::{LOCK, NOW, place};
use crate::world::{activity, raw, start};

#[tokio::test]
async fn a_document_that_cannot_be_read_hides_no_other() {
    let place = place().await;
    let container = raw(&place.name).await;
    for (kind, at) in [("orch_queue", json!(1)), ("worker_queue", json!(1)), ("worker_queue", json!(1.5))] {
        let id = format!("{kind} {at}");
        let stray = json!({ "id": id, "instanceId": "stray", "type": kind, "visibleAt": at, "seq": "first" });
        container.create_item("stray", &stray, ItemOptions::default()).await.unwrap();
    }
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    place.provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
    let other = place.other().await;
    let turn = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
    assert_eq!(turn.expect("it can be read").0.instance, "a");
    let work = other.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap();
    assert_eq!(work.expect("it can be read").0, activity("b", 1));
    assert!(other.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().is_none());
}
