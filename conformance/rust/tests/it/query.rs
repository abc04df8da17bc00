//! Queries as this SDK plans, sends and merges them.

use azure_data_cosmos::Query;
use azure_data_cosmos::feed::{ContinuationToken, FeedScope};
use azure_data_cosmos::models::{
    CompositeIndex, CompositeIndexOrder, CompositeIndexProperty, IndexingMode, IndexingPolicy,
};
use azure_data_cosmos::options::{MaxItemCountHint, QueryOptions};
use conformance::{Account, all, numbers, page, status};
use serde_json::json;

#[tokio::test]
async fn a_filter_with_parameters_finds_its_items_in_every_partition() {
    for account in Account::ALL {
        let people = account.people().await;
        let query = Query::from("SELECT VALUE c.rank FROM c WHERE c.city = @city AND c.age >= @age")
            .with_parameter("@city", "Rome")
            .unwrap()
            .with_parameter("@age", 25)
            .unwrap();
        let mut found = numbers(&all(&people, query, FeedScope::full_container()).await.unwrap());
        found.sort_unstable();
        assert_eq!(found, [5, 9, 17, 25, 29, 37]);
    }
}

#[tokio::test]
async fn order_by_top_offset_limit_and_distinct_merge_the_partitions() {
    for account in Account::ALL {
        let people = account.people().await;
        let ask =
            async |query: &str| numbers(&all(&people, query, FeedScope::full_container()).await.unwrap());
        assert_eq!(ask("SELECT VALUE c.rank FROM c ORDER BY c.rank").await, (0..40).collect::<Vec<_>>());
        assert_eq!(ask("SELECT TOP 3 VALUE c.rank FROM c ORDER BY c.rank DESC").await, [39, 38, 37]);
        assert_eq!(ask("SELECT VALUE c.rank FROM c ORDER BY c.rank OFFSET 12 LIMIT 3").await, [12, 13, 14]);
        let ages = ask("SELECT DISTINCT VALUE c.age FROM c ORDER BY c.age").await;
        assert_eq!(ages, (20..30).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn order_by_two_paths_uses_the_composite_index() {
    for account in Account::ALL {
        let index = CompositeIndex::default()
            .with_property(CompositeIndexProperty::new("/a", CompositeIndexOrder::Ascending))
            .with_property(CompositeIndexProperty::new("/b", CompositeIndexOrder::Descending));
        let policy = IndexingPolicy::default()
            .with_indexing_mode(IndexingMode::Consistent)
            .with_included_path("/*")
            .with_composite_index(index);
        let container =
            account.container_with("/pk".into(), |properties| properties.with_indexing_policy(policy)).await;
        for number in 0..20_i64 {
            let (id, key) = (number.to_string(), format!("k{}", number % 6));
            let item = json!({"id": id, "pk": key, "a": number % 4, "b": number});
            container.create_item(key, &id, item, None).await.unwrap();
        }
        let query = "SELECT VALUE c.b FROM c ORDER BY c.a ASC, c.b DESC";
        let found = numbers(&all(&container, query, FeedScope::full_container()).await.unwrap());
        let mut expected: Vec<i64> = (0..20).collect();
        expected.sort_by_key(|number| (number % 4, -number));
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn aggregates_and_group_by_within_one_partition_key() {
    for account in Account::ALL {
        let people = account.people().await;
        let scope = || FeedScope::partition("key1");
        let sum = all(&people, "SELECT VALUE SUM(c.rank) FROM c", scope()).await.unwrap();
        assert_eq!(numbers(&sum), [85]);
        let groups =
            all(&people, "SELECT c.city, COUNT(1) AS n FROM c GROUP BY c.city", scope()).await.unwrap();
        assert_eq!(groups, [json!({"city": "Rome", "n": 5})]);
    }
}

#[tokio::test]
async fn a_join_unfolds_the_elements_of_a_list() {
    for account in Account::ALL {
        let people = account.people().await;
        let query = "SELECT VALUE c.rank FROM c JOIN t IN c.tags WHERE t = 't2' AND c.rank < 8";
        let mut found = numbers(&all(&people, query, FeedScope::full_container()).await.unwrap());
        found.sort_unstable();
        assert_eq!(found, [2, 2, 5, 7]);
    }
}

#[tokio::test]
async fn pages_resume_from_a_stored_token_in_another_iterator() {
    for account in Account::ALL {
        let people = account.people().await;
        for query in ["SELECT VALUE c.rank FROM c", "SELECT VALUE c.rank FROM c ORDER BY c.rank"] {
            let mut found = Vec::new();
            let mut stored: Option<String> = None;
            loop {
                let size = MaxItemCountHint::Limit(7.try_into().unwrap());
                let mut options = QueryOptions::default().with_max_item_count(size);
                if let Some(token) = stored.take() {
                    options = options.with_continuation_token(ContinuationToken::from_string(token));
                }
                let Some((items, token)) = page(&people, query, FeedScope::full_container(), options).await
                else {
                    break;
                };
                found.extend(numbers(&items));
                stored = Some(token.as_str().to_owned());
            }
            if query.contains("ORDER") {
                assert!(found.is_sorted(), "{found:?}");
            }
            found.sort_unstable();
            assert_eq!(found, (0..40).collect::<Vec<_>>(), "{query}");
        }
    }
}

#[tokio::test]
async fn feed_ranges_split_a_query_without_loss_or_overlap() {
    for account in Account::ALL {
        let people = account.people().await;
        let mut found = Vec::new();
        for range in people.read_feed_ranges(None).await.unwrap() {
            let part = all(&people, "SELECT VALUE c.rank FROM c", FeedScope::range(range)).await.unwrap();
            found.extend(numbers(&part));
        }
        found.sort_unstable();
        assert_eq!(found, (0..40).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_query_that_does_not_parse_is_refused_with_400() {
    let container = Account::OnePartition.container().await;
    assert_eq!(status(all(&container, "SELEC * FROM c", FeedScope::partition("a")).await), 400);
    assert_eq!(status(all(&container, "SELEC * FROM c", FeedScope::full_container()).await), 400);
}
