//! Regions that cannot be reached, in three manners.

use std::io::Read;
use std::net::TcpStream;

use cosmos_emulator::Offline;

use super::{World, create, read};
use crate::client::read_answer;

fn host(world: &World, region: &str) -> String {
    let endpoint = world.emulator.regions().endpoint_of(region).unwrap();
    endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

#[test]
fn a_refusing_region_has_no_listener_and_cuts_its_connections() {
    let world = World::two();
    let mut west = world.at("West");
    west.get("/").send().expect(200);
    let mut idle = TcpStream::connect(host(&world, "West")).unwrap();
    world.emulator.regions().take_offline("West", Offline::Refuse).unwrap();
    let refused = TcpStream::connect(host(&world, "West")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(matches!(idle.read(&mut [0; 1]), Ok(0) | Err(_)), "the connection was cut");
    west.get("/").try_send().unwrap_err();
    world.at("East").get("/").send().expect(200);
    assert_eq!(world.emulator.regions().list()[1].offline, Some(Offline::Refuse));

    world.emulator.regions().bring_online("West").unwrap();
    west.get("/").send().expect(200);
    assert_eq!(world.emulator.regions().list()[1].offline, None);
}

#[test]
fn an_unavailable_region_answers_503() {
    let world = World::two();
    world.emulator.regions().take_offline("West", Offline::Unavailable).unwrap();
    let mut west = world.at("West");
    assert_eq!(west.get("/").send().status(), (503, 0));
    assert_eq!(read(&mut west, "a").status(), (503, 0));
    world.emulator.regions().bring_online("West").unwrap();
    assert_eq!(read(&mut west, "a").status(), (404, 0));
}

#[test]
fn a_hanging_region_answers_when_it_is_back() {
    let world = World::two();
    world.emulator.regions().take_offline("East", Offline::Hang).unwrap();
    let waiting = world.at("East").get("/").send_only();
    let mut peeked = [0; 1];
    waiting.set_nonblocking(true).unwrap();
    assert_eq!(waiting.peek(&mut peeked).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    waiting.set_nonblocking(false).unwrap();
    world.at("West").get("/").send().expect(200);
    world.emulator.regions().bring_online("East").unwrap();
    let answer = read_answer(&mut std::io::BufReader::new(waiting)).unwrap();
    assert_eq!(answer.status, 200);
}

#[test]
fn a_region_that_is_offline_neither_sends_nor_receives() {
    let world = World::two();
    create(&mut world.at("East"), "arrived").expect(201);
    world.arrive();
    create(&mut world.at("East"), "onitsway").expect(201);
    let regions = world.emulator.regions();
    let missing = || regions.replication_lag("West").unwrap().commits;
    regions.take_offline("East", Offline::Unavailable).unwrap();
    world.arrive();
    assert_eq!(missing(), 1, "it does not leave East");
    read(&mut world.at("West"), "arrived").expect(200);
    regions.take_offline("West", Offline::Unavailable).unwrap();
    regions.bring_online("East").unwrap();
    assert_eq!(missing(), 1, "it does not reach West");
    create(&mut world.at("East"), "later").expect(201);
    regions.bring_online("West").unwrap();
    assert_eq!(missing(), 1, "what is due is there");
    read(&mut world.at("West"), "onitsway").expect(200);
}
