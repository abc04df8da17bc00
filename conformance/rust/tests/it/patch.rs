//! Partial updates, applied by the server.

use azure_data_cosmos::models::{PatchInstructions, PatchOperation};
use azure_data_cosmos::options::{ContentResponseOnWrite, OperationOptions, PatchItemOptions, PatchStrategy};
use conformance::{Account, status};
use serde_json::{Value, json};

fn on_the_server() -> Option<PatchItemOptions> {
    let mut operation = OperationOptions::default();
    operation.content_response_on_write = Some(ContentResponseOnWrite::Enabled);
    Some(
        PatchItemOptions::default()
            .with_strategy(PatchStrategy::ServerSide)
            .with_operation_options(operation),
    )
}

#[tokio::test]
async fn all_six_operations_apply_in_order() {
    for account in Account::ALL {
        let container = account.container().await;
        let item = json!({"id": "1", "pk": "a", "n": 1, "list": [1], "old": "x", "gone": true});
        container.create_item("a", "1", item, None).await.unwrap();
        let patch = PatchInstructions::from(vec![
            PatchOperation::add("/list/-", json!(2)),
            PatchOperation::set("/fresh", json!("y")),
            PatchOperation::replace("/fresh", json!("z")),
            PatchOperation::remove("/gone"),
            PatchOperation::increment("/n", 2_i64),
            PatchOperation::move_value("/old", "/new"),
        ]);
        container.patch_item("a", "1", patch, on_the_server()).await.unwrap();
        let read: Value = container.read_item("a", "1", None).await.unwrap().into_model().unwrap();
        assert_eq!(read["list"], json!([1, 2]));
        assert_eq!(read["fresh"], "z");
        assert_eq!(read["n"], 3);
        assert_eq!(read["new"], "x");
        assert!(read.get("gone").is_none() && read.get("old").is_none());
    }
}

#[tokio::test]
async fn a_patch_of_a_missing_item_is_refused_with_404() {
    let container = Account::OnePartition.container().await;
    let patch = PatchInstructions::from(vec![PatchOperation::set("/x", json!(1))]);
    assert_eq!(status(container.patch_item("a", "nobody", patch, on_the_server()).await), 404);
}

#[tokio::test]
async fn a_patch_that_fails_midway_changes_nothing() {
    let container = Account::OnePartition.container().await;
    container.create_item("a", "1", json!({"id": "1", "pk": "a", "n": 1}), None).await.unwrap();
    let patch = PatchInstructions::from(vec![
        PatchOperation::increment("/n", 1_i64),
        PatchOperation::replace("/not/there", json!(1)),
    ]);
    assert_eq!(status(container.patch_item("a", "1", patch, on_the_server()).await), 400);
    let read: Value = container.read_item("a", "1", None).await.unwrap().into_model().unwrap();
    assert_eq!(read["n"], 1);
}
