//! Turns, payloads and histories beyond the limits of one batch and one document.

use std::time::Duration;

use duroxide::runtime::RuntimeOptions;

use crate::flows::{Machine, options};
use crate::world::{Store, config, documents, fresh_name, raw};
use duroxide_cdb::CosmosDBProvider;

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
    assert_eq!(machine.run("a", "BigResult", "20000000").await, "20000000:true");
    // The completed message's pieces are gone; the history's are what is left.
    let pieces = documents(&raw(&name).await, "a").await.iter().filter(|doc| doc["type"] == "chunk").count();
    assert!((39..=42).contains(&pieces), "{pieces} pieces");
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
async fn two_hundred_children_complete() {
    let machine = machine().await;
    let expected: u64 = (0..200u64).sum();
    assert_eq!(machine.run("a", "Family", "200").await, expected.to_string());
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_messages_to_one_instance_arrive_in_order() {
    let machine = machine().await;
    machine.client.start_orchestration("a", "Mailbox", "1000").await.unwrap();
    for n in 0..1000 {
        machine.client.enqueue_event("a", "mail", n.to_string()).await.unwrap();
    }
    let expected: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    assert_eq!(machine.output("a").await, expected.join(","));
    machine.stop().await;
}
