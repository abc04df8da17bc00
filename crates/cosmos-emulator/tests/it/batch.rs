//! Transactional batches and bulk requests over the wire.

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
    let answer = client
        .post(ITEMS, &json!([step("a", "x"), step("taken", "x"), step("b", "y")]))
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "False")
        .header("x-ms-cosmos-batch-continue-on-error", "True")
        .header("x-ms-documentdb-partitionkeyrangeid", "0")
        .send();
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
