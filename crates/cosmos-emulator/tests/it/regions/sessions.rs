//! Session tokens over several regions.

use cosmos_emulator::{Config, Failover, WriteMode};
use serde_json::json;

use super::{World, create, delayed, read, read_with, token};
use crate::client::Client;

#[test]
fn a_replica_behind_its_session_answers_404_1002() {
    let world = World::two();
    let written = create(&mut world.at("East"), "a").expect(201);
    let mut west = world.at("West");
    let refused = read_with(&mut west, "a", &token(&written));
    assert_eq!(refused.status(), (404, 1002));
    let ask = |client: &mut Client| {
        let question = client.question(&json!({"query": "SELECT * FROM c"})).key("k");
        question.header("x-ms-session-token", &token(&written)).send().status()
    };
    assert_eq!(ask(&mut west), (404, 1002));
    let feed = west.get("/dbs/d/colls/c/docs").key("k").header("x-ms-session-token", &token(&written)).send();
    assert_eq!(feed.status(), (404, 1002));
    // Other levels do not look at the token.
    let path = "/dbs/d/colls/c/docs/a";
    let eventual = west.get(path).key("k").header("x-ms-session-token", &token(&written));
    assert_eq!(eventual.header("x-ms-consistency-level", "Eventual").send().status(), (404, 0));
    world.arrive();
    let served = read_with(&mut west, "a", &token(&written)).expect(200);
    assert_eq!(served.body, written.body);
    assert_eq!(ask(&mut west), (200, 0));
}

#[test]
fn tokens_name_the_satellites_and_rise_with_every_change_of_the_regions() {
    let world = World::two();
    let regions = world.emulator.regions();
    let written = |id: &str| token(&create(&mut world.at(&regions.write_region()), id).expect(201));
    assert_eq!(written("a"), "0:1#2#2=-1");
    regions.add_region("North").unwrap();
    assert_eq!(written("b"), "0:2#3#2=-1#3=-1");
    regions.remove_region("West").unwrap();
    assert_eq!(written("c"), "0:3#4#3=-1");
    regions.fail_over("North", Failover::Planned).unwrap();
    assert_eq!(written("d"), "0:4#5#1=-1");
    regions.add_region("West").unwrap();
    assert_eq!(written("e"), "0:5#6#1=-1#4=-1", "a number is never given twice");
    regions.remove_region("West").unwrap();
    regions.remove_region("East").unwrap();
    assert_eq!(written("f"), "0:7#7", "once there were several regions a version stays");
}

#[test]
fn a_lagging_replica_knows_tokens_from_before_a_change_of_the_regions() {
    let world = World::two();
    let old = token(&create(&mut world.at("East"), "a").expect(201));
    world.emulator.regions().add_region("North").unwrap();
    assert_eq!(read_with(&mut world.at("West"), "a", &old).status(), (404, 1002));
    read_with(&mut world.at("North"), "a", &old).expect(200);
    world.arrive();
    read_with(&mut world.at("West"), "a", &old).expect(200);
}

#[test]
fn a_session_of_one_region_goes_on_when_others_join() {
    let world = World::new(Config::default()).with_container();
    let old = token(&create(&mut world.at("Local"), "a").expect(201));
    assert_eq!(old, "0:-1#2");
    world.emulator.regions().add_region("West").unwrap();
    for region in ["Local", "West"] {
        let answer = read_with(&mut world.at(region), "a", &old).expect(200);
        assert_eq!(token(&answer), "0:1#2#2=-1");
    }
    assert_eq!(read_with(&mut world.at("West"), "a", "0:9#2#2=-1").status(), (404, 1002));
}

#[test]
fn tokens_of_a_multi_write_account_say_how_far_each_region_was_followed() {
    let world = World::new(delayed(&["East", "West"]).with_write_mode(WriteMode::Multiple)).with_container();
    let east = token(&create(&mut world.at("East"), "east").expect(201));
    let west = token(&create(&mut world.at("West"), "west").expect(201));
    assert_eq!((east.as_str(), west.as_str()), ("0:1#2#2=0", "0:1#0#2=2"));
    assert_eq!(read_with(&mut world.at("West"), "east", &east).status(), (404, 1002));
    assert_eq!(read_with(&mut world.at("East"), "west", &west).status(), (404, 1002));
    world.arrive();
    let both = token(&read_with(&mut world.at("West"), "east", &east).expect(200));
    assert_eq!(both, "0:1#2#2=2");
    read_with(&mut world.at("East"), "west", &west).expect(200);
    read_with(&mut world.at("East"), "west", &both).expect(200);
    assert_eq!(token(&read(&mut world.at("East"), "west")), both);
}
