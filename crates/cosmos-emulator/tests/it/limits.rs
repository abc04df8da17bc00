//! Bad input over raw sockets: the right refusal, no panic, no hang, no unbounded memory.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use cosmos_emulator::{Auth, Config, Emulator, FaultRule, Limits, Verdict};
use serde_json::{Value, json};

use crate::client::{Client, emulator, read_answer, with_container};

const ITEMS: &str = "/dbs/d/colls/c/docs";

fn connect(emulator: &Emulator) -> TcpStream {
    let host = emulator.endpoint();
    let stream = TcpStream::connect(host.trim_start_matches("http://").trim_end_matches('/')).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends bytes and reads the status of the answer; 0 when the connection is closed instead.
fn raw(emulator: &Emulator, bytes: &[u8]) -> u16 {
    let mut stream = connect(emulator);
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    read_answer(&mut BufReader::new(stream)).map_or(0, |answer| answer.status)
}

#[track_caller]
fn still_serves(emulator: &Emulator) {
    Client::new(emulator).get("/dbs").send().expect(200);
}

#[test]
fn bodies_that_are_not_documents_are_400() {
    let (emulator, mut client) = with_container();
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    let nested = format!("{{\"id\":\"a\",\"pk\":\"x\",\"deep\":{deep}}}");
    let bodies: Vec<Vec<u8>> = vec![
        b"{".to_vec(),
        b"nonsense".to_vec(),
        b"[]".to_vec(),
        b"\"text\"".to_vec(),
        b"null".to_vec(),
        b"{\"id\":1,\"pk\":\"x\"}".to_vec(),
        b"{\"id\":\"a\",\"pk\":\"x\",\"n\":1e999}".to_vec(),
        b"{\"id\":\"a/b\",\"pk\":\"x\"}".to_vec(),
        b"\xff\xfe\xfd".to_vec(),
        vec![0x80],
        vec![0x80; 1000],
        nested.into_bytes(),
    ];
    for body in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let answer = client.request("POST", ITEMS).body(body).key("x").send();
        assert_eq!(answer.status, 400, "{shown}");
        assert_eq!(answer.json()["code"], "BadRequest", "{shown}");
    }
    assert_eq!(client.request("POST", ITEMS).key("x").send().status, 400, "no body at all");
    still_serves(&emulator);
}

#[test]
fn an_item_above_two_megabytes_is_413() {
    let (emulator, mut client) = with_container();
    let item = |bytes: usize| json!({"id": "a", "pk": "x", "blob": "y".repeat(bytes)});
    for bytes in [2 * 1024 * 1024, 3_000_000, 20_000_000] {
        let answer = client.create(&item(bytes));
        assert_eq!(answer.status, 413, "{bytes} bytes");
        assert!(answer.message().starts_with("Request size is too large"), "{}", answer.message());
    }
    client.create(&item(1_900_000)).expect(201);
    still_serves(&emulator);
}

#[test]
fn oversized_heads_are_refused() {
    let emulator = emulator();
    let long_header = format!(
        "GET /dbs HTTP/1.1\r\nhost: x\r\nx-ms-version: 2020-07-15\r\nx-long: {}\r\n\r\n",
        "a".repeat(200_000)
    );
    assert_eq!(raw(&emulator, long_header.as_bytes()), 431);
    let long_path = format!("GET /dbs/{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(200_000));
    assert!(matches!(raw(&emulator, long_path.as_bytes()), 414 | 431));
    let many: String = (0..500).map(|index| format!("x-h{index}: v\r\n")).collect();
    assert_eq!(raw(&emulator, format!("GET /dbs HTTP/1.1\r\nhost: x\r\n{many}\r\n").as_bytes()), 431);
    still_serves(&emulator);
}

#[test]
fn bytes_that_are_not_http_are_refused_or_closed() {
    let emulator = emulator();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /dbs HTTP/9.9\r\n\r\n",
        b"POST /dbs HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /dbs HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot a frame at all, but long enough to look like one",
        b"",
        b"G",
        b"PRI",
    ] {
        let status = raw(&emulator, bytes);
        assert!(matches!(status, 0 | 400 | 505), "{status} for {:?}", String::from_utf8_lossy(bytes));
    }
    still_serves(&emulator);
}

#[test]
fn a_truncated_request_ends_quietly() {
    let emulator = Emulator::start(Config::default().with_auth(Auth::Open)).unwrap();
    let head =
        "POST /dbs HTTP/1.1\r\nhost: x\r\nx-ms-version: 2020-07-15\r\ncontent-length: 100\r\n\r\n{\"id\":";
    assert_eq!(raw(&emulator, head.as_bytes()), 0);
    still_serves(&emulator);
    assert_eq!(Client::new(&emulator).get("/dbs").send().json()["_count"], 0, "nothing was created");
}

#[test]
fn a_slow_head_and_a_silent_client_are_closed() {
    let limits = Limits { head_timeout: Duration::from_millis(30), ..Limits::default() };
    let emulator = Emulator::start(Config { limits, ..Config::default() }).unwrap();
    for bytes in [&b""[..], b"GET /dbs HT", b"PRI * HT", b"GET /dbs HTTP/1.1\r\nhost: x\r\nx-slow: "] {
        let mut stream = connect(&emulator);
        stream.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        // The server ends the connection by itself; what it says first does not matter.
        let _ = stream.read_to_end(&mut rest);
    }
    // On a busy machine our own head may be too slow, too; not for ever.
    let begun = Instant::now();
    while !Client::new(&emulator).get("/dbs").try_send().is_ok_and(|answer| answer.status == 200) {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody is served any more");
    }
}

#[test]
fn a_slow_body_is_408() {
    let limits = Limits { body_timeout: Duration::from_millis(30), ..Limits::default() };
    let config = Config { limits, ..Config::default() }.with_auth(Auth::Open);
    let emulator = Emulator::start(config).unwrap();
    let mut stream = connect(&emulator);
    let head =
        "POST /dbs HTTP/1.1\r\nhost: x\r\nx-ms-version: 2020-07-15\r\ncontent-length: 100\r\n\r\n{\"id\":";
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut BufReader::new(stream)).unwrap().status, 408);
}

#[test]
fn connections_beyond_the_limit_wait_for_a_place() {
    let limits = Limits { connections_max: 2, ..Limits::default() };
    let emulator = Emulator::start(Config { limits, ..Config::default() }).unwrap();
    let (first, second) = (connect(&emulator), connect(&emulator));
    let mut waiting = Client::new(&emulator);
    let stream = waiting.get("/dbs").send_only();
    drop((first, second));
    assert_eq!(read_answer(&mut BufReader::new(stream)).unwrap().status, 200);
}

#[test]
fn odd_header_values_are_400_or_ignored() {
    let (emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let mut read = |name: &str, value: &str| {
        client.get(&format!("{ITEMS}/a")).key("x").header(name, value).send().status
    };
    assert_eq!(read("x-unknown", "whatever"), 200);
    assert_eq!(read("x-ms-session-token", "garbage"), 400);
    assert_eq!(read("x-ms-documentdb-partitionkey", "[[]]"), 400);
    assert_eq!(read("x-ms-documentdb-partitionkey", "{}"), 400);
    assert_eq!(read("x-ms-documentdb-partitionkey", "[\"a\",\"b\"]"), 400);
    let mut list = |name: &str, value: &str| client.get(ITEMS).header(name, value).send().status();
    assert_eq!(list("x-ms-max-item-count", "many").0, 400);
    assert_eq!(list("x-ms-continuation", "garbage").0, 400);
    assert_eq!(list("x-ms-documentdb-partitionkeyrangeid", "77"), (410, 1002));
    assert_eq!(list("x-ms-start-epk", "05").0, 400);
    still_serves(&emulator);
}

#[test]
fn hostile_queries_are_400() {
    let (emulator, mut client) = with_container();
    let deep = format!("SELECT * FROM c WHERE {}1=1{}", "(".repeat(20_000), ")".repeat(20_000));
    let long = format!("SELECT * FROM c WHERE c.id = '{}'", "a".repeat(600_000));
    let chain = format!("SELECT * FROM c WHERE {}true", "NOT ".repeat(50_000));
    for text in [
        "",
        "SELECT",
        "DROP TABLE c",
        "SELECT * FROM c WHERE",
        "SELECT * FROM c /* no */",
        &deep,
        &long,
        &chain,
    ] {
        let status = client.query(text).status;
        assert_eq!(status, 400, "{}", &text[..text.len().min(60)]);
    }
    let questions: [Value; 6] = [
        json!([]),
        json!({}),
        json!({"query": 1}),
        json!({"query": "SELECT 1", "parameters": {}}),
        json!({"query": "SELECT 1", "parameters": [1]}),
        json!({"query": "SELECT 1", "parameters": [{"name": 1}]}),
    ];
    for question in questions {
        assert_eq!(client.question(&question).send().status, 400, "{question}");
    }
    still_serves(&emulator);
}

/// A frame of HTTP/2.
struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];

fn send_frame(stream: &mut TcpStream, kind: u8, flags: u8, id: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &id.to_be_bytes()].concat();
    stream.write_all(&[&head, payload].concat()).unwrap();
}

fn read_frame(stream: &mut impl Read) -> Frame {
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("a frame");
    let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut payload).expect("its payload");
    Frame { kind: head[3], stream: u32::from_be_bytes([head[5] & 0x7F, head[6], head[7], head[8]]), payload }
}

#[test]
fn of_more_than_twenty_streams_the_others_are_refused_and_the_twenty_are_served() {
    let emulator = Emulator::start(Config::default().with_auth(Auth::Open)).unwrap();
    let guard = emulator.faults().add(FaultRule::new(Verdict::Hang));
    let mut stream = connect(&emulator);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    send_frame(&mut stream, SETTINGS, 0, 0, &[]);
    // GET, http, and the rest as literals that no table keeps.
    let mut request = vec![0x82, 0x86];
    for (name, value) in
        [(&[0x04][..], "/dbs"), (&[0x01], "localhost"), (b"\x00\x0cx-ms-version", "2020-07-15")]
    {
        request.extend_from_slice(name);
        request.push(u8::try_from(value.len()).unwrap());
        request.extend_from_slice(value.as_bytes());
    }
    let end_of_headers_and_stream = 0x4 | 0x1;
    // Clients number their streams with odd numbers.
    for id in (1..).step_by(2).take(20) {
        send_frame(&mut stream, HEADERS, end_of_headers_and_stream, id, &request);
    }
    while guard.struck() < 20 {
        std::thread::yield_now();
    }
    for id in [41, 43] {
        send_frame(&mut stream, HEADERS, end_of_headers_and_stream, id, &request);
        let frame =
            std::iter::repeat_with(|| read_frame(&mut stream)).find(|frame| frame.stream != 0).unwrap();
        assert_eq!(
            (frame.stream, frame.kind, frame.payload.as_slice()),
            (id, RST_STREAM, &REFUSED_STREAM[..])
        );
    }
    assert_eq!(guard.matched(), 20, "what was refused was not looked at");
    drop(guard);
    let answers = std::iter::repeat_with(|| read_frame(&mut stream)).filter(|frame| frame.kind == HEADERS);
    let mut served: Vec<u32> = answers
        .take(20)
        .map(|frame| {
            // `:status 200` of the static table.
            assert_eq!(frame.payload[0], 0x88, "stream {}", frame.stream);
            frame.stream
        })
        .collect();
    served.sort_unstable();
    assert_eq!(served, (1..).step_by(2).take(20).collect::<Vec<u32>>());
}
