//! Transactional batches and bulk requests over the wire.

use std::time::Duration;

use cosmos_emulator::{Progression, SplitMode};
use serde_json::{Value, json};

use crate::client::{Answer, Client, with_container};

const ITEMS: &str = "/dbs/d/colls/c/docs";

fn batch(client: &mut Client, steps: &Value) -> Answer {
    client
        .post(ITEMS, steps)
        .key("x")
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "True")
        .header("x-ms-cosmos-batch-continue-on-error", "False")
        .send()
}

fn create(id: &str) -> Value {
    json!({"operationType": "Create", "resourceBody": {"id": id, "pk": "x", "n": 1}})
}

fn read(id: &str) -> Value {
    json!({"operationType": "Read", "id": id, "partitionKey": "[\"x\"]"})
}

fn bulk(client: &mut Client, range: &str, steps: &Value) -> Answer {
    client
        .post(ITEMS, steps)
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "False")
        .header("x-ms-cosmos-batch-continue-on-error", "True")
        .header("x-ms-documentdb-partitionkeyrangeid", range)
        .send()
}

fn statuses(answer: &Answer) -> Vec<u64> {
    answer.json().as_array().unwrap().iter().map(|result| result["statusCode"].as_u64().unwrap()).collect()
}

#[test]
fn every_kind_of_step_works() {
    let (_emulator, mut client) = with_container();
    let answer = batch(
        &mut client,
        &json!([
            create("a"),
            {"operationType": "Upsert", "resourceBody": {"id": "b", "pk": "x"}},
            {"operationType": "Replace", "id": "a", "resourceBody": {"id": "a", "pk": "x", "n": 2}},
            {"operationType": "Patch", "id": "a", "resourceBody": {"operations": [{"op": "incr", "path": "/n", "value": 5}]}},
            {"operationType": "Read", "id": "a"},
            {"operationType": "Delete", "id": "b"},
        ]),
    )
    .expect(200);
    assert_eq!(statuses(&answer), [201, 201, 200, 200, 200, 204]);
    assert_eq!(answer.json()[4]["resourceBody"]["n"], 7);
    assert_eq!(answer.header("x-ms-item-count"), "6");
    let next = batch(&mut client, &json!([create("x"), create("y")])).expect(200);
    let lsn = |answer: &Answer| answer.header("lsn").parse::<u64>().unwrap();
    assert_eq!(lsn(&next), lsn(&answer) + 1, "one batch, one LSN");
    client.get(&format!("{ITEMS}/b")).key("x").send().expect(404);
}

#[test]
fn a_failing_step_undoes_the_others() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "taken", "pk": "x"})).expect(201);
    let answer = batch(&mut client, &json!([create("a"), create("taken"), create("b")]));
    assert_eq!(answer.status, 207);
    assert_eq!(statuses(&answer), [424, 409, 424]);
    client.get(&format!("{ITEMS}/a")).key("x").send().expect(404);
}

#[test]
fn a_step_with_a_stale_etag_fails_the_batch() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let stale = json!({"operationType": "Replace", "id": "a", "ifMatch": "\"stale\"", "resourceBody": {"id": "a", "pk": "x"}});
    let answer = batch(&mut client, &json!([create("b"), stale]));
    assert_eq!((answer.status, statuses(&answer)), (207, vec![424, 412]));
}

#[test]
fn a_step_of_another_partition_is_refused() {
    let (_emulator, mut client) = with_container();
    let other = json!({"operationType": "Create", "resourceBody": {"id": "z", "pk": "y"}});
    let answer = batch(&mut client, &json!([create("a"), other]));
    assert_eq!((answer.status, statuses(&answer)), (207, vec![424, 400]));
    assert_eq!(answer.json()[1]["subStatusCode"], 1001);
}

#[test]
fn a_hundred_steps_are_the_limit() {
    let (_emulator, mut client) = with_container();
    let steps =
        |count: usize| Value::from((0..count).map(|index| create(&format!("i{index}"))).collect::<Vec<_>>());
    let refused = batch(&mut client, &steps(101));
    assert_eq!(refused.status, 400);
    assert!(refused.message().contains("more operations than what is supported"), "{}", refused.message());
    batch(&mut client, &steps(100)).expect(200);
}

#[test]
fn two_megabytes_are_the_limit() {
    let (_emulator, mut client) = with_container();
    let large = |id: &str| json!({"operationType": "Create", "resourceBody": {"id": id, "pk": "x", "blob": "y".repeat(700_000)}});
    batch(&mut client, &json!([large("a"), large("b")])).expect(200);
    batch(&mut client, &json!([large("c"), large("d"), large("e")])).expect(413);
}

#[test]
fn bulk_steps_stand_alone() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "taken", "pk": "x"})).expect(201);
    let step = |id: &str, key: &str| json!({"operationType": "Create", "partitionKey": json!([key]).to_string(), "resourceBody": {"id": id, "pk": key}});
    let answer = bulk(&mut client, "0", &json!([step("a", "x"), step("taken", "x"), step("b", "y")]));
    assert_eq!((answer.status, statuses(&answer)), (207, vec![201, 409, 201]));
    client.get(&format!("{ITEMS}/b")).key("y").send().expect(200);
}

#[test]
fn a_body_that_is_no_batch_is_400() {
    let (_emulator, mut client) = with_container();
    for wrong in [json!({}), json!([1]), json!([{"operationType": "Fly"}]), json!([{"id": "a"}])] {
        assert_eq!(batch(&mut client, &wrong).status, 400, "{wrong}");
    }
}

#[test]
fn a_batch_whose_answer_is_beyond_four_megabytes_does_nothing() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "large", "pk": "x", "blob": "y".repeat(1_500_000)})).expect(201);
    let answer = batch(&mut client, &json!([read("large"), read("large")])).expect(200);
    assert_eq!(statuses(&answer), [200, 200]);
    let steps = json!([create("a"), read("large"), read("large"), read("large"), create("b")]);
    let answer = batch(&mut client, &steps);
    assert_eq!((answer.status, statuses(&answer)), (207, vec![424, 424, 424, 413, 424]));
    assert_eq!(answer.json()[3]["subStatusCode"], 3402);
    client.get(&format!("{ITEMS}/a")).key("x").send().expect(404);
}

#[test]
fn documents_that_are_not_wanted_back_do_not_count_in_the_answer() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "large", "pk": "x", "n": 0, "blob": "y".repeat(1_500_000)})).expect(201);
    let more = json!({"operationType": "Patch", "id": "large", "resourceBody": {"operations": [{"op": "incr", "path": "/n", "value": 1}]}});
    let steps = json!([more, more, more, more]);
    assert_eq!(statuses(&batch(&mut client, &steps)), [424, 424, 413, 424]);
    let answer = client
        .post(ITEMS, &steps)
        .key("x")
        .header("prefer", "return=minimal")
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "True")
        .send()
        .expect(200);
    assert_eq!(statuses(&answer), [200, 200, 200, 200]);
    assert_eq!(client.get(&format!("{ITEMS}/large")).key("x").send().expect(200).json()["n"], 4);
}

#[test]
fn bulk_steps_beyond_four_megabytes_of_answer_are_refused_and_not_done() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "large", "pk": "x", "blob": "y".repeat(1_500_000)})).expect(201);
    let steps: Vec<_> = (0..100).map(|_| read("large")).collect();
    let answer = bulk(&mut client, "0", &json!(steps));
    assert_eq!(answer.status, 207);
    assert_eq!(statuses(&answer), [vec![200; 2], vec![413; 98]].concat());
    assert!(answer.json().as_array().unwrap()[2..].iter().all(|step| step["subStatusCode"] == 3402));
    let touch = |id: &str| json!({"operationType": "Patch", "id": id, "partitionKey": "[\"x\"]", "resourceBody": {"operations": [{"op": "incr", "path": "/n", "value": 1}]}});
    let answer =
        bulk(&mut client, "0", &json!([touch("large"), touch("large"), touch("large"), touch("large")]));
    assert_eq!(statuses(&answer), [200, 200, 200, 413], "what was done is said");
    assert_eq!(client.get(&format!("{ITEMS}/large")).key("x").send().expect(200).json()["n"], 3);
}

#[test]
fn a_bulk_request_is_for_the_range_it_names() {
    let (emulator, mut client) = with_container();
    let step = |key: &str| json!({"operationType": "Upsert", "partitionKey": json!([key]).to_string(), "resourceBody": {"id": "i", "pk": key}});
    let keys: Vec<_> = (0..16).map(|i| format!("p{i}")).collect();
    let steps = Value::from(keys.iter().map(|key| step(key)).collect::<Vec<_>>());
    assert_eq!(bulk(&mut client, "7", &steps).status(), (410, 1002), "there is no such range");
    bulk(&mut client, "0", &steps).expect(200);
    let at_once = Progression::Automatic { lock_duration: Duration::ZERO };
    emulator.split("d", "c", 0, SplitMode::Midpoint, at_once).expect("it is split");
    assert_eq!(bulk(&mut client, "0", &steps).status(), (410, 1002), "the range was split");
    let (left, right) = (bulk(&mut client, "1", &steps), bulk(&mut client, "2", &steps));
    assert_eq!((left.status, right.status), (207, 207));
    let (left, right) = (left.json(), right.json());
    for (at, key) in keys.iter().enumerate() {
        let mut both =
            [&left[at], &right[at]].map(|step| (step["statusCode"].clone(), step["subStatusCode"].clone()));
        both.sort_by_key(|(status, _)| status.as_u64());
        assert_eq!(both, [(json!(200), Value::Null), (json!(410), json!(1002))], "{key}");
    }
}
