//! What the account promises to readers.

use std::time::Duration;

use cosmos_emulator::{Config, Consistency, Emulator, Offline, ReplicationDelay, WriteMode};
use serde_json::json;

use super::{World, create, delayed, delete, read, upsert};

#[test]
fn a_strong_write_is_in_every_region_before_it_is_acknowledged() {
    let config = delayed(&["East", "West", "North"]).with_consistency(Consistency::Strong);
    let world = World::new(config).with_container();
    for index in 0..20 {
        let id = format!("i{index}");
        let written = create(&mut world.at("East"), &id).expect(201);
        for region in ["West", "North"] {
            assert_eq!(read(&mut world.at(region), &id).expect(200).body, written.body);
        }
    }
    upsert(&mut world.at("East"), &json!({"id": "i3", "pk": "k", "n": 5})).expect(200);
    delete(&mut world.at("East"), "i4").expect(204);
    assert_eq!(world.items("West"), world.items("East"));
    assert_eq!(world.items("North").len(), 19);
}

#[test]
fn a_strong_account_writes_on_without_a_region_and_brings_it_up_to_date() {
    let config = delayed(&["East", "West", "North"]).with_consistency(Consistency::Strong);
    let world = World::new(config).with_container();
    let regions = world.emulator.regions();
    create(&mut world.at("East"), "a").expect(201);
    regions.take_offline("West", Offline::Refuse).unwrap();
    create(&mut world.at("East"), "b").expect(201);
    read(&mut world.at("North"), "b").expect(200);
    assert_eq!(regions.replication_lag("West").unwrap().commits, 1);
    for index in 0..300 {
        create(&mut world.at("East"), &format!("i{index}")).expect(201);
    }
    regions.bring_online("West").unwrap();
    create(&mut world.at("East"), "c").expect(201);
    assert_eq!(regions.replication_lag("West").unwrap().commits, 0);
    assert_eq!(world.items("West").len(), 303);
    assert_eq!(world.items("West"), world.items("East"));
    let error = regions.pause_replication("West").unwrap_err();
    assert!(error.to_string().contains("offline instead"), "{error}");
}

#[test]
fn several_write_regions_cannot_be_strong() {
    let config = delayed(&["East", "West"]).with_write_mode(WriteMode::Multiple);
    let error = Emulator::start(config.with_consistency(Consistency::Strong)).unwrap_err();
    assert!(error.to_string().contains("strong"), "{error}");
}

#[test]
fn bounded_staleness_does_not_let_a_region_fall_behind_for_longer() {
    let long = ReplicationDelay::everywhere(Duration::from_secs(3_600));
    let config = Config::default().with_regions(&["East", "West"]).with_replication_delay(long);
    let world = World::new(config.with_consistency(Consistency::BoundedStaleness)).with_container();
    create(&mut world.at("East"), "a").expect(201);
    world.hand.advance(Duration::from_secs(299));
    assert_eq!(read(&mut world.at("West"), "a").status(), (404, 0));
    world.hand.advance(Duration::from_secs(1));
    read(&mut world.at("West"), "a").expect(200);
}

#[test]
fn a_request_may_ask_for_less_than_the_account_promises_and_not_for_more() {
    use Consistency::{BoundedStaleness, ConsistentPrefix, Eventual, Session, Strong};
    let levels = [Eventual, ConsistentPrefix, Session, BoundedStaleness, Strong];
    for promised in levels {
        let config = delayed(&["East", "West"]).with_consistency(promised);
        let world = World::new(config).with_container();
        create(&mut world.at("East"), "a").expect(201);
        world.arrive();
        let mut west = world.at("West");
        for asked in levels {
            let read =
                west.get("/dbs/d/colls/c/docs/a").key("k").header("x-ms-consistency-level", asked.name());
            let expected = if asked > promised { 400 } else { 200 };
            assert_eq!(read.send().status, expected, "{promised:?} promised, {asked:?} asked");
        }
        let document = west.get("/").send().json();
        assert_eq!(document["userConsistencyPolicy"]["defaultConsistencyLevel"], promised.name());
    }
}

#[test]
fn reads_beyond_the_session_cost_twice_as_much() {
    for (promised, factor) in
        [(Consistency::Session, 1.0), (Consistency::BoundedStaleness, 2.0), (Consistency::Strong, 2.0)]
    {
        let world = World::new(Config::default().with_consistency(promised)).with_container();
        let mut client = world.at("Local");
        let written = create(&mut client, "a").expect(201);
        let charge =
            |answer: &crate::client::Answer| answer.header("x-ms-request-charge").parse::<f64>().unwrap();
        assert_eq!(charge(&read(&mut client, "a").expect(200)), factor);
        assert_eq!(charge(&written), 5.82, "writes cost what they cost");
        let eventual =
            client.get("/dbs/d/colls/c/docs/a").key("k").header("x-ms-consistency-level", "Eventual");
        assert_eq!(charge(&eventual.send().expect(200)), 1.0);
    }
}
