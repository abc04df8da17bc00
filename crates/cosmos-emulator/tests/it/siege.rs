//! Clients that take more than their share, over real sockets: the others are still served.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use cosmos_emulator::{Auth, Config, Emulator, FaultRule, Limits, Operation, Verdict};
use serde_json::{Value, json};

use crate::client::{Answer, Client, read_answer};
use crate::management::Manager;

const ITEMS: &str = "/dbs/d/colls/c/docs";
/// Longer than anything here takes; only a bug waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(limits: Limits) -> Emulator {
    Emulator::start(Config { limits, ..Config::default() }.with_management()).unwrap()
}

fn connect(emulator: &Emulator) -> TcpStream {
    let host = emulator.endpoint();
    let stream = TcpStream::connect(host.trim_start_matches("http://").trim_end_matches('/')).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn answer(stream: TcpStream) -> Answer {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    read_answer(&mut BufReader::new(stream)).expect("an answer")
}

#[track_caller]
fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}

/// Sends the head of a request and the first part of its body.
fn send_part(emulator: &Emulator, bytes: &[u8], part: usize) -> TcpStream {
    let mut stream = connect(emulator);
    stream.write_all(&bytes[..part]).unwrap();
    stream
}

#[test]
fn bodies_of_strangers_take_no_room_and_are_refused_once_they_are_there() {
    let emulator = start(Limits { bodies_bytes_max: 3 << 20, ..Limits::default() });
    let mut client = Client::new(&emulator).with_container();
    let large = json!({"id": "a", "pk": "x", "text": "y".repeat(1_500_000)});
    let strange = Client::new(&emulator).post(ITEMS, &large).key("x").unsigned().text();
    let strangers: Vec<TcpStream> = (0..10).map(|_| send_part(&emulator, &strange, 1_000_000)).collect();
    client.create(&large).expect(201);
    for mut stream in strangers {
        stream.write_all(&strange[1_000_000..]).unwrap();
        assert_eq!(answer(stream).status, 401);
    }
}

#[test]
fn a_large_body_without_room_is_503_in_the_end_while_small_ones_pass() {
    let body_timeout = Duration::from_secs(3);
    let emulator = start(Limits { bodies_bytes_max: 2 << 20, body_timeout, ..Limits::default() });
    let mut client = Client::new(&emulator).with_container();
    let item = |id: &str| json!({"id": id, "pk": "x", "text": "y".repeat(1_500_000)});
    let rule = emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::CreateItem).times(1));
    let held = Client::new(&emulator).post(ITEMS, &item("a")).key("x").send_only();
    until(|| rule.struck() == 1);
    client.create(&json!({"id": "small", "pk": "x"})).expect(201);
    let large = Client::new(&emulator).post(ITEMS, &item("b")).key("x").text();
    // What cannot be read in time is not read: only a part is sent, so that the answer is not cut off.
    let refused = answer(send_part(&emulator, &large, 50_000));
    assert_eq!(refused.status, 503, "{}", refused.message());
    drop(rule);
    assert_eq!(answer(held).status, 201);
    client.create(&item("c")).expect(201);
}

#[test]
fn a_body_that_trickles_is_408_when_its_time_is_up() {
    let limits = Limits { body_timeout: Duration::from_millis(300), ..Limits::default() };
    let emulator = Emulator::start(Config { limits, ..Config::default() }.with_auth(Auth::Open)).unwrap();
    for framing in ["content-length: 200\r\n\r\n", "transfer-encoding: chunked\r\n\r\n"] {
        let mut stream = connect(&emulator);
        let head = format!("POST /dbs HTTP/1.1\r\nhost: x\r\nx-ms-version: 2020-07-15\r\n{framing}");
        stream.write_all(head.as_bytes()).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let (part, last) = if framing.starts_with("content") {
            (&b" "[..], &b""[..])
        } else {
            (&b"1\r\n \r\n"[..], &b"0\r\n\r\n"[..])
        };
        // A byte each 20 ms makes 4 s for all of it.
        let trickle = std::thread::spawn(move || {
            for _ in 0..200 {
                if writer.write_all(part).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            // The server has gone by then.
            let _ = writer.write_all(last);
        });
        assert_eq!(answer(stream).status, 408, "{framing}");
        trickle.join().unwrap();
    }
}

#[test]
fn connections_without_a_request_make_way_and_those_with_one_stay() {
    let emulator = start(Limits { connections_max: 6, ..Limits::default() });
    let mut client = Client::new(&emulator).with_container();
    let rule = emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::ReadDatabase).times(1));
    let hanging = Client::new(&emulator).get("/dbs/d").send_only();
    until(|| rule.struck() == 1);
    let idle: Vec<TcpStream> = (0..20)
        .map(|number| {
            let mut stream = connect(&emulator);
            // Some begin to say something and never end.
            if number % 2 == 0 {
                stream.write_all(b"GET /dbs HTTP/1.1\r\nhost: ").unwrap();
            }
            stream
        })
        .collect();
    for _ in 0..10 {
        Client::new(&emulator).get("/dbs").send().expect(200);
    }
    let mut closed = 0;
    for mut stream in idle {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        closed += usize::from(matches!(stream.read(&mut [0]), Ok(0)));
    }
    assert!(closed > 0, "none of the idle ones had to go");
    drop(rule);
    assert_eq!(answer(hanging).status, 200, "it had a request");
    let _either_way = client.get("/dbs").try_send();
}

/// One document with two long arrays and a long text, and queries that take minutes on it.
fn with_large_item(emulator: &Emulator) -> Client {
    let mut client = Client::new(emulator).with_container();
    let numbers: Vec<u32> = (0..2000).collect();
    let item = json!({"id": "a", "pk": "x", "a": numbers, "s": "ab".repeat(600_000), "p": "b".repeat(100)});
    client.create(&item).expect(201);
    client
}

const ENDLESS: [&str; 5] = [
    "CONTAINS(c.s, 'zzz', true)",
    "c.s LIKE CONCAT('%', c.p, 'z%')",
    "RegexMatch(c.s, CONCAT(c.p, ToString(x), 'z'))",
    "REPLACE(c.s, 'a', 'b') = 'z'",
    "ARRAY_CONTAINS(c.a, -1) OR CONTAINS(c.s, ToString(x))",
];

fn endless(filter: &str) -> Value {
    let text = format!("SELECT VALUE COUNT(1) FROM c JOIN x IN c.a JOIN y IN c.a WHERE {filter}");
    json!({"query": text, "parameters": []})
}

#[test]
fn a_query_that_cannot_be_cut_into_pages_is_408_when_its_time_is_up() {
    let query_time_max = Duration::from_millis(300);
    let emulator = start(Limits { query_time_max, ..Limits::default() });
    let mut client = with_large_item(&emulator);
    for filter in ENDLESS {
        let begun = Instant::now();
        let refused = client.question(&endless(filter)).key("x").send();
        assert_eq!(refused.status, 408, "{filter}: {}", refused.message());
        assert!(begun.elapsed() < Duration::from_secs(15), "{filter}: {:?}", begun.elapsed());
    }
    client.get(&format!("{ITEMS}/a")).key("x").send().expect(200);
}

#[test]
fn queries_wait_for_a_place_and_end_when_their_client_leaves() {
    let limits = Limits { heavy_requests_max: 2, query_time_max: PATIENCE * 10, ..Limits::default() };
    let emulator = start(limits);
    let mut client = with_large_item(&emulator);
    let greedy: Vec<TcpStream> =
        (0..40).map(|_| Client::new(&emulator).question(&endless(ENDLESS[0])).key("x").send_only()).collect();
    // Two run, the rest waits: what needs no place is served all the same.
    let quick = json!({"query": "SELECT VALUE 1", "parameters": []});
    let begun = Instant::now();
    loop {
        let waiting = Client::new(&emulator).question(&quick).key("x").send_only();
        waiting.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        if read_answer(&mut BufReader::new(waiting)).is_err() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the greedy ones do not run");
    }
    client.get(&format!("{ITEMS}/a")).key("x").send().expect(200);
    assert_eq!(Manager::of(&emulator).get("/health").status, 200);
    drop(greedy);
    let found = answer(Client::new(&emulator).question(&quick).key("x").send_only());
    assert_eq!(found.status, 200, "the places are free again");
}

/// All rows of a query, and how many pages they took.
fn pages(client: &mut Client, text: &str) -> (Vec<Value>, usize) {
    let (mut rows, mut count, mut token) = (Vec::new(), 0, String::new());
    loop {
        let question = client.question(&json!({"query": text, "parameters": []})).key("x");
        let page = question.header("x-ms-continuation", &token).send().expect(200);
        rows.extend(page.json()["Documents"].as_array().unwrap().clone());
        count += 1;
        token = page.header("x-ms-continuation").to_owned();
        if token.is_empty() {
            return (rows, count);
        }
    }
}

#[test]
fn a_page_ends_when_its_time_is_up_and_the_next_goes_on() {
    let emulator = start(Limits { query_page_time: Duration::ZERO, ..Limits::default() });
    let mut client = Client::new(&emulator).with_container();
    for number in 0..20 {
        client
            .create(&json!({"id": format!("{number:02}"), "pk": "x", "n": number, "a": [1, 2, 3]}))
            .expect(201);
    }
    let expected: Vec<Value> = (0..20).map(|number| format!("{number:02}").into()).collect();
    let (rows, count) = pages(&mut client, "SELECT VALUE c.id FROM c");
    assert_eq!(rows, expected);
    assert!(count >= 20, "{count} pages");
    assert_eq!(pages(&mut client, "SELECT VALUE c.id FROM c ORDER BY c.n").0, expected);
    assert_eq!(pages(&mut client, "SELECT VALUE c.id FROM c WHERE c.n < 0").0, Vec::<Value>::new());
    assert_eq!(pages(&mut client, "SELECT VALUE x FROM c JOIN x IN c.a").0.len(), 60);
    assert_eq!(pages(&mut client, "SELECT VALUE x FROM c JOIN x IN c.a WHERE x > 2").0.len(), 20);
    assert_eq!(pages(&mut client, "SELECT VALUE COUNT(1) FROM c JOIN x IN c.a").0.last(), Some(&json!(60)));
    assert_eq!(pages(&mut client, "SELECT VALUE d.id FROM (SELECT * FROM c) d").0.len(), 20);
}
