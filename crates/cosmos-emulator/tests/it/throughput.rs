//! Throughput: budgets per physical partition, refusals, serverless accounts, and what partitions tell of themselves.

use std::time::Duration;

use cosmos_emulator::{Clock, Config, Emulator, FaultRule, ManualClock, Operation};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

/// Long enough after 1970 for requests to be signed with the machine's clock: they are not signed here.
const START: Duration = Duration::from_secs(1_794_700_800);

fn start(config: Config) -> (Emulator, Client, ManualClock) {
    let (clock, hand) = Clock::manual(START);
    let config = config.with_auth(cosmos_emulator::Auth::Open);
    let emulator = Emulator::start_with_clock(config, clock).expect("it starts");
    let client = Client::new(&emulator);
    (emulator, client, hand)
}

fn container(client: &mut Client, name: &str, throughput: &str) -> Answer {
    let body = json!({"id": name, "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    client.post("/dbs/d/colls", &body).header("x-ms-offer-throughput", throughput).send()
}

fn create(client: &mut Client, container: &str, id: u32, pk: &str) -> Answer {
    let item = json!({"id": id.to_string(), "pk": pk});
    client.post(&format!("/dbs/d/colls/{container}/docs"), &item).key(pk).send()
}

/// Creates items until one is refused; returns how many were not, and the refusal.
fn exhaust(client: &mut Client, container: &str, pk: &str, from: u32) -> (u32, Answer) {
    for id in from.. {
        let answer = create(client, container, id, pk);
        if answer.status != 201 {
            return (id - from, answer);
        }
    }
    unreachable!("the numbers do not end")
}

#[test]
fn nothing_is_throttled_unless_asked_for() {
    let (emulator, mut client, _hand) = start(Config::default());
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    container(&mut client, "c", "400").expect(201);
    for id in 0..200 {
        create(&mut client, "c", id, "a").expect(201);
    }
    let report = &emulator.partitions("d", "c").expect("it is there")[0];
    assert_eq!((report.requests, report.throttled, report.documents), (200, 0, 200));
    assert!(report.normalized_last_second > 2.0, "1200 RUs of 400: {report:?}");
}

#[test]
fn a_partition_that_is_overdrawn_answers_429_until_the_clock_refills_it() {
    let (_emulator, mut client, hand) = start(Config::default().with_throttling());
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    container(&mut client, "c", "400").expect(201);
    let (served, refused) = exhaust(&mut client, "c", "a", 0);
    assert!((60..80).contains(&served), "400 RUs are {served} creates");
    assert_eq!(refused.status(), (429, 3200));
    let pause: u64 = refused.header("x-ms-retry-after-ms").parse().expect("a number");
    assert!((1..=1_000).contains(&pause), "{pause} ms");
    assert!(refused.message().contains("Request rate is large"), "{}", refused.message());
    client.get("/dbs/d/colls/c/docs/0").key("a").send().expect(429);
    client.query("SELECT * FROM c").expect(429);
    let page = client.get("/dbs/d/colls/c/docs").header("a-im", "Incremental Feed");
    page.header("x-ms-documentdb-partitionkeyrangeid", "0").send().expect(429);
    hand.advance(Duration::from_millis(pause + 1));
    client.get("/dbs/d/colls/c/docs/0").key("a").send().expect(200);
    hand.advance(Duration::from_secs(3_600));
    let (served_again, _) = exhaust(&mut client, "c", "a", served);
    assert!(served_again.abs_diff(served) <= 1, "an hour saves up no more than a second");
}

#[test]
fn each_physical_partition_has_its_own_part_of_the_throughput() {
    let (emulator, mut client, _hand) = start(Config::default().with_throttling().with_partitions(4));
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    container(&mut client, "c", "400").expect(201);
    let (served, _) = exhaust(&mut client, "c", "a", 0);
    assert!((15..20).contains(&served), "100 RUs are {served} creates");
    let reports = emulator.partitions("d", "c").expect("it is there");
    let hot: Vec<_> = reports.iter().filter(|report| report.throttled > 0).collect();
    assert_eq!((reports.len(), hot.len()), (4, 1));
    assert!(hot[0].normalized_last_second >= 1.0 && hot[0].budget == Some(100.0), "{hot:?}");
    let other = (0..).map(|n| format!("k{n}")).find(|pk| create(&mut client, "c", 0, pk).status == 201);
    assert!(other.is_some(), "the other partitions still serve");
    let shown = serde_json::to_value(&reports).expect("it is data");
    assert!(shown[0]["normalizedLastMinute"].is_number() && shown[0]["storageBytes"].is_number());
}

#[test]
fn a_raised_offer_and_an_autoscale_maximum_serve_more() {
    let (_emulator, mut client, hand) = start(Config::default().with_throttling());
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    container(&mut client, "c", "400").expect(201);
    let (first, _) = exhaust(&mut client, "c", "a", 0);
    let offer = client.get("/offers").send().expect(200).json()["Offers"][0].clone();
    let mut raised = offer.clone();
    raised["content"]["offerThroughput"] = json!(800);
    let path = format!("/offers/{}", offer["id"].as_str().expect("text"));
    client.put(&path, &raised).send().expect(200);
    hand.advance(Duration::from_secs(2));
    let (second, _) = exhaust(&mut client, "c", "a", first);
    assert!(second.abs_diff(2 * first) <= 2, "{first} and then {second}");
    let body = json!({"id": "auto", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    let settings = json!({"maxThroughput": 1_000}).to_string();
    client
        .post("/dbs/d/colls", &body)
        .header("x-ms-cosmos-offer-autopilot-settings", &settings)
        .send()
        .expect(201);
    let (auto, _) = exhaust(&mut client, "auto", "a", 0);
    assert!((150..200).contains(&auto), "1000 RUs are {auto} creates");
}

#[test]
fn containers_without_an_offer_share_the_throughput_of_their_database() {
    let (_emulator, mut client, _hand) = start(Config::default().with_throttling());
    client.post("/dbs", &json!({"id": "d"})).header("x-ms-offer-throughput", "400").send().expect(201);
    container(&mut client, "one", "").expect(201);
    container(&mut client, "two", "").expect(201);
    container(&mut client, "own", "400").expect(201);
    exhaust(&mut client, "one", "a", 0);
    create(&mut client, "two", 0, "a").expect(429);
    create(&mut client, "own", 0, "a").expect(201);
}

fn batch(client: &mut Client, count: u32, prefix: &str, atomic: bool) -> Answer {
    let steps: Vec<Value> = (0..count)
        .map(|id| {
            let item = json!({"id": format!("{prefix}{id}"), "pk": "a"});
            json!({"operationType": "Create", "partitionKey": "[\"a\"]", "resourceBody": item})
        })
        .collect();
    client
        .post("/dbs/d/colls/c/docs", &Value::Array(steps))
        .key("a")
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", if atomic { "True" } else { "False" })
        .header("x-ms-cosmos-batch-continue-on-error", "True")
        .send()
}

#[test]
fn a_step_of_a_batch_that_finds_the_budget_used_up_is_429_inside_the_207() {
    let (_emulator, mut client, hand) = start(Config::default().with_throttling());
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    container(&mut client, "c", "400").expect(201);
    create(&mut client, "c", 0, "a").expect(201);
    let answer = batch(&mut client, 100, "x", true).expect(207).json();
    let statuses: Vec<_> =
        answer.as_array().expect("a list").iter().map(|r| r["statusCode"].clone()).collect();
    let refused = statuses.iter().position(|status| *status == 429).expect("one is refused");
    assert_eq!(answer[refused]["subStatusCode"], 3200);
    assert!(answer[refused]["retryAfterMilliseconds"].as_u64().is_some_and(|pause| pause > 0));
    assert!(statuses.iter().enumerate().all(|(at, status)| at == refused || *status == 424));
    client.get("/dbs/d/colls/c/docs/x0").key("a").send().expect(429);
    hand.advance(Duration::from_secs(60));
    client.get("/dbs/d/colls/c/docs/x0").key("a").send().expect(404);
    hand.advance(Duration::from_secs(60));
    batch(&mut client, 100, "x", true).expect(200);
    batch(&mut client, 1, "y", true).expect(429);
    hand.advance(Duration::from_secs(60));
    let bulk = batch(&mut client, 100, "z", false).expect(207).json();
    let bulk: Vec<_> = bulk.as_array().expect("a list").iter().map(|r| r["statusCode"].clone()).collect();
    let served = bulk.iter().filter(|status| **status == 201).count();
    assert!((60..80).contains(&served) && bulk[99] == 429, "{bulk:?}");
}

#[test]
fn a_serverless_account_has_no_offers_and_five_thousand_units() {
    let (_emulator, mut client, _hand) = start(Config::default().with_serverless().with_throttling());
    let refused = client.post("/dbs", &json!({"id": "d"})).header("x-ms-offer-throughput", "400").send();
    assert!(refused.message().contains("serverless"), "{}", refused.message());
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    container(&mut client, "c", "400").expect(400);
    container(&mut client, "c", "").expect(201);
    assert_eq!(client.get("/offers").send().expect(200).json()["_count"], 0);
    let (served, refused) = exhaust(&mut client, "c", "a", 0);
    assert!((800..900).contains(&served), "5000 RUs are {served} creates");
    assert_eq!(refused.status(), (429, 3200));
}

#[test]
fn a_rule_makes_the_refusals_that_no_budget_makes() {
    let (emulator, mut client, _hand) = start(Config::default());
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    container(&mut client, "c", "400").expect(201);
    for (code, sub_status) in [(449, 0), (429, 3092)] {
        let rule = FaultRule::status(code, sub_status).on(Operation::CreateItem).times(1);
        let _guard = emulator.faults().add(rule);
        assert_eq!(create(&mut client, "c", 1, "a").status(), (code, sub_status));
        assert_eq!(client.get("/dbs/d/colls/c/docs/1").key("a").send().status, 404, "nothing was written");
    }
    create(&mut client, "c", 1, "a").expect(201);
}
