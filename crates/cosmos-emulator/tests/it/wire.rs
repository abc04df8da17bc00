//! The protocol below the commands: connections, the account, routes, headers.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use cosmos_emulator::{Config, Emulator, FaultRule, Verdict};
use http_body_util::{BodyExt, Full};
use serde_json::json;

use crate::client::{Client, emulator, read_answer, with_container};

#[test]
fn the_account_is_advertised_where_the_client_found_it() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    let answer = client.get("/").send().expect(200);
    let account = answer.json();
    assert_eq!(account["id"], "localhost");
    assert_eq!(account["writableLocations"][0]["databaseAccountEndpoint"], emulator.endpoint());
    assert_eq!(account["_rid"], "127.0.0.1", "the host without its port");
    assert_eq!(account["userConsistencyPolicy"]["defaultConsistencyLevel"], "Session");
    let replicas = json!({"asyncReplication": false, "minReplicaSetSize": 3, "maxReplicasetSize": 4});
    assert_eq!(account["userReplicationPolicy"], replicas);
    assert_eq!(account["systemReplicationPolicy"], json!({"minReplicaSetSize": 3, "maxReplicasetSize": 4}));
    let limits: serde_json::Value =
        serde_json::from_str(account["queryEngineConfiguration"].as_str().unwrap()).unwrap();
    assert_eq!(limits["maxSqlQueryInputLength"], 524_288);
    let mapped = client.get("/").header("host", "db.example:9000").send().expect(200).json();
    assert_eq!(mapped["readableLocations"][0]["databaseAccountEndpoint"], "http://db.example:9000/");
    assert_eq!(mapped["_rid"], "db.example");
}

#[test]
fn item_answers_carry_every_header_the_sdks_depend_on() {
    let (_emulator, mut client) = with_container();
    let created = client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let read =
        client.get("/dbs/d/colls/c/docs/a").key("x").header("x-ms-activity-id", "my-id").send().expect(200);
    for answer in [&created, &read] {
        for name in [
            "x-ms-session-token",
            "x-ms-request-charge",
            "x-ms-activity-id",
            "etag",
            "lsn",
            "x-ms-item-lsn",
            "x-ms-cosmos-llsn",
            "x-ms-cosmos-item-llsn",
            "x-ms-quorum-acked-lsn",
            "x-ms-global-committed-lsn",
            "x-ms-resource-quota",
            "x-ms-resource-usage",
            "x-ms-request-duration-ms",
            "x-ms-transport-request-id",
            "x-ms-number-of-read-regions",
            "x-ms-last-state-change-utc",
            "x-ms-documentdb-partitionkeyrangeid",
            "x-ms-cosmos-physical-partition-id",
            "x-ms-cosmos-internal-partition-id",
            "x-ms-gatewayversion",
            "x-ms-serviceversion",
            "x-ms-content-path",
            "content-location",
        ] {
            assert!(!answer.header(name).is_empty(), "{name} is missing: {:?}", answer.headers);
        }
        assert_eq!(answer.header("x-ms-alt-content-path"), "dbs/d/colls/c");
        assert_eq!(answer.header("cache-control"), "no-store, no-cache");
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.json()["_etag"], answer.header("etag"));
    }
    assert_eq!(read.header("x-ms-activity-id"), "my-id");
    assert_eq!(read.header("x-ms-session-token"), format!("0:-1#{}", read.header("lsn")));
}

#[test]
fn a_wrong_path_is_400_and_a_wrong_verb_405() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    let wrong = client.request("GET", "/dbs").text();
    let wrong = String::from_utf8(wrong).unwrap().replace("GET /dbs ", "GET /nothing/here ");
    let mut stream =
        TcpStream::connect(emulator.endpoint().trim_start_matches("http://").trim_end_matches('/')).unwrap();
    stream.write_all(wrong.as_bytes()).unwrap();
    let answer = read_answer(&mut BufReader::new(stream)).unwrap();
    assert_eq!(answer.status, 400);
    assert!(answer.message().starts_with("Request url is invalid"), "{}", answer.message());
    client.request("DELETE", "/dbs").send().expect(405);
}

#[test]
fn a_connection_serves_many_requests() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    let first: u64 = client.get("/dbs").send().header("x-ms-transport-request-id").parse().unwrap();
    for _ in 0..50 {
        client.get("/dbs").send().expect(200);
    }
    let last: u64 = client.get("/dbs").send().header("x-ms-transport-request-id").parse().unwrap();
    assert_eq!(last - first, 51);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    let mut bytes = client.get("/dbs").header("x-ms-activity-id", "first").text();
    bytes.extend(client.get("/dbs").header("x-ms-activity-id", "second").text());
    let mut stream = BufReader::new(connect(&emulator));
    stream.get_mut().write_all(&bytes).unwrap();
    assert_eq!(read_answer(&mut stream).unwrap().header("x-ms-activity-id"), "first");
    assert_eq!(read_answer(&mut stream).unwrap().header("x-ms-activity-id"), "second");
}

#[test]
fn plain_requests_and_rare_ones_share_a_connection() {
    let (emulator, mut client) = with_container();
    let mut stream = BufReader::new(connect(&emulator));
    let docs = "/dbs/d/colls/c/docs";
    let plain = client.get("/dbs").text();
    let in_chunks = client
        .post(docs, &json!({}))
        .key("p")
        .header("content-length", "")
        .header("transfer-encoding", "chunked")
        .body(b"9\r\n{\"id\":\"a\"\r\nA\r\n,\"pk\":\"p\"}\r\n0\r\n\r\n".to_vec())
        .text();
    let body = br#"{"id":"b","pk":"p"}"#.to_vec();
    let told = client.post(docs, &json!({})).key("p").body(body).text();
    let last = client.get("/dbs").header("connection", "close").text();
    for (request, status) in [
        (&plain, 200),
        (&told, 201),
        (&plain, 200),
        (&in_chunks, 201),
        (&plain, 200),
        (&told, 409),
        (&last, 200),
    ] {
        stream.get_mut().write_all(request).unwrap();
        assert_eq!(read_answer(&mut stream).unwrap().status, status, "{}", String::from_utf8_lossy(request));
    }
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it was the last");
}

#[test]
fn a_client_that_waits_to_be_told_to_go_on_is_told() {
    let (emulator, mut client) = with_container();
    let mut stream = BufReader::new(connect(&emulator));
    let body = br#"{"id":"a","pk":"p"}"#;
    let request = client.post("/dbs/d/colls/c/docs", &json!({})).key("p").header("expect", "100-continue");
    let text = request.body(body.to_vec()).text();
    let (head, body) = text.split_at(text.len() - body.len());
    stream.get_mut().write_all(head).unwrap();
    assert_eq!(read_answer(&mut stream).unwrap().status, 100);
    stream.get_mut().write_all(body).unwrap();
    assert_eq!(read_answer(&mut stream).unwrap().status, 201);
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let (emulator, mut client) = with_container();
    let mut stream = BufReader::new(connect(&emulator));
    let request = client.post("/dbs/d/colls/c/docs", &json!({"id": "a", "pk": "p"})).key("p").text();
    for byte in &request {
        stream.get_mut().write_all(&[*byte]).unwrap();
    }
    assert_eq!(read_answer(&mut stream).unwrap().status, 201);
}

#[test]
fn an_idle_connection_that_is_told_to_leave_is_closed() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    let mut stream = BufReader::new(connect(&emulator));
    stream.get_mut().write_all(&client.get("/dbs").text()).unwrap();
    assert_eq!(read_answer(&mut stream).unwrap().status, 200);
    emulator.goaway();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

fn connect(emulator: &Emulator) -> TcpStream {
    let host = emulator.endpoint();
    let stream = TcpStream::connect(host.trim_start_matches("http://").trim_end_matches('/')).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[tokio::test]
async fn http2_is_spoken_on_the_same_port_with_twenty_streams() {
    let emulator = Emulator::start(Config::default().with_auth(cosmos_emulator::Auth::Open)).unwrap();
    let host = emulator.endpoint().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let stream = tokio::net::TcpStream::connect(&host).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = || {
        http::Request::builder()
            .uri(format!("http://{host}/"))
            .header("x-ms-version", "2020-07-15")
            .body(Full::<Bytes>::default())
            .unwrap()
    };
    // With the first answer the client knows how many streams it may open at once.
    assert_eq!(sender.send_request(request()).await.unwrap().status(), 200);
    let mut running = Vec::new();
    for _ in 0..60 {
        let (mut sender, request) = (sender.clone(), request());
        running.push(tokio::spawn(async move {
            sender.ready().await.unwrap();
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.version(), http::Version::HTTP_2);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            serde_json::from_slice::<serde_json::Value>(&body).unwrap()
        }));
    }
    for answer in running {
        let account = answer.await.unwrap();
        assert_eq!(account["writableLocations"][0]["databaseAccountEndpoint"], format!("http://{host}/"));
    }
    drop(sender);
    connection.abort();
}

#[test]
fn the_settings_frame_allows_twenty_streams() {
    let emulator = emulator();
    let host = emulator.endpoint();
    let mut stream = TcpStream::connect(host.trim_start_matches("http://").trim_end_matches('/')).unwrap();
    // Preface and an empty SETTINGS frame.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "the server speaks first, with SETTINGS");
    let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut payload).unwrap();
    let setting = payload.chunks(6).find(|setting| setting[..2] == [0, 3]).expect("MAX_CONCURRENT_STREAMS");
    assert_eq!(setting[2..], [0, 0, 0, 20]);
}

#[tokio::test]
async fn a_request_needs_no_socket() {
    let emulator = Emulator::open(Config::default().with_auth(cosmos_emulator::Auth::Open)).unwrap();
    let request = http::Request::builder()
        .method("POST")
        .uri("http://in.process/dbs")
        .header("x-ms-version", "2020-07-15")
        .body(Bytes::from_static(br#"{"id":"d"}"#))
        .unwrap();
    let answer = emulator.handle(request).await.unwrap();
    assert_eq!(answer.status(), 201);
    assert_eq!(emulator.ledger().snapshot().totals.requests, 1);
}

#[tokio::test]
async fn shutdown_frees_the_port() {
    // A test beside this one may be given the port that was freed; hardly ten times in a row.
    for _ in 0..10 {
        let emulator = emulator();
        let port = emulator.endpoint().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
        emulator.shutdown().await;
        if let Ok(again) = Emulator::start(Config { port, ..Config::default() }) {
            Client::new(&again).get("/dbs").send().expect(200);
            return;
        }
    }
    panic!("no port was free again");
}

#[test]
fn a_request_in_flight_is_answered_before_the_server_stops() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    let mut idle = BufReader::new(client.get("/dbs").send_only());
    assert_eq!(read_answer(&mut idle).unwrap().status, 200);
    let guard = emulator.faults().add(FaultRule::new(Verdict::Hang).times(1));
    let stream = client.get("/dbs").send_only();
    while guard.struck() == 0 {
        std::thread::yield_now();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let stopping = std::thread::spawn(move || runtime.block_on(emulator.shutdown()));
    // Once a connection without work is closed the server is stopping, and still holds our request.
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    drop(guard);
    assert_eq!(read_answer(&mut BufReader::new(stream)).unwrap().status, 200);
    stopping.join().unwrap();
}

#[test]
fn a_taken_port_is_said_so() {
    let emulator = emulator();
    let port = emulator.endpoint().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let error = Emulator::start(Config { port, ..Config::default() }).unwrap_err();
    assert!(error.to_string().contains("is taken"), "{error}");
}

#[test]
fn a_stronger_consistency_than_the_accounts_is_400() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let mut read = |level: &str| {
        client.get("/dbs/d/colls/c/docs/a").key("x").header("x-ms-consistency-level", level).send().status
    };
    assert_eq!([read("Eventual"), read("Session"), read("Strong"), read("Odd")], [200, 200, 400, 400]);
}
