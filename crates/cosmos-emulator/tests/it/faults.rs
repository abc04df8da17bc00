//! Fault rules over real sockets, by library and by management port.

use std::io::{BufReader, Read};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cosmos_emulator::{Auth, Config, Emulator, FaultRule, Operation, Verdict};
use http_body_util::Full;
use serde_json::json;

use crate::client::{Client, read_answer, with_container};

const ITEM: &str = "/dbs/d/colls/c/docs/a";

#[test]
fn a_status_comes_with_its_sub_status_and_pause() {
    let (emulator, mut client) = with_container();
    let verdict =
        Verdict::Status { code: 429, sub_status: 3200, retry_after: Some(Duration::from_millis(7)) };
    let guard = emulator.faults().add(FaultRule::new(verdict).on(Operation::ReadItem).times(1));
    let struck = client.get(ITEM).key("x").send();
    assert_eq!(struck.status(), (429, 3200));
    assert_eq!(struck.header("x-ms-retry-after-ms"), "7");
    client.get(ITEM).key("x").send().expect(404);
    assert_eq!((guard.struck(), guard.matched()), (1, 2));
}

#[test]
fn a_reset_before_closes_the_connection_and_nothing_is_written() {
    let (emulator, mut client) = with_container();
    let guard = emulator.faults().add(FaultRule::new(Verdict::ResetBefore).on(Operation::CreateItem));
    let item = json!({"id": "a", "pk": "x"});
    assert!(client.post("/dbs/d/colls/c/docs", &item).key("x").try_send().is_err());
    drop(guard);
    client.get(ITEM).key("x").send().expect(404);
}

#[test]
fn a_reset_after_commit_closes_the_connection_and_the_item_is_there() {
    let (emulator, mut client) = with_container();
    let guard = emulator.faults().add(FaultRule::new(Verdict::ResetAfterCommit).on(Operation::CreateItem));
    let item = json!({"id": "a", "pk": "x"});
    assert!(client.post("/dbs/d/colls/c/docs", &item).key("x").try_send().is_err());
    drop(guard);
    client.get(ITEM).key("x").send().expect(200);
    let log = emulator.ledger().snapshot().recent;
    assert!(log.iter().any(|record| record.operation == Operation::CreateItem && record.status == 0));
}

#[test]
fn a_rule_strikes_its_container_and_key_only() {
    let (emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    client.create(&json!({"id": "a", "pk": "y"})).expect(201);
    let rule = FaultRule::status(503, 0).in_container("dbs/d/colls/c").for_key("x");
    let _guard = emulator.faults().add(rule);
    client.get(ITEM).key("x").send().expect(503);
    client.get(ITEM).key("y").send().expect(200);
}

#[test]
fn a_hanging_request_goes_on_when_the_rule_is_removed() {
    let (emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let guard = emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::ReadItem));
    let stream = client.get(ITEM).key("x").send_only();
    while guard.struck() == 0 {
        std::thread::yield_now();
    }
    drop(guard);
    assert_eq!(read_answer(&mut BufReader::new(stream)).unwrap().status, 200);
}

#[test]
fn a_hanging_request_ends_with_its_client() {
    let (emulator, mut client) = with_container();
    let guard = emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::ReadItem));
    let mut stream = client.get(ITEM).key("x").send_only();
    while guard.struck() == 0 {
        std::thread::yield_now();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0, "the server closes without an answer");
}

#[test]
fn a_delayed_request_is_served_when_its_time_has_passed() {
    let (emulator, mut client) = with_container();
    let duration = Duration::from_millis(60);
    let guard = emulator.faults().add(FaultRule::new(Verdict::Delay { duration }).on(Operation::CreateItem));
    let sent = Instant::now();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let waited = sent.elapsed();
    assert!(waited >= duration, "it waited {waited:?}");
    assert_eq!(guard.struck(), 1);
}

#[test]
fn a_delay_after_commit_holds_the_answer_and_the_item_is_there() {
    let (emulator, mut client) = with_container();
    let delay = Verdict::DelayAfterCommit { duration: Duration::from_secs(3600) };
    let guard = emulator.faults().add(FaultRule::new(delay).on(Operation::CreateItem));
    let item = json!({"id": "a", "pk": "x"});
    let held = client.post("/dbs/d/colls/c/docs", &item).key("x").send_only();
    while client.get(ITEM).key("x").send().status().0 != 200 {
        std::thread::yield_now();
    }
    held.set_nonblocking(true).unwrap();
    let early = held.peek(&mut [0]).unwrap_err();
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock, "the answer is held");
    held.set_nonblocking(false).unwrap();
    drop(guard);
    assert_eq!(read_answer(&mut BufReader::new(held)).unwrap().status, 201);
}

#[test]
fn a_delay_after_commit_ends_by_itself() {
    let (emulator, mut client) = with_container();
    let delay = Verdict::DelayAfterCommit { duration: Duration::from_millis(1) };
    let guard = emulator.faults().add(FaultRule::new(delay));
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    assert_eq!(guard.struck(), 1);
}

#[tokio::test]
async fn a_reset_over_http2_ends_the_stream_and_not_the_connection() {
    let emulator = Emulator::start(Config::default().with_auth(Auth::Open)).unwrap();
    let host = emulator.endpoint().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let io = hyper_util::rt::TokioIo::new(tokio::net::TcpStream::connect(&host).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let read = || {
        http::Request::builder()
            .uri(format!("http://{host}/dbs"))
            .header("x-ms-version", "2020-07-15")
            .body(Full::<Bytes>::default())
            .unwrap()
    };
    let guard = emulator.faults().add(FaultRule::new(Verdict::ResetBefore).times(1));
    assert!(sender.send_request(read()).await.is_err());
    assert_eq!(guard.struck(), 1);
    assert_eq!(sender.send_request(read()).await.unwrap().status(), 200);
    connection.abort();
}

#[tokio::test]
async fn a_reset_without_a_socket_is_an_error() {
    let emulator = Emulator::open(Config::default().with_auth(Auth::Open)).unwrap();
    let _guard = emulator.faults().add(FaultRule::new(Verdict::ResetBefore));
    let request =
        http::Request::builder().uri("/dbs").header("x-ms-version", "2020-07-15").body(Bytes::new()).unwrap();
    assert!(emulator.handle(request).await.is_err());
}

#[test]
fn rules_are_managed_over_the_management_port() {
    let emulator = Emulator::start(Config::default().with_management()).unwrap();
    let mut client = Client::new(&emulator);
    let mut manager = Client::at(&emulator.management_endpoint().unwrap(), emulator.key());
    let rule = json!({"operation": "listDatabases", "verdict": {"kind": "status", "code": 503}});
    let id =
        manager.request("POST", "/faults").unsigned().json(&rule).send().expect(201).json()["id"].clone();
    client.get("/dbs").send().expect(503);
    let state = manager.get("/faults").unsigned().send().expect(200).json();
    assert_eq!(
        (state["faults"][0]["id"].clone(), state["faults"][0]["struck"].clone()),
        (id.clone(), json!(1))
    );
    manager.delete(&format!("/faults/{id}")).unsigned().send().expect(204);
    client.get("/dbs").send().expect(200);
    manager.delete(&format!("/faults/{id}")).unsigned().send().expect(404);
    manager.request("POST", "/faults").unsigned().json(&rule).send().expect(201);
    manager.delete("/faults").unsigned().send().expect(204);
    client.get("/dbs").send().expect(200);
    for wrong in
        [json!({"verdict": {"kind": "explode"}}), json!({"verdict": {"kind": "hang"}, "probability": 2})]
    {
        manager.request("POST", "/faults").unsigned().json(&wrong).send().expect(400);
    }
}
