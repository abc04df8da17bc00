//! Turns, payloads and histories beyond the limits of one batch and one document.

use std::time::Duration;

use duroxide::runtime::RuntimeOptions;

use crate::flows::{Machine, options};
use crate::world::{Store, config, documents, event, fresh_name, named, raw, start, until};
use duroxide::providers::{Provider as _, WorkItem};
use duroxide_cdb::CosmosDBProvider;

const LOCK: Duration = Duration::from_secs(30);
/// How long a fetch may look for work that is there, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

async fn machine() -> Machine {
    let options = RuntimeOptions {
        worker_concurrency: 8,
        orchestration_concurrency: 4,
        ..options(Duration::from_secs(20))
    };
    Machine::start(Store::default().provider().await, options).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fan_out_of_a_thousand_completes() {
    let machine = machine().await;
    let expected: u64 = (0..1000u64).map(|n| n * n).sum();
    assert_eq!(machine.run("a", "FanOut", "1000").await, expected.to_string());
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_of_twenty_megabytes_arrives_whole() {
    let name = fresh_name();
    let provider = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
    let machine = Machine::start(provider, options(Duration::from_secs(20))).await;
    assert_eq!(machine.run("a", "NoiseResult", "20000000").await, "20000000:true");
    // The completed message's pieces go after the commit that the client has seen; the history's are what is left.
    let container = raw(&name).await;
    until("only the history's pieces are left", async || {
        let pieces = documents(&container, "a").await.iter().filter(|doc| doc["type"] == "chunk").count();
        (29..=42).contains(&pieces)
    })
    .await;
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_result_crosses_partitions() {
    let machine = machine().await;
    assert_eq!(machine.run("p", "BigPass", "3000000").await, "3000000");
    assert_eq!(machine.client.get_instance_info("p").await.unwrap().output.as_deref(), Some("3000000"));
    let tree = machine.client.get_instance_tree("p").await.unwrap();
    let child = machine.client.get_instance_info(&tree.all_ids[1]).await.unwrap();
    assert_eq!(child.output.map(|output| output.len()), Some(3_000_000));
    machine.client.delete_instance("p", false).await.unwrap();
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_allowed_key_of_the_allowed_size_is_kept() {
    let machine = machine().await;
    assert_eq!(machine.run("a", "ManyNotes", "150x65536").await, "150");
    let values = machine.client.get_kv_all_values("a").await.unwrap();
    assert_eq!(values.len(), 150);
    assert!(values.values().all(|value| value.len() == 65_536));
    let stats = machine.client.get_orchestration_stats("a").await.unwrap().unwrap();
    assert_eq!((stats.kv_user_key_count, stats.kv_total_value_bytes), (150, 150 * 65_536));
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_children_complete() {
    let machine = machine().await;
    let expected: u64 = (0..1000u64).sum();
    assert_eq!(machine.run("a", "Family", "1000").await, expected.to_string());
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_messages_to_one_instance_arrive_in_order() {
    const MESSAGES: usize = 10_000;
    let provider = Store::default().provider().await;
    let mail =
        |n: usize| WorkItem::QueueMessage { instance: "a".into(), name: "mail".into(), data: n.to_string() };
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let numbers: Vec<usize> = (0..MESSAGES).collect();
    for group in numbers.chunks(50) {
        // Sent together, but made one after the other: their order is known.
        futures::future::try_join_all(
            group.iter().map(|n| provider.enqueue_for_orchestrator(mail(*n), None)),
        )
        .await
        .unwrap();
    }
    let mut seen = Vec::new();
    let mut id = 0;
    while seen.len() < MESSAGES {
        let (item, token, _) =
            provider.fetch_orchestration_item(LOCK, PATIENCE, None).await.unwrap().unwrap();
        seen.extend(item.messages.iter().filter_map(|message| match message {
            WorkItem::QueueMessage { data, .. } => Some(data.parse::<usize>().unwrap()),
            _ => None,
        }));
        id += 1;
        let events = vec![event("a", id)];
        provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![]).await.unwrap();
    }
    assert_eq!(seen, numbers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_with_fifty_thousand_events_is_still_one_load_away() {
    const TURNS: u64 = 50;
    const EVENTS: u64 = 1000;
    let name = fresh_name();
    let provider = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    for turn in 0..TURNS {
        let (item, token, _) =
            provider.fetch_orchestration_item(LOCK, PATIENCE, None).await.unwrap().unwrap();
        assert_eq!(item.history.len() as u64, turn * EVENTS);
        let events = (1..=EVENTS).map(|n| event("a", turn * EVENTS + n)).collect();
        let again =
            vec![WorkItem::QueueMessage { instance: "a".into(), name: "q".into(), data: String::new() }];
        provider.ack_orchestration_item(&token, 1, events, vec![], again, named(), vec![]).await.unwrap();
    }
    assert_eq!(provider.read("a").await.unwrap().len() as u64, TURNS * EVENTS);
    let other = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
    let (item, ..) = other.fetch_orchestration_item(LOCK, PATIENCE, None).await.unwrap().unwrap();
    assert!(item.history.iter().map(duroxide::Event::event_id).eq(1..=TURNS * EVENTS));
}
