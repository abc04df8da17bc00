//! Databases, containers, throughput and what containers enforce.

use azure_data_cosmos::feed::FeedScope;
use azure_data_cosmos::models::{ContainerProperties, ThroughputProperties, UniqueKey, UniqueKeyPolicy};
use azure_data_cosmos::options::CreateContainerOptions;
use conformance::{Account, all, status};
use serde_json::json;

#[tokio::test]
async fn a_container_is_created_read_and_deleted() {
    for account in Account::ALL {
        let database = account.database().await;
        database.create_container(ContainerProperties::new("c", "/pk".into()), None).await.unwrap();
        let container = database.container_client("c", None).await.unwrap();
        let read = container.read(None).await.unwrap().into_model().unwrap();
        assert_eq!(read.id, "c");
        assert_eq!(read.partition_key.paths()[0].as_ref(), "/pk");
        container.delete(None).await.unwrap();
        assert_eq!(status(container.read(None).await), 404);
    }
}

#[tokio::test]
async fn a_container_of_the_same_name_is_refused_with_409() {
    let database = Account::OnePartition.database().await;
    let properties = ContainerProperties::new("c", "/pk".into());
    database.create_container(properties.clone(), None).await.unwrap();
    assert_eq!(status(database.create_container(properties, None).await), 409);
}

#[tokio::test]
async fn throughput_is_read_and_replaced() {
    let database = Account::OnePartition.database().await;
    let options = CreateContainerOptions::default().with_throughput(ThroughputProperties::manual(500));
    database.create_container(ContainerProperties::new("c", "/pk".into()), Some(options)).await.unwrap();
    let container = database.container_client("c", None).await.unwrap();
    let read = container.read_throughput(None).await.unwrap().expect("it has throughput of its own");
    assert_eq!(read.throughput(), Some(500));
    let replaced = container
        .begin_replace_throughput(ThroughputProperties::manual(900), None)
        .await
        .unwrap()
        .await
        .unwrap()
        .into_model()
        .unwrap();
    assert_eq!(replaced.throughput(), Some(900));
}

#[tokio::test]
async fn a_unique_key_holds_within_a_partition_key() {
    for account in Account::ALL {
        let unique = UniqueKeyPolicy::default().with_unique_key(UniqueKey::default().with_path("/email"));
        let container = account
            .container_with("/pk".into(), |properties| properties.with_unique_key_policy(unique))
            .await;
        let item = |id: &str, key: &str| json!({"id": id, "pk": key, "email": "x"});
        container.create_item("a", "1", item("1", "a"), None).await.unwrap();
        assert_eq!(status(container.create_item("a", "2", item("2", "a"), None).await), 409);
        container.create_item("b", "2", item("2", "b"), None).await.unwrap();
    }
}

#[tokio::test]
async fn hierarchical_keys_address_items_and_scope_queries_by_prefix() {
    for account in Account::ALL {
        let container = account.container_with(("/country", "/city").into(), |properties| properties).await;
        for (country, city) in [("NO", "Oslo"), ("NO", "Bergen"), ("IT", "Rome")] {
            let item = json!({"id": city, "country": country, "city": city});
            container.create_item((country, city), city, item, None).await.unwrap();
        }
        container.read_item(("IT", "Rome"), "Rome", None).await.unwrap();
        assert_eq!(status(container.read_item(("IT", "Oslo"), "Oslo", None).await), 404);
        let query = "SELECT VALUE c.id FROM c";
        let mut found = all(&container, query, FeedScope::partition("NO")).await.unwrap();
        found.sort_by_key(|id| id.to_string());
        assert_eq!(found, [json!("Bergen"), json!("Oslo")]);
    }
}

#[tokio::test]
async fn a_container_has_as_many_feed_ranges_as_physical_partitions() {
    for (account, count) in [(Account::OnePartition, 1), (Account::FourPartitions, 4)] {
        let container = account.container().await;
        assert_eq!(container.read_feed_ranges(None).await.unwrap().len(), count);
    }
}
