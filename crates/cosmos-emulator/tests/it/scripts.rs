//! Stored procedures, triggers and user defined functions over the wire.

use cosmos_emulator::{Config, Emulator, Fsync};
use serde_json::{Value, json};

use crate::client::{Answer, Client, with_container};

const CONTAINER: &str = "/dbs/d/colls/c";

fn procedure(client: &mut Client, id: &str, body: &str) {
    client.post(&format!("{CONTAINER}/sprocs"), &json!({"id": id, "body": body})).send().expect(201);
}

fn execute(client: &mut Client, id: &str, arguments: &Value) -> Answer {
    client.post(&format!("{CONTAINER}/sprocs/{id}"), arguments).key("p").send()
}

fn ids(client: &mut Client) -> Vec<Value> {
    let question = json!({"query": "SELECT VALUE c.id FROM c ORDER BY c.id"});
    client.question(&question).key("p").send().expect(200).json()["Documents"].as_array().unwrap().clone()
}

#[test]
fn scripts_are_kept_listed_replaced_and_deleted() {
    let (_emulator, mut client) = with_container();
    for (segment, member, extra) in [
        ("sprocs", "StoredProcedures", json!({})),
        ("udfs", "UserDefinedFunctions", json!({})),
        ("triggers", "Triggers", json!({"triggerType": "Pre", "triggerOperation": "All"})),
    ] {
        let feed = format!("{CONTAINER}/{segment}");
        let mut body = json!({"id": "s", "body": "function () { return 1; }"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let made = client.post(&feed, &body).send().expect(201).json();
        assert_eq!(made["body"], body["body"]);
        assert!(made["_self"].as_str().unwrap().contains(segment), "{made}");
        client.post(&feed, &body).send().expect(409);
        assert_eq!(client.get(&feed).send().expect(200).json()[member].as_array().unwrap().len(), 1);
        let question = json!({"query": "SELECT * FROM r WHERE r.id = 's'"});
        let asked = client.post(&feed, &question).header("content-type", "application/query+json");
        assert_eq!(asked.header("x-ms-documentdb-isquery", "True").send().expect(200).json()["_count"], 1);
        body["body"] = json!("function () { return 2; }");
        let one = format!("{feed}/s");
        client.put(&one, &body).header("if-match", "\"other\"").send().expect(412);
        assert_eq!(client.put(&one, &body).send().expect(200).json()["body"], body["body"]);
        assert_eq!(client.get(&one).send().expect(200).json()["body"], body["body"]);
        client.delete(&one).send().expect(204);
        client.get(&one).send().expect(404);
        client.post(&feed, &json!({"id": "bad"})).send().expect(400);
    }
}

#[test]
fn a_procedure_takes_arguments_reads_writes_and_queries_in_one_transaction() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "old", "pk": "p", "n": 1})).expect(201);
    client.create(&json!({"id": "elsewhere", "pk": "q"})).expect(201);
    procedure(
        &mut client,
        "work",
        "function (name, count) {
            var context = getContext(), all = context.getCollection(), link = all.getSelfLink();
            console.log('begins', count);
            all.createDocument(link, {id: name, pk: 'p', n: count}, function (error, made) {
                if (error) throw error;
                all.queryDocuments(link, {query: 'SELECT * FROM c WHERE c.n >= @n ORDER BY c.n',
                    parameters: [{name: '@n', value: 1}]}, function (error, found) {
                    if (error) throw error;
                    found[0].n = 100;
                    all.replaceDocument(found[0]._self, found[0], {etag: found[0]._etag}, function (error, changed) {
                        if (error) throw error;
                        all.deleteDocument(all.getAltLink() + '/docs/' + name, function (error) {
                            if (error) throw error;
                            context.getResponse().setBody({made: made.id, found: found.length, n: changed.n});
                        });
                    });
                });
            });
        }",
    );
    let done = client
        .post(&format!("{CONTAINER}/sprocs/work"), &json!(["new", 5]))
        .key("p")
        .header("x-ms-documentdb-script-enable-logging", "true")
        .send()
        .expect(200);
    assert_eq!(done.json(), json!({"made": "new", "found": 2, "n": 100}));
    assert_eq!(done.header("x-ms-documentdb-script-log-results"), "begins%205");
    assert!(done.header("x-ms-request-charge").parse::<f64>().unwrap() > 10.0);
    assert_eq!(ids(&mut client), ["old"].map(Value::from));
    assert_eq!(client.get("/dbs/d/colls/c/docs/old").key("p").send().expect(200).json()["n"], 100);
    client.post(&format!("{CONTAINER}/sprocs/work"), &json!([])).send().expect(400);
    client.post(&format!("{CONTAINER}/sprocs/nothing"), &json!([])).key("p").send().expect(404);
}

#[test]
fn what_a_procedure_throws_undoes_all_of_it() {
    let (_emulator, mut client) = with_container();
    procedure(
        &mut client,
        "fails",
        "function (caught) {
            var all = getContext().getCollection(), link = all.getSelfLink();
            all.createDocument(link, {id: 'a', pk: 'p'});
            all.createDocument(link, {id: 'a', pk: 'p'}, caught ? function (error) {
                getContext().getResponse().setBody(error.number);
            } : undefined);
            if (!caught) all.createDocument(link, {id: 'b', pk: 'p'}, function () { throw new Error('enough'); });
        }",
    );
    let failed = execute(&mut client, "fails", &json!([false])).expect(400);
    assert!(
        failed.message().contains("Encountered exception while executing Javascript"),
        "{}",
        failed.message()
    );
    assert_eq!(ids(&mut client), Vec::<Value>::new());
    assert_eq!(execute(&mut client, "fails", &json!([true])).expect(200).json(), 409);
    assert_eq!(ids(&mut client), ["a"].map(Value::from), "a failed step that is caught leaves the others");
}

#[test]
fn a_procedure_stays_with_its_key_and_within_its_limits() {
    let (_emulator, mut client) = with_container();
    procedure(
        &mut client,
        "foreign",
        "function () { var all = getContext().getCollection(); all.createDocument(all.getSelfLink(), {id: 'x', pk: 'q'}); }",
    );
    execute(&mut client, "foreign", &json!([])).expect(400);
    procedure(&mut client, "large", "function () { return 'x'.repeat(1e9); }");
    assert!(execute(&mut client, "large", &json!([])).expect(400).message().contains("out of memory"));
    procedure(&mut client, "endless", "function () { while (true) {} }");
    execute(&mut client, "endless", &json!([])).expect(408);
    client.create(&json!({"id": "after", "pk": "p"})).expect(201);
}

#[test]
fn triggers_run_by_header_before_and_after_a_write() {
    let (_emulator, mut client) = with_container();
    let feed = format!("{CONTAINER}/triggers");
    for (id, kind, operation, body) in [
        (
            "stamp",
            "Pre",
            "Create",
            "function () { var r = getContext().getRequest(), b = r.getBody(); b.stamped = true; r.setBody(b); }",
        ),
        (
            "count",
            "Post",
            "All",
            "function () { var c = getContext(), all = c.getCollection(); var b = c.getResponse().getBody();
              all.upsertDocument(all.getSelfLink(), {id: 'last', pk: b.pk, of: b.id}); }",
        ),
        ("refuse", "Post", "All", "function () { throw new Error('no'); }"),
    ] {
        let body = json!({"id": id, "body": body, "triggerType": kind, "triggerOperation": operation});
        client.post(&feed, &body).send().expect(201);
    }
    let mut create = |id: &str, pre: &str, post: &str| {
        client
            .post("/dbs/d/colls/c/docs", &json!({"id": id, "pk": "p"}))
            .key("p")
            .header("x-ms-documentdb-pre-trigger-include", pre)
            .header("x-ms-documentdb-post-trigger-include", post)
            .send()
    };
    assert_eq!(create("a", "stamp", "count").expect(201).json()["stamped"], true);
    create("b", "", "refuse").expect(400);
    assert!(create("b", "nope", "").expect(400).message().contains("does not exist"));
    create("b", "count", "").expect(400);
    assert_eq!(ids(&mut client), ["a", "last"].map(Value::from));
    let last = client.get("/dbs/d/colls/c/docs/last").key("p").send().expect(200).json();
    assert_eq!(last["of"], "a");
    let replaced = client.put("/dbs/d/colls/c/docs/a", &json!({"id": "a", "pk": "p"})).key("p");
    replaced.header("x-ms-documentdb-pre-trigger-include", "stamp").send().expect(400);
}

#[test]
fn queries_call_user_defined_functions() {
    let (_emulator, mut client) = with_container();
    for (id, body) in [
        (
            "tax",
            "function tax(income) { if (income === undefined) return 'none'; return income > 100 ? income * 0.4 : 0; }",
        ),
        ("fails", "function () { throw new Error('no'); }"),
    ] {
        client.post(&format!("{CONTAINER}/udfs"), &json!({"id": id, "body": body})).send().expect(201);
    }
    for (id, n) in [("a", json!(50)), ("b", json!(200)), ("c", json!(null))] {
        client.create(&json!({"id": id, "pk": "p", "n": n})).expect(201);
    }
    let mut ask = |text: &str| client.question(&json!({"query": text})).key("p").send();
    let rows = |answer: Answer| answer.expect(200).json()["Documents"].as_array().unwrap().clone();
    assert_eq!(rows(ask("SELECT VALUE udf.tax(c.n) FROM c ORDER BY c.id")), [json!(0), json!(80), json!(0)]);
    assert_eq!(
        rows(ask("SELECT VALUE c.id FROM c WHERE udf.tax(c.nothing) = 'none' AND udf.tax(c.n) > 1")),
        [json!("b")]
    );
    assert!(ask("SELECT VALUE udf.nothing(c.n) FROM c").expect(400).message().contains("does not exist"));
    assert!(ask("SELECT VALUE udf.fails(c.n) FROM c").expect(400).message().contains("Javascript"));
}

#[test]
fn scripts_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let config = || Config::default().with_folder(folder.path(), Fsync::Off);
    let emulator = Emulator::start(config()).unwrap();
    let mut client = Client::new(&emulator).with_container();
    procedure(&mut client, "hello", "function () { getContext().getResponse().setBody('hello'); }");
    drop(emulator);
    let emulator = Emulator::start(config()).unwrap();
    let mut client = Client::new(&emulator);
    assert_eq!(execute(&mut client, "hello", &json!([])).expect(200).json(), "hello");
}

#[test]
fn values_named_body_are_the_body_and_logs_are_formatted() {
    let (_emulator, mut client) = with_container();
    let body = "function () { for (var i = 0; i < 10; i++) getContext().getResponse().appendValue('Body', i); \
                console.log('The value of %s is %d%%', 'x', 1, 'and more'); }";
    client.post("/dbs/d/colls/c/sprocs", &json!({"id": "append", "body": body})).send().expect(201);
    let run = client.post("/dbs/d/colls/c/sprocs/append", &json!([])).key("p");
    let answer = run.header("x-ms-documentdb-script-enable-logging", "true").send().expect(200);
    assert_eq!(answer.json(), "0123456789");
    assert_eq!(
        answer.header("x-ms-documentdb-script-log-results"),
        "The%20value%20of%20x%20is%201%25%20and%20more"
    );
}

#[test]
fn a_text_that_is_no_function_is_kept_and_refused_when_it_is_to_run() {
    let (_emulator, mut client) = with_container();
    let body = "Line Separator (\u{2028}) & nothing else";
    let kept =
        client.post("/dbs/d/colls/c/sprocs", &json!({"id": "text", "body": body})).send().expect(201).json();
    assert_eq!(kept["body"], body);
    let refused = client.post("/dbs/d/colls/c/sprocs/text", &json!([])).key("p").send().expect(400).message();
    assert!(refused.contains("SyntaxError"), "{refused}");
}
