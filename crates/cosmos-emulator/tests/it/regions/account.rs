//! What clients learn about the regions.

use cosmos_emulator::{Config, WriteMode};
use serde_json::{Value, json};

use super::World;
use crate::client::Client;

fn locations(document: &Value, kind: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = document[kind].as_array().unwrap();
    list.iter().map(|place| (text(&place["name"]), text(&place["databaseAccountEndpoint"]))).collect()
}

#[test]
fn every_region_has_an_endpoint_and_tells_of_all_the_others() {
    let world = World::two();
    let regions = world.emulator.regions();
    let places = ["East", "West"].map(|name| (name.to_owned(), regions.endpoint_of(name).unwrap()));
    assert_ne!(places[0].1, places[1].1);
    assert_eq!(world.emulator.endpoint(), places[0].1);
    for region in ["East", "West"] {
        let answer = world.at(region).get("/").send().expect(200);
        let document = answer.json();
        assert_eq!(locations(&document, "readableLocations"), places);
        assert_eq!(locations(&document, "writableLocations"), places[..1]);
        assert_eq!(document["enableMultipleWriteLocations"], false);
        assert_eq!(
            document["id"], "emulator",
            "the JavaScript SDK knows no regions of an account called localhost"
        );
        assert_eq!(answer.header("x-ms-number-of-read-regions"), "1");
    }
}

#[test]
fn endpoints_are_advertised_under_the_host_name_that_the_client_used() {
    let world = World::two();
    let port = |region: &str| {
        let endpoint = world.emulator.regions().endpoint_of(region).unwrap();
        endpoint.trim_end_matches('/').rsplit(':').next().unwrap().to_owned()
    };
    for (host, named) in [("my-host:4711", "my-host"), ("my-host", "my-host"), ("[::1]:4711", "[::1]")] {
        let answer = world.at("West").get("/").header("host", host).send().expect(200);
        let places = locations(&answer.json(), "readableLocations");
        assert_eq!(places[0].1, format!("http://{named}:{}/", port("East")));
        assert_eq!(
            places[1].1,
            format!("http://{host}/"),
            "a mapped port leads to the region it was used for"
        );
    }
}

#[test]
fn a_multi_write_account_says_that_all_regions_take_writes() {
    let config = Config::default().with_regions(&["East", "West"]).with_write_mode(WriteMode::Multiple);
    let world = World::new(config);
    let document = world.at("West").get("/").send().expect(200).json();
    assert_eq!(document["enableMultipleWriteLocations"], true);
    assert_eq!(locations(&document, "writableLocations"), locations(&document, "readableLocations"));
    assert!(world.emulator.regions().list().iter().all(|region| region.is_writable));
}

#[test]
fn an_account_of_one_region_looks_as_it_always_did() {
    let world = World::new(Config::default());
    let mut client = Client::new(&world.emulator).with_container();
    let answer = client.get("/").send().expect(200);
    assert_eq!(answer.json()["id"], "localhost");
    assert_eq!(answer.header("x-ms-number-of-read-regions"), "0");
    let written = client.create(&json!({"id": "a", "pk": "k"})).expect(201);
    assert_eq!(written.header("x-ms-session-token"), "0:-1#2");
}

#[test]
fn the_account_tells_whether_clients_fail_over_by_partition() {
    let world = World::two();
    let told = || world.at("East").get("/").send().json()["enablePerPartitionFailoverBehavior"].clone();
    assert_eq!(told(), false);
    world.emulator.regions().set_per_partition_failover(true);
    assert_eq!(told(), true);
}
