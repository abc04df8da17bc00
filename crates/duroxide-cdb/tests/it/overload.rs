//! At the limit of an account: everything takes longer, and nothing fails.

use std::time::Duration;

use cosmos_emulator::{Config, Emulator, Operation};
use duroxide::runtime::RuntimeOptions;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use crate::flows::Machine;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workflows_end_at_the_limit_of_the_account_though_a_client_waits_for_each() {
    const WORKFLOWS: usize = 60;
    // A new container has 400 RU a second.
    let emulator = Emulator::start(Config::default().with_throttling()).unwrap();
    let config = CosmosDBProviderConfig::new(emulator.endpoint(), emulator.key());
    let provider = CosmosDBProvider::new_with_config(config).await.unwrap();
    let machine = Machine::start(provider, RuntimeOptions::default()).await;
    let runs = (0..WORKFLOWS).map(|n| {
        let machine = &machine;
        async move {
            let instance = format!("i{n}");
            machine.client.start_orchestration(&instance, "Hello", "you").await.unwrap();
            machine.output(&instance).await
        }
    });
    let limit = Duration::from_secs(300);
    let outputs = tokio::time::timeout(limit, futures::future::join_all(runs)).await;
    let outputs = outputs.expect("they end in a time in proportion to what they cost");
    assert!(outputs.iter().all(|output| output.contains("you")), "{outputs:?}");
    let snapshot = emulator.ledger().snapshot();
    let (looks, all) = (snapshot.operation(Operation::ReadItem).request_units, snapshot.totals.request_units);
    assert!(looks * 2.0 < all, "those who wait took {looks} of {all} RU");
    machine.stop().await;
}
