//! Endpoints of Gateway 2.0: who is told of them, what they take, and what they refuse.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use cosmos_emulator::{Config, Emulator, FaultRule, Offline, Operation as Kind};
use cosmos_wire::epk::Epk;
use cosmos_wire::gateway2::{Operation, PROBE_PATH, Place, Request, Response};
use cosmos_wire::header;
use cosmos_wire::partition_key::{Definition, PartitionKey};
use cosmos_wire::signature::{Key, Signable};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::client::Client;

fn started() -> (Emulator, Client) {
    let emulator = Emulator::start(Config::default().with_gateway2()).unwrap();
    let client = Client::new(&emulator).with_container();
    (emulator, client)
}

fn endpoint(emulator: &Emulator) -> String {
    emulator.regions().list().remove(0).gateway2_endpoint.unwrap()
}

/// Posts a body over HTTP/2.
async fn post(emulator: &Emulator, path: &str, body: Vec<u8>) -> (u16, Bytes) {
    let endpoint = endpoint(emulator);
    let host = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let io = hyper_util::rt::TokioIo::new(tokio::net::TcpStream::connect(host).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::post(format!("http://{host}{path}"))
        .header("x-ms-version", "2020-07-15")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    connection.abort();
    (status, body)
}

/// What a frame is answered with: status, sub-status and body.
async fn ask(emulator: &Emulator, frame: Vec<u8>) -> (u16, u32, Value) {
    let (outer, body) = post(emulator, "/dbs/d/colls/c/docs", frame).await;
    let answer = Response::decode(&body).unwrap();
    let sub = answer.fields.iter().find(|(name, _)| *name == header::SUBSTATUS);
    let sub = sub.map_or(0, |(_, text)| text.parse().unwrap());
    let may_differ = matches!(answer.status, 204 | 304) && outer == 200;
    assert!(outer == answer.status || may_differ, "outside {outer}, inside {}", answer.status);
    (answer.status, sub, serde_json::from_slice(answer.body).unwrap_or_default())
}

/// A request that is as it should be.
struct Asked {
    operation: Operation,
    item: Option<&'static str>,
    epk: Vec<u8>,
    more: Vec<(&'static str, Cow<'static, str>)>,
    body: Option<Vec<u8>>,
}

impl Asked {
    fn new(operation: Operation) -> Self {
        let key: PartitionKey = r#"["p"]"#.parse().unwrap();
        let epk = Epk::of(&key, &Definition::hash("/pk").unwrap()).as_bytes().to_vec();
        let item = operation.names_an_item().then_some("1");
        Self { operation, item, epk, more: Vec::new(), body: None }
    }

    fn with_body(mut self, body: &Value) -> Self {
        self.body = Some(body.to_string().into_bytes());
        self
    }

    fn with(mut self, header: &'static str, text: &'static str) -> Self {
        self.more.push((header, text.into()));
        self
    }

    fn request(&self) -> Request<'_> {
        let date = cosmos_wire::date::format(std::time::SystemTime::now());
        let link = match self.item {
            Some(item) => format!("dbs/d/colls/c/docs/{item}"),
            None => "dbs/d/colls/c".to_owned(),
        };
        let key = Key::from_base64(cosmos_wire::EMULATOR_KEY).unwrap();
        let authorization = key.authorization(&Signable::new(self.operation.method(), "docs", &link, &date));
        let mut fields: Vec<(&'static str, Cow<'_, str>)> = vec![
            (header::AUTHORIZATION, authorization.into()),
            (header::X_DATE, date.into()),
            (header::PARTITION_KEY, r#"["p"]"#.into()),
        ];
        fields.extend(self.more.iter().cloned());
        Request {
            operation: self.operation,
            activity_id: [7; 16],
            account: "localhost",
            database: "d",
            container: "c",
            container_rid: None,
            item: self.item,
            place: Place::Key(&self.epk),
            fields,
            body: self.body.as_deref(),
        }
    }

    fn frame(&self) -> Vec<u8> {
        self.request().encode().unwrap()
    }
}

fn item() -> Value {
    json!({"id": "1", "pk": "p"})
}

#[test]
fn only_who_asks_is_told_and_only_where_there_are_any() {
    let (emulator, mut client) = started();
    let thin = "thinClientReadableLocations";
    assert_eq!(client.get("/").send().expect(200).json()[thin], Value::Null);
    let told = client.get("/").header("x-ms-cosmos-use-thinclient", "true").send().expect(200).json();
    for list in [thin, "thinClientWritableLocations"] {
        assert_eq!(told[list][0]["databaseAccountEndpoint"], endpoint(&emulator));
        assert_eq!(told[list][0]["name"], told["readableLocations"][0]["name"]);
    }
    let without = Emulator::start(Config::default()).unwrap();
    let mut client = Client::new(&without);
    let told = client.get("/").header("x-ms-cosmos-use-thinclient", "true").send().expect(200).json();
    assert_eq!(told[thin], Value::Null);
}

#[tokio::test]
async fn a_probe_needs_no_signature_and_says_whether_frames_are_taken() {
    let (emulator, _client) = tokio::task::spawn_blocking(started).await.unwrap();
    assert_eq!(post(&emulator, PROBE_PATH, Vec::new()).await, (200, Bytes::new()));
    let region = emulator.regions().list().remove(0).name;
    emulator.regions().take_gateway2_offline(&region, Offline::Unavailable).unwrap();
    assert_eq!(post(&emulator, PROBE_PATH, Vec::new()).await, (503, Bytes::new()));
    emulator.regions().bring_gateway2_online(&region).unwrap();
    assert_eq!(post(&emulator, PROBE_PATH, Vec::new()).await, (200, Bytes::new()));
    assert_eq!(emulator.regions().gateway2_requests(&region).unwrap(), 0);
}

#[test]
fn nothing_but_http2_is_spoken() {
    let (emulator, _client) = started();
    let endpoint = endpoint(&emulator);
    let mut stream =
        TcpStream::connect(endpoint.trim_start_matches("http://").trim_end_matches('/')).unwrap();
    stream.write_all(b"POST /connectivity-probe HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n").unwrap();
    let mut said = Vec::new();
    // Whether it closes or resets is the system's business.
    let _ = stream.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP/1"), "{}", String::from_utf8_lossy(&said));
}

#[tokio::test]
async fn an_item_lives_its_life_in_frames() {
    let (emulator, _client) = tokio::task::spawn_blocking(started).await.unwrap();
    let create = Asked::new(Operation::Create).with_body(&item());
    assert_eq!(ask(&emulator, create.frame()).await.0, 201);
    assert_eq!(ask(&emulator, create.frame()).await.0, 409);
    let (status, _, body) = ask(&emulator, Asked::new(Operation::Read).frame()).await;
    assert_eq!((status, &body["id"]), (200, &json!("1")));
    let patch = json!({"operations": [{"op": "add", "path": "/n", "value": 1}]});
    assert_eq!(ask(&emulator, Asked::new(Operation::Patch).with_body(&patch).frame()).await.0, 200);
    let stale = Asked::new(Operation::Replace).with_body(&item()).with(header::IF_MATCH, "\"old\"");
    assert_eq!(ask(&emulator, stale.frame()).await.0, 412);
    let minimal = Asked::new(Operation::Upsert).with_body(&item()).with(header::PREFER, "return=minimal");
    let (status, _, body) = ask(&emulator, minimal.frame()).await;
    assert_eq!((status, body), (200, Value::Null));
    let query = json!({"query": "SELECT VALUE c.id FROM c"});
    let (status, _, body) = ask(&emulator, Asked::new(Operation::Query).with_body(&query).frame()).await;
    assert_eq!((status, &body["Documents"]), (200, &json!(["1"])));
    assert_eq!(ask(&emulator, Asked::new(Operation::Delete).frame()).await.0, 204);
    assert_eq!(ask(&emulator, Asked::new(Operation::Read).frame()).await.0, 404);
}

#[tokio::test]
async fn who_takes_nothing_but_binary_gets_that() {
    let (emulator, _client) = tokio::task::spawn_blocking(started).await.unwrap();
    ask(&emulator, Asked::new(Operation::Create).with_body(&item()).frame()).await;
    for (formats, is_binary) in [("CosmosBinary", true), ("JsonText,CosmosBinary", false)] {
        let read = Asked::new(Operation::Read).with(header::SUPPORTED_SERIALIZATION_FORMATS, formats);
        let (_, body) = post(&emulator, "/dbs/d/colls/c/docs/1", read.frame()).await;
        let answer = Response::decode(&body).unwrap();
        assert_eq!(cosmos_wire::binary_json::is_binary(answer.body), is_binary, "{formats}");
        if is_binary {
            assert_eq!(cosmos_wire::binary_json::decode(answer.body).unwrap()["id"], "1");
        }
        let missing = Asked { item: Some("2"), ..Asked::new(Operation::Read) };
        let missing = missing.with(header::SUPPORTED_SERIALIZATION_FORMATS, formats);
        assert_eq!(ask(&emulator, missing.frame()).await.2["code"], "NotFound", "failures are told in text");
    }
}

#[tokio::test]
async fn a_batch_without_a_word_about_it_is_all_or_nothing() {
    let (emulator, mut client) = tokio::task::spawn_blocking(started).await.unwrap();
    let operations = json!([
        {"operationType": "Create", "resourceBody": {"id": "a", "pk": "p"}},
        {"operationType": "Create", "resourceBody": {"id": "a", "pk": "p"}},
    ]);
    let (status, _, body) = ask(&emulator, Asked::new(Operation::Batch).with_body(&operations).frame()).await;
    assert_eq!((status, &body[0]["statusCode"], &body[1]["statusCode"]), (207, &json!(424), &json!(409)));
    tokio::task::spawn_blocking(move || {
        client.get("/dbs/d/colls/c/docs/a").key(r#"["p"]"#).send().expect(404)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_a_frame_is_said_in_one() {
    let (emulator, _client) = tokio::task::spawn_blocking(started).await.unwrap();
    let whole = Asked::new(Operation::Read).frame();
    for frame in [Vec::new(), b"GET / HTTP/1.1".to_vec(), whole[..whole.len() - 1].to_vec(), vec![0xFF; 4096]]
    {
        let (status, sub, body) = ask(&emulator, frame).await;
        assert_eq!((status, sub), (400, 13007), "{body}");
        assert!(body["message"].as_str().unwrap().contains("not a frame"), "{body}");
    }
    let nowhere = Asked::new(Operation::Read);
    let nowhere = Request { place: Place::Anywhere, ..nowhere.request() }.encode().unwrap();
    assert_eq!(ask(&emulator, nowhere).await.1, 13007, "nobody could route it");
    let keyless = Asked::new(Operation::Query).with_body(&json!({"query": "SELECT * FROM c"}));
    let mut keyless = keyless.request();
    keyless.fields.retain(|(name, _)| *name != header::PARTITION_KEY);
    assert_eq!(ask(&emulator, keyless.encode().unwrap()).await.1, 13007, "it must not read all partitions");
    let mut astray = Asked::new(Operation::Read);
    astray.epk[0] ^= 1;
    let (status, sub, _) = ask(&emulator, astray.frame()).await;
    assert_eq!((status, sub), (400, 1001), "it would have reached another partition");
    let several = Asked::new(Operation::Read).with(header::SESSION_TOKEN, "0:-1#1,1:-1#1");
    assert_eq!(ask(&emulator, several.frame()).await.0, 400);
    let full = Asked::new(Operation::ReadFeed).with(header::A_IM, "Full-Fidelity Feed");
    assert_eq!(ask(&emulator, full.frame()).await.0, 400);
    let gone = Asked::new(Operation::Read);
    let gone = Request { container_rid: Some("AbCdEfGhIjI="), ..gone.request() }.encode().unwrap();
    assert_eq!(ask(&emulator, gone).await.1, 1024, "of a container that had this name before");
}

#[tokio::test]
async fn nobody_gets_in_by_a_frame_who_would_not_by_a_header() {
    let (emulator, _client) = tokio::task::spawn_blocking(started).await.unwrap();
    let asked = Asked::new(Operation::Read);
    let mut unsigned = asked.request();
    unsigned.fields.retain(|(name, _)| *name != header::AUTHORIZATION);
    assert_eq!(ask(&emulator, unsigned.encode().unwrap()).await.0, 401);
    let other = Request { item: Some("2"), ..asked.request() };
    assert_eq!(ask(&emulator, other.encode().unwrap()).await.0, 401, "a signature is for one item");
    let mut delete = asked.request();
    delete.operation = Operation::Delete;
    assert_eq!(ask(&emulator, delete.encode().unwrap()).await.0, 401, "and for one method");
}

#[tokio::test]
async fn faults_and_the_ledger_know_requests_in_frames() {
    let (emulator, _client) = tokio::task::spawn_blocking(started).await.unwrap();
    let rule = emulator.faults().add(FaultRule::status(503, 21).on(Kind::ReadItem).times(1));
    let (status, sub, _) = ask(&emulator, Asked::new(Operation::Read).frame()).await;
    assert_eq!((status, sub, rule.struck()), (503, 21, 1));
    ask(&emulator, Asked::new(Operation::Read).frame()).await;
    let snapshot = emulator.ledger().snapshot();
    let reads = snapshot.lines.iter().filter(|line| line.operation == Kind::ReadItem);
    assert_eq!(reads.map(|line| line.totals.requests).sum::<u64>(), 2);
}

#[test]
fn a_region_that_joins_has_an_endpoint_of_each_kind() {
    let (emulator, mut client) = started();
    emulator.regions().add_region("West US").unwrap();
    let told = client.get("/").header("x-ms-cosmos-use-thinclient", "true").send().expect(200).json();
    let endpoints: Vec<Option<String>> =
        emulator.regions().list().into_iter().map(|region| region.gateway2_endpoint).collect();
    assert_eq!(told["thinClientReadableLocations"][1]["databaseAccountEndpoint"], json!(endpoints[1]));
    assert_eq!(told["thinClientWritableLocations"].as_array().unwrap().len(), 1);
}
