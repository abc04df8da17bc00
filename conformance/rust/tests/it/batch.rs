//! Transactional batches: all of it or nothing.

use azure_data_cosmos::feed::FeedScope;
use azure_data_cosmos::options::{BatchReplaceOptions, Precondition};
use azure_data_cosmos::{ContainerClient, TransactionalBatch};
use conformance::{Account, all, code};
use serde_json::{Value, json};

fn item(id: &str) -> Value {
    json!({"id": id, "pk": "a"})
}

/// The status of every operation, whether the batch went through or not.
async fn codes(container: &ContainerClient, batch: TransactionalBatch) -> Vec<u16> {
    match container.execute_transactional_batch(batch, None).await {
        Ok(answer) => {
            let results = answer.into_model().expect("the answer reads as results");
            results.results().iter().map(|result| result.status_code()).collect()
        }
        Err(error) => panic!("refused as a whole with {}", code(&error)),
    }
}

async fn ids(container: &ContainerClient) -> Vec<String> {
    let query = "SELECT VALUE c.id FROM c ORDER BY c.id";
    let found = all(container, query, FeedScope::partition("a")).await.unwrap();
    found.iter().map(|id| id.as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn a_batch_applies_in_order_and_answers_each() {
    for account in Account::ALL {
        let container = account.container().await;
        container.create_item("a", "old", item("old"), None).await.unwrap();
        let batch = TransactionalBatch::new("a")
            .create_item(item("1"))
            .unwrap()
            .upsert_item(item("2"), None)
            .unwrap()
            .replace_item("1", item("1"), None)
            .unwrap()
            .read_item("2", None)
            .delete_item("old", None);
        assert_eq!(codes(&container, batch).await, [201, 201, 200, 200, 204]);
        assert_eq!(ids(&container).await, ["1", "2"]);
    }
}

#[tokio::test]
async fn a_batch_that_fails_rolls_back_with_424_for_the_rest() {
    for account in Account::ALL {
        let container = account.container().await;
        container.create_item("a", "there", item("there"), None).await.unwrap();
        let batch = TransactionalBatch::new("a")
            .create_item(item("new"))
            .unwrap()
            .create_item(item("there"))
            .unwrap()
            .upsert_item(item("later"), None)
            .unwrap();
        assert_eq!(codes(&container, batch).await, [424, 409, 424]);
        assert_eq!(ids(&container).await, ["there"]);
    }
}

#[tokio::test]
async fn a_stale_etag_fails_the_batch_with_412() {
    let container = Account::OnePartition.container().await;
    let written = container.create_item("a", "1", item("1"), None).await.unwrap();
    let stale = written.headers().etag().expect("a write has an etag").clone();
    container.replace_item("a", "1", item("1"), None).await.unwrap();
    let when = BatchReplaceOptions::default().with_precondition(Precondition::IfMatch(stale));
    let batch = TransactionalBatch::new("a")
        .create_item(item("2"))
        .unwrap()
        .replace_item("1", item("1"), Some(when))
        .unwrap();
    assert_eq!(codes(&container, batch).await, [424, 412]);
    assert_eq!(ids(&container).await, ["1"]);
}
