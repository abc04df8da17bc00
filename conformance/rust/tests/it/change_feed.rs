//! The change feed. Its stream never ends: a run of empty pages means it has caught up.

use azure_data_cosmos::ContainerClient;
use azure_data_cosmos::feed::{ContinuationToken, FeedScope};
use azure_data_cosmos::models::{ChangeFeedOperationType, ChangeFeedPolicy};
use azure_data_cosmos::options::{ChangeFeedMode, ChangeFeedOptions, ChangeFeedStartFrom, MaxItemCountHint};
use conformance::{Account, status};
use futures::StreamExt;
use serde_json::{Value, json};
use std::time::Duration;

/// More than the partitions of any container here, so that each had its turn.
const EMPTY_PAGES_MAX: usize = 6;

/// The ids of the changes until the feed has no more, and the token to go on from.
async fn drain(
    container: &ContainerClient,
    scope: FeedScope,
    start: ChangeFeedStartFrom,
    token: Option<ContinuationToken>,
) -> (Vec<String>, ContinuationToken) {
    let mut options =
        ChangeFeedOptions::default().with_max_item_count(MaxItemCountHint::Limit(3.try_into().unwrap()));
    if let Some(token) = token {
        options = options.with_continuation_token(token);
    }
    let mut pages = container.query_change_feed::<Value>(scope, start, Some(options)).await.unwrap();
    let mut ids = Vec::new();
    let mut empty = 0;
    while empty < EMPTY_PAGES_MAX {
        let page = pages.next().await.expect("the feed goes on").unwrap();
        empty = if page.items().is_empty() { empty + 1 } else { 0 };
        for change in page.items() {
            ids.push(change.current().expect("an item")["id"].as_str().expect("an id").to_owned());
        }
    }
    ids.sort();
    (ids, pages.to_continuation_token().unwrap())
}

async fn write(container: &ContainerClient, id: &str, key: &str) {
    container.upsert_item(key.to_owned(), id, json!({"id": id, "pk": key}), None).await.unwrap();
}

#[tokio::test]
async fn from_the_beginning_every_item_comes_once_and_the_token_resumes() {
    for account in Account::ALL {
        let container = account.container().await;
        for number in 0..9 {
            write(&container, &number.to_string(), &format!("k{}", number % 4)).await;
        }
        write(&container, "3", "k3").await;
        let (ids, token) =
            drain(&container, FeedScope::full_container(), ChangeFeedStartFrom::Beginning, None).await;
        assert_eq!(ids, ["0", "1", "2", "3", "4", "5", "6", "7", "8"]);
        write(&container, "new", "k9").await;
        let stored = ContinuationToken::from_string(token.as_str().to_owned());
        let scope = FeedScope::full_container();
        let (ids, _) = drain(&container, scope, ChangeFeedStartFrom::Beginning, Some(stored)).await;
        assert_eq!(ids, ["new"]);
    }
}

#[tokio::test]
async fn from_now_only_what_is_written_afterwards_comes() {
    for account in Account::ALL {
        let container = account.container().await;
        write(&container, "before", "a").await;
        let (ids, token) =
            drain(&container, FeedScope::full_container(), ChangeFeedStartFrom::Now, None).await;
        assert!(ids.is_empty(), "{ids:?}");
        write(&container, "after", "b").await;
        let (ids, _) =
            drain(&container, FeedScope::full_container(), ChangeFeedStartFrom::Now, Some(token)).await;
        assert_eq!(ids, ["after"]);
    }
}

#[tokio::test]
async fn one_partition_key_and_each_range_have_feeds_of_their_own() {
    for account in Account::ALL {
        let container = account.container().await;
        for number in 0..12 {
            write(&container, &format!("{number:02}"), &format!("k{}", number % 3)).await;
        }
        let (ids, _) =
            drain(&container, FeedScope::partition("k1"), ChangeFeedStartFrom::Beginning, None).await;
        assert_eq!(ids, ["01", "04", "07", "10"]);
        let mut whole = Vec::new();
        for range in container.read_feed_ranges(None).await.unwrap() {
            whole.extend(
                drain(&container, FeedScope::range(range), ChangeFeedStartFrom::Beginning, None).await.0,
            );
        }
        whole.sort();
        assert_eq!(whole, (0..12).map(|number| format!("{number:02}")).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn all_versions_and_deletes_come_in_order_from_now_on() {
    for account in Account::ALL {
        let policy = ChangeFeedPolicy::default().with_retention_duration(Duration::from_secs(300));
        let container = account
            .container_with("/pk".into(), |properties| properties.with_change_feed_policy(policy))
            .await;
        let options = || Some(ChangeFeedOptions::default().with_mode(ChangeFeedMode::AllVersionsAndDeletes));
        let scope = || FeedScope::partition("a");
        let from = |start| container.query_change_feed::<Value>(scope(), start, options());
        let mut beginning = from(ChangeFeedStartFrom::Beginning).await.unwrap();
        assert_eq!(status(beginning.next().await.expect("an answer")), 400);
        let mut pages = from(ChangeFeedStartFrom::Now).await.unwrap();
        assert!(pages.next().await.expect("the feed goes on").unwrap().items().is_empty());
        write(&container, "1", "a").await;
        write(&container, "1", "a").await;
        container.delete_item("a", "1", None).await.unwrap();
        let mut changes = Vec::new();
        while changes.len() < 3 {
            changes.extend(pages.next().await.expect("the feed goes on").unwrap().into_items());
        }
        let kinds: Vec<_> = changes.iter().filter_map(|change| change.metadata()?.operation_type()).collect();
        use ChangeFeedOperationType::{Create, Delete, Replace};
        assert_eq!(kinds, [Create, Replace, Delete]);
        let metadata = |at: usize| changes[at].metadata().expect("metadata");
        assert_eq!(metadata(1).previous_image_lsn(), metadata(0).lsn());
        assert_eq!(metadata(2).id(), Some("1"));
    }
}
