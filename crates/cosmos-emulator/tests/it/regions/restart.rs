//! What regions remember over a restart, also over one in the middle of something.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::time::Duration;

use cosmos_emulator::{Config, Emulator, Failover, Fsync, ReplicationDelay, WriteMode};
use serde_json::json;

use super::{World, create, delayed, delete, now, read, read_with, token, upsert};
use crate::again::{Again, say};
use crate::client::Client;

fn kept(folder: &Path, regions: &[&str]) -> Config {
    delayed(regions).with_folder(folder, Fsync::Off)
}

#[test]
fn a_backlog_goes_on_after_a_restart() {
    let (folder, now) = (tempfile::tempdir().unwrap(), now());
    let config = || kept(folder.path(), &["East", "West", "North"]);
    let written = {
        let world = World::starting_at(now, config()).with_container();
        let mut east = world.at("East");
        upsert(&mut east, &json!({"id": "a", "pk": "k", "n": 1})).expect(201);
        world.arrive();
        world.items("West");
        delete(&mut east, "a").expect(204);
        for index in 0..600 {
            create(&mut east, &format!("i{index}")).expect(201);
        }
        create(&mut east, "last").expect(201)
    };
    let world = World::starting_at(now, config());
    assert_eq!(world.emulator.regions().replication_lag("West").unwrap().commits, 602);
    assert_eq!(world.emulator.regions().replication_lag("North").unwrap().commits, 602, "it was never asked");
    read(&mut world.at("West"), "a").expect(200);
    assert_eq!(read_with(&mut world.at("West"), "last", &token(&written)).status(), (404, 1002));
    // The clock of the first process was ahead.
    world.arrive();
    world.arrive();
    assert_eq!(read_with(&mut world.at("West"), "last", &token(&written)).expect(200).body, written.body);
    for region in ["West", "North"] {
        assert_eq!(world.items(region), world.items("East"), "{region}");
        assert_eq!(world.emulator.regions().replication_lag(region).unwrap().commits, 0);
    }
}

#[test]
fn the_write_region_and_what_is_cut_off_are_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let config = || kept(folder.path(), &["East", "West", "North"]);
    {
        let world = World::new(config()).with_container();
        let regions = world.emulator.regions();
        create(&mut world.at("East"), "a").expect(201);
        regions.fail_over("West", Failover::Planned).unwrap();
        regions.pause_replication("East").unwrap();
        regions.remove_region("North").unwrap();
        create(&mut world.at("West"), "b").expect(201);
    }
    let world = World::new(config());
    let regions = world.emulator.regions();
    assert_eq!(regions.write_region(), "West");
    let names: Vec<_> = regions.list().into_iter().map(|region| region.name).collect();
    assert_eq!(names, ["East", "West"], "what left does not come back because a configuration names it");
    world.arrive();
    assert_eq!(world.items("East").len(), 1, "still cut off");
    assert_eq!(create(&mut world.at("East"), "c").status(), (403, 3));
    let written = create(&mut world.at("West"), "c").expect(201);
    assert_eq!(token(&written), "0:4#4#1=-1");
    regions.resume_replication("East").unwrap();
    world.arrive();
    assert_eq!(world.items("East"), world.items("West"));
}

/// Who merges session tokens lets the newer version win, so a replica must not claim one that it has not reached.
#[test]
fn a_replica_that_lags_claims_no_newer_version_after_a_restart() {
    for change in ["failover", "new region"] {
        let (folder, now) = (tempfile::tempdir().unwrap(), now());
        let config = || kept(folder.path(), &["East", "West", "North"]);
        let before = {
            let world = World::starting_at(now, config()).with_container();
            create(&mut world.at("East"), "a").expect(201);
            world.arrive();
            read(&mut world.at("North"), "a").expect(200);
            create(&mut world.at("East"), "b").expect(201);
            match change {
                "failover" => world.emulator.regions().fail_over("West", Failover::Planned).unwrap(),
                _ => drop(world.emulator.regions().add_region("South").unwrap()),
            }
            token(&read(&mut world.at("North"), "a").expect(200))
        };
        let version = |token: &str| token.split([':', '#']).nth(1).unwrap().parse::<i64>().unwrap();
        let world = World::starting_at(now, config());
        let after = token(&read(&mut world.at("North"), "a").expect(200));
        assert_eq!(after, before, "{change}");
        world.arrive();
        world.arrive();
        let arrived = token(&read(&mut world.at("North"), "b").expect(200));
        assert_eq!(version(&arrived), version(&before) + 1, "{change}");
    }
}

#[test]
fn writes_of_several_regions_agree_after_a_restart() {
    let (folder, now) = (tempfile::tempdir().unwrap(), now());
    let config = || kept(folder.path(), &["East", "West"]).with_write_mode(WriteMode::Multiple);
    {
        let world = World::starting_at(now, config()).with_container();
        upsert(&mut world.at("East"), &json!({"id": "a", "pk": "k", "n": 1})).expect(201);
        world.hand.advance(Duration::from_secs(1));
        upsert(&mut world.at("West"), &json!({"id": "a", "pk": "k", "n": 2})).expect(201);
        create(&mut world.at("West"), "b").expect(201);
    }
    let world = World::starting_at(now, config());
    assert_eq!(read(&mut world.at("East"), "a").expect(200).json()["n"], 1);
    create(&mut world.at("East"), "c").expect(201);
    world.hand.advance(Duration::from_secs(1));
    world.arrive();
    assert_eq!(read(&mut world.at("East"), "a").expect(200).json()["n"], 2);
    assert_eq!(world.items("East"), world.items("West"));
    assert_eq!(world.items("West").len(), 3);
}

#[test]
fn a_folder_keeps_its_regions_and_takes_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let start = |config: Config| Emulator::start(config.with_folder(folder.path(), Fsync::Off));
    let names = |emulator: &Emulator| -> Vec<_> {
        emulator.regions().list().into_iter().map(|region| region.name).collect()
    };
    {
        let emulator = start(Config::default()).unwrap();
        let mut client = Client::new(&emulator).with_container();
        create(&mut client, "a").expect(201);
    }
    {
        let emulator = start(Config::default().with_regions(&["Local", "West"])).unwrap();
        assert_eq!(names(&emulator), ["Local", "West"]);
        let endpoint = emulator.regions().endpoint_of("West").unwrap();
        read(&mut Client::at(&endpoint, emulator.key()), "a").expect(200);
    }
    assert_eq!(names(&start(Config::default()).unwrap()), ["Local", "West"]);
    let error = start(Config::default().with_write_mode(WriteMode::Multiple)).unwrap_err();
    assert!(error.to_string().contains("one write region"), "{error}");
}

#[test]
fn a_folder_that_is_opened_without_a_word_about_regions_keeps_those_it_has() {
    let folder = tempfile::tempdir().unwrap();
    for config in [Config::default().with_regions(&["East US", "West US"]), Config::default()] {
        let emulator = Emulator::start(config.with_folder(folder.path(), Fsync::Off)).unwrap();
        let names: Vec<_> = emulator.regions().list().into_iter().map(|region| region.name).collect();
        assert_eq!(names, ["East US", "West US"]);
    }
}

const FOLDER: &str = "REGIONS_CRASH_FOLDER";
const ROUNDS: usize = 8;

/// A process writes, moves the write region and cuts regions off, and is killed at any moment. Whatever it
/// acknowledged is in every region when replication is done, and nothing else is.
#[test]
fn killed_in_the_middle_of_failovers_and_backlogs_nothing_acknowledged_is_lost() {
    if let Some(folder) = env::var_os(FOLDER) {
        return work_until_killed(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut acknowledged, mut asked) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..ROUNDS {
        run_and_kill(folder.path(), 40 + 35 * round, &mut acknowledged, &mut asked);
        let world = World::new(kept(folder.path(), &["East", "West"]));
        for region in ["East", "West"] {
            world.emulator.regions().resume_replication(region).unwrap();
        }
        world.emulator.regions().set_replication_delay(ReplicationDelay::everywhere(Duration::ZERO));
        let shown: BTreeSet<_> =
            world.items("East").iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(world.items("East"), world.items("West"));
        assert_eq!(acknowledged.difference(&shown).collect::<Vec<_>>(), Vec::<&String>::new());
        assert_eq!(shown.difference(&asked).collect::<Vec<_>>(), Vec::<&String>::new());
        let region = world.emulator.regions().write_region();
        let probe = format!("probe{round}");
        create(&mut world.at(&region), &probe).expect(201);
        asked.insert(probe.clone());
        acknowledged.insert(probe);
    }
}

/// Runs a worker until it has said so many lines, and kills it.
fn run_and_kill(
    folder: &Path,
    lines: usize,
    acknowledged: &mut BTreeSet<String>,
    asked: &mut BTreeSet<String>,
) {
    let test =
        "regions::restart::killed_in_the_middle_of_failovers_and_backlogs_nothing_acknowledged_is_lost";
    let mut worker = Again::start(test, FOLDER, folder);
    let mut hear = |line: String| match line.split_once(' ') {
        Some(("asked", id)) => drop(asked.insert(id.to_owned())),
        Some(("done", id)) => drop(acknowledged.insert(id.to_owned())),
        _ => {}
    };
    worker.lines().take(lines).for_each(&mut hear);
    worker.kill();
    // What it managed to say before the end counts.
    worker.lines().for_each(hear);
}

fn work_until_killed(folder: &Path) {
    let long = ReplicationDelay::everywhere(Duration::from_secs(3_600));
    let world = World::new(kept(folder, &["East", "West"]).with_replication_delay(long));
    let regions = world.emulator.regions();
    if world.at(&regions.write_region()).get("/dbs/d").send().status == 404 {
        world.at(&regions.write_region()).with_container();
    }
    for index in 0.. {
        let id = format!("p{}i{index}", std::process::id());
        let region = regions.write_region();
        say(&format!("asked {id}"));
        create(&mut world.at(&region), &id).expect(201);
        say(&format!("done {id}"));
        if index % 15 == 14 {
            let other = if region == "East" { "West" } else { "East" };
            regions.fail_over(other, Failover::Planned).unwrap();
            say(&format!("moved {other}"));
        }
    }
}
