//! An account of several regions, each through its own socket, on a clock that is moved by hand.

mod account;
mod conflicts;
mod consistency;
mod failover;
mod membership;
mod offline;
mod partition;
mod replication;
mod restart;
mod sessions;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cosmos_emulator::{Clock, Config, Emulator, ManualClock, ReplicationDelay};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

/// How long writes take from region to region.
const DELAY: Duration = Duration::from_secs(10);

/// An emulator and the hand of its clock.
struct World {
    emulator: Emulator,
    hand: ManualClock,
}

impl World {
    fn new(config: Config) -> Self {
        Self::starting_at(now(), config)
    }

    /// Whoever starts a second one on the same folder gives both the same time, so that none passes in between.
    fn starting_at(now: Duration, config: Config) -> Self {
        let (clock, hand) = Clock::manual(now);
        Self { emulator: Emulator::start_with_clock(config, clock).unwrap(), hand }
    }

    /// East writes, West follows after [`DELAY`].
    fn two() -> Self {
        Self::new(delayed(&["East", "West"])).with_container()
    }

    fn with_container(self) -> Self {
        let region = self.emulator.regions().write_region();
        self.at(&region).with_container();
        self
    }

    /// A client of one region.
    fn at(&self, region: &str) -> Client {
        let endpoint = self.emulator.regions().endpoint_of(region).expect("a region with an endpoint");
        Client::at(&endpoint, self.emulator.key())
    }

    /// Lets everything arrive that is on its way.
    fn arrive(&self) {
        self.hand.advance(DELAY);
    }

    /// All items a region shows, in order of their ids, without what the service adds.
    fn items(&self, region: &str) -> Vec<Value> {
        let mut items = self.at(region).query("SELECT * FROM c").expect(200).json()["Documents"].take();
        let items = items.as_array_mut().unwrap();
        items.sort_by_key(|item| item["id"].to_string());
        items.iter().map(own_properties).collect()
    }
}

/// The machine's time, which signatures carry.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn delayed(regions: &[&str]) -> Config {
    Config::default().with_regions(regions).with_replication_delay(ReplicationDelay::everywhere(DELAY))
}

fn own_properties(item: &Value) -> Value {
    let fields = item.as_object().unwrap().iter().filter(|(name, _)| !name.starts_with('_'));
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
}

fn read(client: &mut Client, id: &str) -> Answer {
    client.get(&format!("/dbs/d/colls/c/docs/{id}")).key("k").send()
}

fn read_with(client: &mut Client, id: &str, token: &str) -> Answer {
    let path = format!("/dbs/d/colls/c/docs/{id}");
    client.get(&path).key("k").header("x-ms-session-token", token).send()
}

fn create(client: &mut Client, id: &str) -> Answer {
    client.create(&json!({"id": id, "pk": "k"}))
}

fn upsert(client: &mut Client, item: &Value) -> Answer {
    client.post("/dbs/d/colls/c/docs", item).key("k").header("x-ms-documentdb-is-upsert", "True").send()
}

fn delete(client: &mut Client, id: &str) -> Answer {
    client.delete(&format!("/dbs/d/colls/c/docs/{id}")).key("k").send()
}

fn token(answer: &Answer) -> String {
    answer.header("x-ms-session-token").to_owned()
}
