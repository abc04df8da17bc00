//! Physical partitions that are split and merged under the SDK's hands.

use azure_data_cosmos::feed::{ContinuationToken, FeedScope};
use azure_data_cosmos::options::{ChangeFeedOptions, ChangeFeedStartFrom, MaxItemCountHint, QueryOptions};
use azure_data_cosmos::{ContainerClient, DatabaseClient, ResourceIdentity};
use conformance::{Account, manage, page, status};
use futures::StreamExt;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// More than the partitions of any container here, so that each had its turn.
const EMPTY_PAGES_MAX: usize = 6;
const ITEMS: usize = 40;

/// A container of one partition, and where the management API has it.
struct World {
    container: ContainerClient,
    partitions: String,
}

impl World {
    async fn new() -> Self {
        let database: DatabaseClient = Account::OnePartition.database().await;
        let properties = azure_data_cosmos::models::ContainerProperties::new("items", "/pk".into());
        database.create_container(properties, None).await.unwrap();
        let container = database.container_client("items", None).await.unwrap();
        let ResourceIdentity::Name(name) = database.id() else { unreachable!("it was addressed by name") };
        let partitions = format!("/databases/{name}/containers/items/partitions");
        let world = Self { container, partitions };
        for number in 0..ITEMS {
            world.write(number).await;
        }
        world
    }

    async fn write(&self, number: usize) {
        let (id, key) = (format!("{number:03}"), format!("k{number}"));
        let item = json!({"id": id, "pk": key, "n": number % 9});
        self.container.upsert_item(key, &id, item, None).await.unwrap();
    }

    fn ids(&self) -> Vec<u64> {
        let list = manage("GET", &self.partitions, &Value::Null);
        let list = list["partitions"].as_array().expect("a list");
        list.iter().map(|partition| partition["id"].as_u64().expect("a number")).collect()
    }

    fn split(&self) {
        let first = self.ids()[0];
        let done = manage("POST", &format!("{}/{first}/split", self.partitions), &json!({}));
        assert_eq!(done["phase"], "Succeeded", "{done}");
    }

    fn merge(&self) {
        let ids = self.ids();
        let body = json!({"partitionIds": [ids[0], ids[1]]});
        let done = manage("POST", &format!("{}/merge", self.partitions), &body);
        assert_eq!(done["phase"], "Succeeded", "{done}");
    }
}

fn all() -> Vec<String> {
    (0..ITEMS).map(|number| format!("{number:03}")).collect()
}

fn id(item: &Value) -> String {
    item["id"].as_str().expect("an id").to_owned()
}

fn small_pages() -> QueryOptions {
    QueryOptions::default().with_max_item_count(MaxItemCountHint::Limit(7.try_into().unwrap()))
}

#[tokio::test]
async fn items_are_read_and_written_where_they_went() {
    let world = World::new().await;
    for change in [World::split, World::split, World::merge] {
        change(&world);
        for number in 0..ITEMS {
            let (id, key) = (format!("{number:03}"), format!("k{number}"));
            world.container.read_item(key, &id, None).await.unwrap();
        }
        for number in 0..ITEMS {
            world.write(number).await;
        }
    }
}

#[tokio::test]
async fn a_request_during_the_swap_is_refused_and_afterwards_served() {
    let world = World::new().await;
    let first = world.ids()[0];
    let begun =
        manage("POST", &format!("{}/{first}/split", world.partitions), &json!({"progressionMode": "manual"}));
    let operation = format!("/operations/{}", begun["operationId"].as_str().expect("an id"));
    assert_eq!(begun["phase"], "Preparing", "{begun}");
    world.container.read_item("k3", "003", None).await.unwrap();
    assert_eq!(manage("POST", &format!("{operation}/advance"), &json!({}))["phase"], "Swapping");
    let refused = world.container.read_item("k3", "003", None).await;
    assert_eq!(status(refused), 410);
    assert_eq!(manage("POST", &format!("{operation}/advance"), &json!({}))["phase"], "Succeeded");
    world.container.read_item("k3", "003", None).await.unwrap();
    world.write(3).await;
}

#[tokio::test]
async fn an_ordered_query_goes_on_over_a_split_and_a_merge() {
    for text in ["SELECT * FROM c ORDER BY c.n", "SELECT * FROM c ORDER BY c.n DESC"] {
        let world = World::new().await;
        let (mut rows, mut token) =
            page(&world.container, text, FeedScope::full_container(), small_pages()).await.expect("a page");
        for turn in 0.. {
            match turn {
                0 => world.split(),
                2 => world.merge(),
                _ => {}
            }
            let stored = ContinuationToken::from_string(token.as_str().to_owned());
            let options = small_pages().with_continuation_token(stored);
            let Some((more, next)) = page(&world.container, text, FeedScope::full_container(), options).await
            else {
                break;
            };
            rows.extend(more);
            token = next;
        }
        let values: Vec<_> = rows.iter().map(|row| row["n"].as_i64().expect("a number")).collect();
        if text.ends_with("DESC") {
            assert!(values.iter().rev().is_sorted(), "{values:?}");
        } else {
            assert!(values.is_sorted(), "{values:?}");
        }
        let mut ids: Vec<_> = rows.iter().map(id).collect();
        ids.sort();
        assert_eq!(ids, all(), "{text}");
    }
}

#[tokio::test]
async fn a_query_in_the_middle_of_its_pages_does_not_notice() {
    let world = World::new().await;
    let mut pages = world
        .container
        .query_items::<Value>("SELECT * FROM c", FeedScope::full_container(), Some(small_pages()))
        .await
        .unwrap()
        .into_pages();
    let mut ids = BTreeSet::new();
    let mut turn = 0;
    while let Some(page) = pages.next().await {
        for item in page.unwrap().into_items() {
            assert!(ids.insert(id(&item)), "{item} came twice");
        }
        match turn {
            0 => world.split(),
            1 => world.merge(),
            _ => {}
        }
        turn += 1;
    }
    assert_eq!(ids.into_iter().collect::<Vec<_>>(), all());
}

/// The ids of the changes until the feed has no more, and the token to go on from.
async fn drain(world: &World, token: Option<ContinuationToken>) -> (Vec<String>, ContinuationToken) {
    let mut options =
        ChangeFeedOptions::default().with_max_item_count(MaxItemCountHint::Limit(6.try_into().unwrap()));
    if let Some(token) = token {
        options = options.with_continuation_token(ContinuationToken::from_string(token.as_str().to_owned()));
    }
    let start = ChangeFeedStartFrom::Beginning;
    let feed = world.container.query_change_feed::<Value>(FeedScope::full_container(), start, Some(options));
    let mut pages = feed.await.unwrap();
    let (mut ids, mut empty) = (Vec::new(), 0);
    while empty < EMPTY_PAGES_MAX {
        let page = pages.next().await.expect("the feed goes on").unwrap();
        empty = if page.items().is_empty() { empty + 1 } else { 0 };
        ids.extend(page.items().iter().map(|change| id(change.current().expect("an item"))));
    }
    ids.sort();
    (ids, pages.to_continuation_token().unwrap())
}

#[tokio::test]
async fn a_change_feed_goes_on_over_a_split_and_a_merge() {
    let world = World::new().await;
    let (ids, token) = drain(&world, None).await;
    assert_eq!(ids, all());
    world.write(3).await;
    world.split();
    world.write(4).await;
    let (ids, token) = drain(&world, Some(token)).await;
    assert_eq!(ids, ["003", "004"]);
    world.write(5).await;
    world.merge();
    world.write(6).await;
    let (ids, _) = drain(&world, Some(token)).await;
    assert_eq!(ids, ["005", "006"]);
}
