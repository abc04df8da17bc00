//! The workflows by themselves, in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cosmos_emulator::{Config, Emulator, FaultRule};
use duroxide::providers::Provider;
use duroxide::runtime::Runtime;
use duroxide::{Client, OrchestrationStatus};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use shop::{
    ASK_AFTER, ORDER, Order, Outside, PACK_WITHIN, PACKED, Receipt, Release, activities, orchestrations,
};

/// An account of its own, a worker and a client.
struct World {
    emulator: Emulator,
    outside: Outside,
    client: Client,
    runtime: Option<Arc<Runtime>>,
}

impl World {
    async fn of(release: Release) -> Self {
        let emulator = Emulator::start(Config::default()).unwrap();
        let outside = Outside::default();
        let client = Client::new(store(&emulator).await);
        let mut world = Self { emulator, outside, client, runtime: None };
        world.deploy(release).await;
        world
    }

    /// Stops the worker and starts one of this release.
    async fn deploy(&mut self, release: Release) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown(Some(5_000)).await;
        }
        let store = store(&self.emulator).await;
        let runtime =
            Runtime::start_with_store(store, activities(&self.outside), orchestrations(release)).await;
        self.runtime = Some(runtime);
    }

    async fn order(&self, id: &str) {
        let order = Order { item: "rye".to_owned(), count: 12 };
        self.client.start_orchestration_typed(id, ORDER, order).await.unwrap();
    }

    async fn until_status(&self, id: &str, wanted: &str) {
        let began = Instant::now();
        loop {
            let status = self.client.get_orchestration_status(id).await.unwrap();
            if let OrchestrationStatus::Running { custom_status: Some(custom), .. } = &status
                && custom == wanted
            {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{id} is not {wanted}: {status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(&self, id: &str) -> Result<Receipt, String> {
        self.client.wait_for_orchestration_typed(id, PATIENCE).await.unwrap()
    }

    async fn version(&self, id: &str) -> String {
        self.client.get_instance_info(id).await.unwrap().orchestration_version
    }
}

async fn store(emulator: &Emulator) -> Arc<dyn Provider> {
    let config = CosmosDBProviderConfig::new(emulator.endpoint(), emulator.key());
    Arc::new(Box::pin(CosmosDBProvider::new_with_config(config)).await.unwrap())
}

/// A busy machine may take this long.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_packed_is_shipped_once() {
    let world = World::of(Release::First).await;
    world.order("o-1").await;
    world.until_status("o-1", "packing").await;
    world.client.raise_event("o-1", PACKED, "Anna").await.unwrap();
    let receipt = world.end("o-1").await.unwrap();
    assert_eq!(receipt, Receipt { shipment: "o-1/Ship".to_owned(), packed_by: "Anna".to_owned() });
    assert_eq!(world.outside.done_for("o-1"), ["Charge", "Reserve", "Ship"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_nobody_packs_is_paid_back_after_two_days() {
    let world = World::of(Release::First).await;
    world.order("o-1").await;
    world.until_status("o-1", "packing").await;
    // Two days pass for the account, and so for every timer.
    world.emulator.clock().advance(PACK_WITHIN);
    let error = world.end("o-1").await.unwrap_err();
    assert!(error.contains("nobody packed 12 rye"), "{error}");
    assert_eq!(world.outside.done_for("o-1"), ["Charge", "Refund", "Release", "Reserve"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_cannot_be_paid_is_taken_back() {
    let world = World::of(Release::First).await;
    world.outside.refuse("Charge");
    world.order("o-1").await;
    let error = world.end("o-1").await.unwrap_err();
    assert!(error.contains("Charge was refused"), "{error}");
    assert_eq!(world.outside.done_for("o-1"), ["Release", "Reserve"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn since_the_second_release_the_customer_is_asked_a_week_later() {
    let world = World::of(Release::Second).await;
    world.order("o-1").await;
    world.until_status("o-1", "packing").await;
    world.client.raise_event("o-1", PACKED, "Otto").await.unwrap();
    world.until_status("o-1", "shipped").await;
    world.emulator.clock().advance(ASK_AFTER - Duration::from_secs(3600));
    tokio::time::sleep(Duration::from_millis(300)).await;
    world.until_status("o-1", "shipped").await;
    assert_eq!(world.outside.done_for("o-1"), ["Charge", "Reserve", "Ship"], "an hour too early");
    world.emulator.clock().advance(Duration::from_secs(3600));
    world.end("o-1").await.unwrap();
    assert_eq!(world.outside.done_for("o-1"), ["Ask", "Charge", "Reserve", "Ship"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_begun_by_the_first_release_ends_as_such_under_the_second() {
    let mut world = World::of(Release::First).await;
    world.order("o-1").await;
    world.until_status("o-1", "packing").await;
    world.deploy(Release::Second).await;
    world.order("o-2").await;
    world.until_status("o-2", "packing").await;
    assert_eq!(
        (world.version("o-1").await.as_str(), world.version("o-2").await.as_str()),
        ("1.0.0", "1.1.0")
    );
    world.client.raise_event("o-1", PACKED, "Anna").await.unwrap();
    world.end("o-1").await.unwrap();
    assert_eq!(
        world.outside.done_for("o-1"),
        ["Charge", "Reserve", "Ship"],
        "nobody asks a customer of 1.0.0"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_throttles_delays_an_order_and_harms_nothing() {
    let world = World::of(Release::First).await;
    let trouble = world.emulator.faults().add(FaultRule::status(429, 3200).with_probability(0.3, 7));
    world.order("o-1").await;
    world.until_status("o-1", "packing").await;
    world.client.raise_event("o-1", PACKED, "Anna").await.unwrap();
    world.end("o-1").await.unwrap();
    assert!(trouble.struck() > 0);
    assert_eq!(world.outside.done_for("o-1"), ["Charge", "Reserve", "Ship"]);
}
