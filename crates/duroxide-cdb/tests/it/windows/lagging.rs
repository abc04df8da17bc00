//! Deletions by processes that read in a region which is behind.

use std::time::Duration;

use cosmos_driver::{Container, ItemOptions};
use cosmos_emulator::{Config, Emulator, ReplicationDelay};
use duroxide::providers::{Provider as _, ProviderAdmin as _};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::{Value, json};

use super::families::{child, child_of, fetch};
use super::{LOCK, NOW, commit, mail};
use crate::world::{DATABASE, behind, documents, event, named, start, until};

const DELETION: &str = "deletion:d";

/// An account of two regions, a process that wrote an instance in the first, and the settings of one that reads in the
/// second. Each partition of a container follows at its own speed; here one of two writes is held up.
struct Distance {
    emulator: Emulator,
    provider: CosmosDBProvider,
    container: Container,
    head: Value,
}

impl Distance {
    async fn with_instance() -> Self {
        Self::of(Config::default().with_regions(&["East", "West"])).await
    }

    async fn of(config: Config) -> Self {
        let emulator = Emulator::start(config).unwrap();
        let near = CosmosDBProviderConfig {
            reconciler_interval: Duration::from_secs(600),
            ..Self::settings(&emulator)
        };
        let provider = CosmosDBProvider::new_with_config(near.clone()).await.unwrap();
        provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        commit(&provider, &token, vec![event("a", 1)], named()).await.unwrap();
        let container = behind(&near).await;
        let head = documents(&container, "a").await.into_iter().find(|found| found["type"] == "instance");
        Self { emulator, provider, container, head: head.unwrap() }
    }

    fn settings(emulator: &Emulator) -> CosmosDBProviderConfig {
        CosmosDBProviderConfig::new(emulator.endpoint(), emulator.key())
            .with_database(DATABASE)
            .with_container("flows")
    }

    /// What was written has arrived in the second region; what is written from now on arrives in ten minutes.
    async fn hold_up(&self) {
        let regions = self.emulator.regions();
        until("all has arrived", async || regions.replication_lag("West").unwrap().commits == 0).await;
        self.emulator.regions().set_replication_delay(ReplicationDelay::everywhere(Duration::from_secs(600)));
    }

    async fn fence(&self) {
        let mut fenced = self.head.clone();
        fenced["type"] = "deleting".into();
        fenced["deletion"] = DELETION.into();
        fenced["doomed"] = json!([]);
        fenced["sweepAt"] = 1.into();
        let id = fenced["id"].as_str().unwrap().to_owned();
        self.container.replace_item("a", &id, &fenced, ItemOptions::default()).await.unwrap();
    }

    async fn record(&self) {
        let record = json!({ "id": DELETION, "instanceId": "__deletions__", "type": "deletion",
            "instances": ["a"], "sweepAt": 1 });
        self.container.create_item("__deletions__", &record, ItemOptions::default()).await.unwrap();
    }

    /// A process that reads in the second region.
    async fn far(&self, reconciler_interval: Duration) -> CosmosDBProvider {
        let mut far = CosmosDBProviderConfig { reconciler_interval, ..Self::settings(&self.emulator) };
        far.driver.regions.preferred = vec!["West".to_owned()];
        CosmosDBProvider::new_with_config(far).await.unwrap()
    }

    /// A process that reads in the second region finishes what it finds.
    async fn finish(&self) {
        let _heir = self.far(Duration::from_millis(10)).await;
        until("the deletion is settled", async || {
            let has_record = !documents(&self.container, "__deletions__").await.is_empty();
            let is_fenced = documents(&self.container, "a").await.iter().any(|d| d["type"] == "deleting");
            !has_record || !is_fenced
        })
        .await;
        until("nothing is left of it", async || documents(&self.container, "__deletions__").await.is_empty())
            .await;
        let left = documents(&self.container, "a").await;
        assert!(left.iter().all(|document| document["type"] == "tombstone"), "{left:?}");
    }
}

#[tokio::test]
async fn a_deletion_is_finished_though_its_fence_has_not_arrived_where_its_record_is_read() {
    let distance = Distance::with_instance().await;
    distance.record().await;
    distance.hold_up().await;
    distance.fence().await;
    distance.finish().await;
}

#[tokio::test]
async fn a_deletion_is_finished_though_its_record_has_not_arrived_where_its_fence_is_read() {
    let distance = Distance::with_instance().await;
    distance.fence().await;
    distance.hold_up().await;
    distance.record().await;
    distance.finish().await;
}

#[tokio::test]
async fn a_child_that_has_not_arrived_where_its_parent_is_deleted_goes_with_it() {
    // Several partitions: what is read of one tells nothing of the others.
    let config = Config::default().with_regions(&["East", "West"]).with_partitions(4);
    let distance = Distance::of(config).await;
    let far = distance.far(Duration::from_secs(600)).await;
    distance.hold_up().await;
    let near = &distance.provider;
    let children: Vec<String> = (0..8).map(|number| format!("child{number}")).collect();
    near.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let token = fetch(near, "a").await;
    let starts = children.iter().map(|name| child("a", name, "")).collect();
    near.ack_orchestration_item(&token, 1, vec![event("a", 2)], vec![], starts, named(), vec![])
        .await
        .unwrap();
    // Half of them run, of the others there is only a start.
    for _ in 0..4 {
        let wait = Duration::from_secs(30);
        let (item, token, _) = near.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
        commit(near, &token, vec![event(&item.instance, 1)], child_of("a")).await.unwrap();
    }
    far.delete_instance("a", true).await.unwrap();
    for name in ["a".to_owned()].iter().chain(&children) {
        let left = documents(&distance.container, name).await;
        assert!(left.iter().all(|document| document["type"] == "tombstone"), "{name}: {left:?}");
    }
}
