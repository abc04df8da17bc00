//! Point operations on items. Bodies travel as Cosmos binary JSON: this SDK's default.

use azure_data_cosmos::options::{ItemReadOptions, ItemWriteOptions, Precondition};
use conformance::{Account, code, status};
use serde_json::{Value, json};

#[tokio::test]
async fn a_created_item_reads_back_as_it_was_written() {
    for account in Account::ALL {
        let container = account.container().await;
        let item = json!({
            "id": "1", "pk": "a", "int": 9007199254740993_i64, "small": -1.5e-7, "third": 1.0 / 3.0, "yes": true,
            "nothing": null, "text": "quote \" snowman \u{2603} clef \u{1d11e}", "list": [1, "two", [3], {"four": 4}],
            "deep": {"a": {"b": {"c": []}}},
        });
        container.create_item("a", "1", &item, None).await.unwrap();
        let read: Value = container.read_item("a", "1", None).await.unwrap().into_model().unwrap();
        for (name, value) in item.as_object().unwrap() {
            assert_eq!(&read[name], value, "{name}");
        }
        for name in ["_rid", "_self", "_etag", "_ts"] {
            assert!(!read[name].is_null(), "{name}");
        }
    }
}

#[tokio::test]
async fn upsert_replace_and_delete_change_what_is_read() {
    let container = Account::OnePartition.container().await;
    let read = async |name: &str| container.read_item("a", name, None).await?.into_model::<Value>();
    let item = |n: i64| json!({"id": "1", "pk": "a", "n": n});
    container.upsert_item("a", "1", item(1), None).await.unwrap();
    container.upsert_item("a", "1", item(2), None).await.unwrap();
    assert_eq!(read("1").await.unwrap()["n"], 2);
    container.replace_item("a", "1", item(3), None).await.unwrap();
    assert_eq!(read("1").await.unwrap()["n"], 3);
    container.delete_item("a", "1", None).await.unwrap();
    assert_eq!(status(read("1").await), 404);
}

#[tokio::test]
async fn creating_twice_is_refused_with_409_and_missing_items_with_404() {
    let container = Account::OnePartition.container().await;
    let item = json!({"id": "1", "pk": "a"});
    container.create_item("a", "1", &item, None).await.unwrap();
    assert_eq!(status(container.create_item("a", "1", &item, None).await), 409);
    assert_eq!(status(container.read_item("a", "nobody", None).await), 404);
    assert_eq!(status(container.replace_item("b", "1", json!({"id": "1", "pk": "b"}), None).await), 404);
    assert_eq!(status(container.delete_item("a", "nobody", None).await), 404);
}

#[tokio::test]
async fn a_stale_etag_is_refused_with_412_on_every_write() {
    let container = Account::OnePartition.container().await;
    let item = json!({"id": "1", "pk": "a"});
    let written = container.create_item("a", "1", &item, None).await.unwrap();
    let stale = written.headers().etag().expect("a write has an etag").clone();
    let written = container.replace_item("a", "1", &item, None).await.unwrap();
    let fresh = written.headers().etag().expect("a write has an etag").clone();
    let when = |etag: &azure_core::http::Etag| {
        Some(ItemWriteOptions::default().with_precondition(Precondition::IfMatch(etag.clone())))
    };
    assert_eq!(status(container.replace_item("a", "1", &item, when(&stale)).await), 412);
    assert_eq!(status(container.upsert_item("a", "1", &item, when(&stale)).await), 412);
    assert_eq!(status(container.delete_item("a", "1", when(&stale)).await), 412);
    container.replace_item("a", "1", &item, when(&fresh)).await.unwrap();
}

#[tokio::test]
async fn a_read_of_an_unchanged_item_answers_304() {
    let container = Account::OnePartition.container().await;
    let item = json!({"id": "1", "pk": "a"});
    let written = container.create_item("a", "1", &item, None).await.unwrap();
    let etag = written.headers().etag().expect("a write has an etag").clone();
    let options = ItemReadOptions::default().with_precondition(Precondition::IfNoneMatch(etag));
    let unchanged = match container.read_item("a", "1", Some(options.clone())).await {
        Ok(answer) => answer.status().status_code().into(),
        Err(error) => code(&error),
    };
    assert_eq!(unchanged, 304_u16);
    container.replace_item("a", "1", &item, None).await.unwrap();
    container.read_item("a", "1", Some(options)).await.unwrap();
}

#[tokio::test]
async fn an_item_over_two_megabytes_is_refused_with_413() {
    let container = Account::OnePartition.container().await;
    let item = json!({"id": "1", "pk": "a", "text": "x".repeat(2 * 1024 * 1024 + 1)});
    assert_eq!(status(container.create_item("a", "1", item, None).await), 413);
}

#[tokio::test]
async fn a_session_token_from_one_client_lets_another_read_the_write() {
    for account in Account::ALL {
        let database = account.database().await;
        let properties = azure_data_cosmos::models::ContainerProperties::new("c", "/pk".into());
        database.create_container(properties, None).await.unwrap();
        let writer = database.container_client("c", None).await.unwrap();
        let other = account.client().await.database_client(database.name().unwrap().to_owned());
        let reader = other.container_client("c", None).await.unwrap();
        let written = writer.create_item("a", "1", json!({"id": "1", "pk": "a"}), None).await.unwrap();
        let token = written.headers().session_token().expect("a write has a token").clone();
        let options = ItemReadOptions::default().with_session_token(token);
        reader.read_item("a", "1", Some(options)).await.unwrap();
    }
}
