//! An account of two regions: where the SDK reads and writes when regions go away, move, or lag behind.

use azure_data_cosmos::options::Region;
use azure_data_cosmos::{AccountReference, ContainerClient, CosmosClient, RoutingStrategy};
use conformance::process::Process;
use serde_json::{Value, json};

const EAST: &str = "East US";
const WEST: &str = "West US";

/// A running account of two regions with a container.
struct World {
    process: Process,
}

impl World {
    async fn start(arguments: &[&str]) -> Self {
        let regions = ["--region", EAST, "--region", WEST];
        let process = Process::start(&[&regions[..], arguments].concat());
        let world = Self { process };
        let client = world.client(EAST).await;
        client.create_database("d", None).await.expect("the database is created");
        let properties = azure_data_cosmos::models::ContainerProperties::new("c", "/pk".into());
        client.database_client("d").create_container(properties, None).await.expect("the container is created");
        world
    }

    async fn client(&self, preferred: &'static str) -> CosmosClient {
        let key = std::env::var("COSMOS_KEY").expect("the suite is run through conformance/run");
        let endpoint = self.process.endpoint.parse().expect("the endpoint is a URL");
        let account = AccountReference::with_authentication_key(endpoint, key);
        let other = if preferred == EAST { WEST } else { EAST };
        let order = RoutingStrategy::PreferredRegions(vec![Region::new(preferred), Region::new(other)]);
        CosmosClient::builder().build(account, order).await.expect("the account can be read")
    }

    /// The container through a client that prefers a region and has seen nothing yet.
    async fn container(&self, preferred: &'static str) -> ContainerClient {
        let client = self.client(preferred).await;
        client.database_client("d").container_client("c", None).await.expect("the container is there")
    }

    fn region(&self, name: &str, command: &str, body: &Value) {
        self.process.manage("POST", &format!("/regions/{name}/{command}"), body);
    }

    fn fail_over(&self, name: &str, kind: &str) {
        self.process.manage("POST", "/failover", &json!({"writeRegion": name, "kind": kind}));
    }

    /// The name of the region whose answer a response is.
    fn answered(&self, diagnostics: &azure_data_cosmos::diagnostics::DiagnosticsContext) -> String {
        let requests = diagnostics.requests();
        let endpoint = requests.last().expect("a request was sent").endpoint().trim_end_matches('/').to_owned();
        let found = self.process.regions.iter().find(|(_, known)| known.trim_end_matches('/') == endpoint);
        found.map(|(name, _)| name.clone()).unwrap_or(endpoint)
    }

    async fn write(&self, container: &ContainerClient, n: i64) -> String {
        let item = json!({"id": "1", "pk": "a", "n": n});
        let answer = container.upsert_item("a", "1", item, None).await.expect("the item is written");
        self.answered(&answer.diagnostics())
    }

    async fn read(&self, container: &ContainerClient) -> (i64, String) {
        let answer = container.read_item("a", "1", None).await.expect("the item is read");
        let region = self.answered(&answer.diagnostics());
        let item: Value = answer.into_model().expect("it is JSON");
        (item["n"].as_i64().expect("a number"), region)
    }
}

#[tokio::test]
async fn reads_go_to_the_preferred_region_and_elsewhere_when_it_goes_offline() {
    for manner in ["refuse", "unavailable"] {
        let world = World::start(&[]).await;
        let container = world.container(WEST).await;
        assert_eq!(world.write(&container, 1).await, EAST);
        assert_eq!(world.read(&container).await, (1, WEST.to_owned()));
        world.region(WEST, "offline", &json!({"manner": manner}));
        assert_eq!(world.read(&container).await, (1, EAST.to_owned()), "{manner}");
    }
}

#[tokio::test]
async fn reads_succeed_in_a_read_region_while_the_write_region_is_gone() {
    let world = World::start(&[]).await;
    let container = world.container(EAST).await;
    world.write(&container, 1).await;
    assert_eq!(world.read(&container).await, (1, EAST.to_owned()));
    world.region(EAST, "offline", &json!({"manner": "refuse"}));
    assert_eq!(world.read(&container).await, (1, WEST.to_owned()));
}

#[tokio::test]
async fn writes_follow_the_write_region() {
    for kind in ["planned", "forced"] {
        let world = World::start(&[]).await;
        let container = world.container(EAST).await;
        assert_eq!(world.write(&container, 1).await, EAST);
        world.fail_over(WEST, kind);
        assert_eq!(world.write(&container, 2).await, WEST, "{kind}");
        assert_eq!(world.read(&container).await.0, 2);
        // A client keeps away from the region that refused it for a while; a new one does not.
        world.fail_over(EAST, kind);
        assert_eq!(world.write(&world.container(EAST).await, 3).await, EAST, "{kind}");
    }
}

#[tokio::test]
async fn a_session_is_not_served_from_a_region_that_lags_behind_it() {
    let world = World::start(&[]).await;
    let container = world.container(WEST).await;
    world.write(&container, 1).await;
    assert_eq!(world.read(&container).await, (1, WEST.to_owned()));
    world.region(WEST, "replication/pause", &json!({}));
    world.write(&container, 2).await;
    assert_eq!(world.read(&container).await, (2, EAST.to_owned()), "its own write");
    let other = world.container(WEST).await;
    assert_eq!(world.read(&other).await, (1, WEST.to_owned()), "one without that session");
    world.region(WEST, "replication/resume", &json!({}));
    assert_eq!(world.read(&world.container(WEST).await).await, (2, WEST.to_owned()));
}

#[tokio::test]
async fn every_region_of_a_multi_write_account_takes_writes() {
    let world = World::start(&["--multi-write"]).await;
    let (east, west) = (world.container(EAST).await, world.container(WEST).await);
    assert_eq!(world.write(&east, 1).await, EAST);
    assert_eq!(world.write(&west, 2).await, WEST);
    assert_eq!(world.read(&east).await, (2, EAST.to_owned()));
}
