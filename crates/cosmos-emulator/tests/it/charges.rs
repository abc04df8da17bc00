//! What recorded operations of the service cost here: every charge within a tenth of the recorded one.

use serde_json::{Value, json};

use crate::client::{Answer, Client, with_container};

const ITEMS: &str = "/dbs/d/colls/c/docs";

#[track_caller]
fn costs(what: &str, charge: f64, recorded: f64) {
    let off = (charge - recorded).abs() / recorded;
    assert!(off <= 0.10, "{what}: recorded {recorded}, charged {charge} ({:.1} % off)", off * 100.0);
}

fn charge(answer: &Answer) -> f64 {
    answer.header("x-ms-request-charge").parse().expect("a charge")
}

/// A document like those of the recordings: a few texts and numbers, 300 bytes with what the service adds.
fn document(number: usize, fields: usize) -> Value {
    let mut document = json!({"id": format!("item-{number}"), "pk": "x", "n": number});
    for (name, value) in
        [("s", json!(format!("{number:060}"))), ("t", json!(number % 10))].into_iter().take(fields - 3)
    {
        document[name] = value;
    }
    document
}

/// Creates a hundred documents in one batch; the charge of each.
fn batch(client: &mut Client, first: usize, fields: usize) -> Vec<f64> {
    let create = |number| json!({"operationType": "Create", "resourceBody": document(number, fields)});
    let operations: Vec<Value> = (first..first + 100).map(create).collect();
    let request = client
        .post(ITEMS, &operations.into())
        .key("x")
        .header("x-ms-cosmos-is-batch-request", "True")
        .header("x-ms-cosmos-batch-atomic", "True");
    let answer = request.send().expect(200);
    let steps = answer.json();
    let charges: Vec<f64> =
        steps.as_array().unwrap().iter().map(|step| step["requestCharge"].as_f64().unwrap()).collect();
    let together: f64 = charges.iter().sum();
    assert!((charge(&answer) - together).abs() < 0.01 * together, "{} of {together}", charge(&answer));
    charges
}

fn query(client: &mut Client, text: &str, rows: usize) -> f64 {
    let request = client.question(&json!({"query": text})).key("x").header("x-ms-max-item-count", "-1");
    let answer = request.send().expect(200);
    assert_eq!(answer.json()["_count"], rows, "{text}");
    charge(&answer)
}

#[test]
fn single_operations_cost_what_the_service_charged() {
    let (_emulator, mut client) = with_container();
    costs("a database", charge(&client.post("/dbs", &json!({"id": "other"})).send().expect(201)), 1.0);
    let container = json!({"id": "other", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    costs("a container", charge(&client.post("/dbs/d/colls", &container).send().expect(201)), 1.0);
    let four = document(1, 4);
    let path = format!("{ITEMS}/item-1");
    costs("create", charge(&client.create(&four).expect(201)), 6.67);
    costs("read", charge(&client.get(&path).key("x").send().expect(200)), 1.0);
    let upsert = client.post(ITEMS, &four).key("x").header("x-ms-documentdb-is-upsert", "True");
    costs("upsert over existing", charge(&upsert.send().expect(200)), 10.67);
    costs("delete", charge(&client.delete(&path).key("x").send().expect(204)), 6.67);
    let five = document(1, 5);
    client.create(&five).expect(201);
    costs("replace", charge(&client.put(&path, &five).key("x").send().expect(200)), 11.05);
    costs("a query of one document", query(&mut client, "SELECT * FROM c WHERE c.id = 'item-1'", 1), 2.26);
}

#[test]
fn batches_and_long_queries_cost_what_the_service_charged() {
    let (_emulator, mut client) = with_container();
    for first in (0..2_500).step_by(100) {
        for each in batch(&mut client, first, 5) {
            costs("a create of five fields in a batch", each, 7.0476);
        }
    }
    costs("a thousand rows", query(&mut client, "SELECT c.id, c.n FROM c WHERE c.n < 1000", 1_000), 17.16);
    costs("2500 rows", query(&mut client, "SELECT c.id, c.n FROM c", 2_500), 34.72);
    for each in batch(&mut client, 2_500, 3) {
        costs("a create of three fields in a batch", each, 6.2857);
    }
}
