//! `cdb dashboard` as a child process, and what browsers and others send to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::stage::{ACCOUNT, Stage, begun};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Pages that are being served; killed when dropped.
struct Pages {
    child: Child,
    host: String,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pages {
    fn of(stage: &Stage, more: &[&str]) -> Self {
        let mut args = vec!["dashboard", "--port", "0", "--token", TOKEN];
        args.extend(more);
        let mut child = Command::new(env!("CARGO_BIN_EXE_cdb"))
            .args(stage.args(&args))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("cdb starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        let (_, rest) = line.split_once("http://").unwrap_or_else(|| panic!("an address: {line:?}"));
        let (host, token) = rest.split_once("/#k=").expect("a token");
        assert!(token.starts_with(TOKEN), "{line}");
        Self { child, host: host.to_owned() }
    }

    /// Sends a request as it is; the head and the body of the answer.
    fn raw(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.host).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket option");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).expect("a line"), 0, "no answer to {request}");
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        reader.read_exact(&mut body).expect("a body");
        (head, String::from_utf8(body).expect("text"))
    }

    fn status(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> u16 {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let (head, _) = self.raw(&format!(
            "{method} {path} HTTP/1.1\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
        head[9..12].parse().expect("a status")
    }

    fn cookie(&self) -> String {
        let body = json!({ "token": TOKEN }).to_string();
        let (head, _) = self.raw(&format!(
            "POST /api/session HTTP/1.1\r\nhost: {0}\r\norigin: http://{0}\r\nx-cdb: 1\r\ncontent-type: application/json\r\n\
             content-length: {1}\r\n\r\n{body}",
            self.host,
            body.len()
        ));
        let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
        assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
        cookie.split(';').next().expect("a pair").to_owned()
    }

    /// Asks as a page does.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let cookie = self.cookie();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (head, answer) = self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nhost: {0}\r\norigin: http://{0}\r\nx-cdb: 1\r\ncookie: {cookie}\r\n\
             content-type: application/json\r\ncontent-length: {1}\r\n\r\n{body}",
            self.host,
            body.len()
        ));
        (head[9..12].parse().expect("a status"), serde_json::from_str(&answer).expect("JSON"))
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let (status, answer) = self.ask("GET", path, &Value::Null);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }
}

const ROUTES: [&str; 18] = [
    "/api/meta",
    "/api/overview",
    "/api/count",
    "/api/activity",
    "/api/instances",
    "/api/instances/a",
    "/api/instances/a/events/1",
    "/api/instances/a/children",
    "/api/instances/a/kv",
    "/api/instances/a/documents",
    "/api/queues",
    "/api/runtimes",
    "/api/dead-letters",
    "/api/care",
    "/api/explorer/containers",
    "/api/explorer/item",
    "/api/emulator/ledger",
    "/api/events",
];
const ACTS: [(&str, &str); 11] = [
    ("POST", "/api/act/start"),
    ("POST", "/api/act/raise"),
    ("POST", "/api/act/enqueue"),
    ("POST", "/api/act/cancel"),
    ("POST", "/api/act/delete"),
    ("POST", "/api/act/prune"),
    ("POST", "/api/act/dead-letters"),
    ("POST", "/api/act/repair"),
    ("PUT", "/api/explorer/item"),
    ("DELETE", "/api/explorer/item"),
    ("POST", "/api/emulator/clock/advance"),
];

#[test]
fn nothing_is_told_without_the_cookie() {
    let stage = Stage::new("pages-locked");
    let pages = Pages::of(&stage, &[]);
    let own = format!("http://{}", pages.host);
    let page = [
        ("host", pages.host.as_str()),
        ("origin", &own),
        ("x-cdb", "1"),
        ("content-type", "application/json"),
    ];
    for route in ROUTES {
        assert_eq!(pages.status("GET", route, &page, ""), 401, "{route}");
    }
    for (method, route) in ACTS {
        assert_eq!(pages.status(method, route, &page, "{}"), 401, "{route}");
    }
    for token in ["", "0123456789abcdef0123456789abcdee"] {
        let body = json!({ "token": token }).to_string();
        assert_eq!(pages.status("POST", "/api/session", &page, &body), 401);
    }
}

#[test]
fn pages_of_other_places_get_nothing_even_with_the_cookie() {
    let stage = Stage::new("pages-foreign");
    let pages = Pages::of(&stage, &[]);
    let (host, cookie) = (pages.host.as_str(), pages.cookie());
    let own = format!("http://{host}");
    let with = |headers: &[(&'static str, &str)]| {
        let mut all = vec![("cookie", cookie.as_str())];
        all.extend(headers);
        let look = pages.status("GET", "/api/instances", &all, "");
        let json = [("content-type", "application/json"), ("x-cdb", "1")];
        all.extend(json);
        (look, pages.status("POST", "/api/act/cancel", &all, "{}"))
    };
    assert_eq!(with(&[("host", host), ("origin", &own)]), (200, 400), "a page of ours is let in");
    let foreign = [
        vec![("host", "evil.example")],
        vec![("host", "evil.example"), ("origin", "http://evil.example")],
        vec![("host", host), ("origin", "http://evil.example")],
        vec![("host", host), ("origin", "null")],
        vec![("host", host), ("origin", "http://127.0.0.1:1")],
        vec![("host", host), ("origin", &own), ("sec-fetch-site", "cross-site")],
        vec![("host", host), ("origin", &own), ("sec-fetch-site", "same-site")],
    ];
    for headers in foreign {
        assert_eq!(with(&headers), (403, 403), "{headers:?}");
    }
    // Without signs of a page of ours nothing is changed.
    let cookie = ("cookie", cookie.as_str());
    let act = |headers: &[(&str, &str)]| pages.status("POST", "/api/act/cancel", headers, "{}");
    let json = ("content-type", "application/json");
    assert_eq!(act(&[("host", host), cookie, json, ("x-cdb", "1")]), 403, "no origin");
    assert_eq!(act(&[("host", host), cookie, json, ("origin", &own)]), 403, "no header of ours");
    assert_eq!(
        act(&[("host", host), cookie, ("x-cdb", "1"), ("origin", &own), ("content-type", "text/plain")]),
        415
    );
    assert_eq!(
        act(&[("host", host), ("host", host), cookie, json, ("x-cdb", "1"), ("origin", &own)]),
        400,
        "two hosts"
    );
}

#[test]
fn every_answer_forbids_what_a_hostile_text_would_need() {
    let stage = Stage::new("pages-headers");
    let pages = Pages::of(&stage, &[]);
    for path in
        ["/", "/instances", "/i/%3Cimg%20src=x%3E", "/js/app.js", "/app.css", "/api/meta", "/nothing.txt"]
    {
        let (head, _) = pages.raw(&format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", pages.host));
        for line in [
            "default-src 'none'; script-src 'self'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(head.contains(line), "{path} lacks {line}: {head}");
        }
        assert!(!head.to_lowercase().contains("access-control"), "{head}");
    }
}

#[test]
fn only_looking_is_served_where_only_looking_is_wanted() {
    let stage = Stage::new("pages-read-only");
    stage.play_to_the_end(&[("a", "echo", "x")]);
    let pages = Pages::of(&stage, &["--read-only"]);
    assert_eq!(pages.get("/api/meta")["readOnly"], true);
    for (method, route) in ACTS {
        let body = json!({"ids": ["a"], "id": "a", "confirm": "delete 1", "seconds": 1});
        assert_eq!(pages.ask(method, route, &body).0, 404, "{route}");
    }
    assert_eq!(pages.get("/api/instances")["rows"][0]["instance"], "a");
}

#[test]
fn the_pages_tell_what_the_commands_tell() {
    let stage = Stage::new("pages-same");
    stage.play(&[("f", "family", "x"), ("bad", "fails", "no"), ("w", "waits", "")], async |client| {
        crate::stage::ended(client, "f").await;
        crate::stage::ended(client, "bad").await;
        begun(client, "w").await;
    });
    let pages = Pages::of(&stage, &[]);
    let listed = pages.get("/api/instances?children=1");
    let mut ids: Vec<&str> =
        listed["rows"].as_array().unwrap().iter().map(|row| row["instance"].as_str().unwrap()).collect();
    ids.sort_unstable();
    let lines = stage.ok(&["instances", "--json", "--limit", "0", "--sort", "id"]);
    let told: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(ids, told.iter().map(|row| row["instance"].as_str().unwrap()).collect::<Vec<_>>());
    assert_eq!(pages.get("/api/instances")["rows"].as_array().unwrap().len(), 3, "children are left out");
    let failed = pages.get("/api/instances?status=failed");
    assert_eq!((&failed["rows"][0]["instance"], &failed["rows"][0]["error"]), (&json!("bad"), &json!("no")));
    let why: Value = serde_json::from_str(&stage.ok(&["why", "w", "--json"])).unwrap();
    let page = pages.get("/api/instances/w");
    assert_eq!(page["why"]["level"], why["level"]);
    assert_eq!(page["waitsFor"], json!([{"kind": "event", "name": "yes"}]));
    let page = pages.get("/api/instances/f");
    assert_eq!(page["children"].as_array().unwrap().len(), 2);
    assert_eq!((&page["input"]["text"], &page["spans"][0]["state"]), (&json!("x"), &json!("done")));
    assert!(!pages.get("/api/queues")["queues"].to_string().contains("examples"));
    let members = pages.get("/api/runtimes")["members"].clone();
    assert!(members.as_array().unwrap().iter().all(|member| member["owner"].is_string()), "{members}");
    assert_eq!((&members[0]["slots"], &members[0]["state"]), (&json!(256), &json!("alive")), "{members}");
    assert_eq!(pages.ask("GET", "/api/instances/nobody", &Value::Null).0, 404);
    let overview = pages.get("/api/overview");
    assert_eq!((&overview["running"], &overview["failed"]), (&json!(1), &json!(1)));
    assert_eq!(overview["groups"][0]["error"], "no");
}

#[test]
fn what_destroys_is_counted_and_done_only_for_who_types_the_count() {
    let stage = Stage::new("pages-acting");
    stage.play(&[("f", "family", "x"), ("w1", "waits", ""), ("w2", "waits", "")], async |client| {
        crate::stage::ended(client, "f").await;
        begun(client, "w1").await;
        begun(client, "w2").await;
    });
    let pages = Pages::of(&stage, &[]);
    let delete = |body: Value| pages.ask("POST", "/api/act/delete", &body);
    let (_, counted) = delete(json!({"ids": ["f", "w1"], "rehearse": true}));
    assert_eq!((&counted["word"], &counted["tally"]["instances"]), (&json!("delete 1"), &json!(3)));
    assert_eq!(counted["running"][0]["instance"], "w1");
    for word in ["", "delete", "delete 0", "yes", "delete 2"] {
        assert_eq!(delete(json!({"ids": ["f", "w1"], "confirm": word})).0, 400, "{word:?}");
    }
    let prune = |body: Value| pages.ask("POST", "/api/act/prune", &body);
    assert_eq!(
        prune(json!({"ids": ["f"], "keepLast": 1, "confirm": "prune 7"})).0,
        400,
        "nothing was counted"
    );
    assert_eq!(delete(json!({"ids": ["w1", "f"], "confirm": "delete 1"})).1["tally"]["instances"], 3);
    assert_eq!(pages.ask("GET", "/api/instances/w1", &Value::Null).0, 200, "it was not counted");
    assert_eq!(pages.ask("GET", "/api/instances/f", &Value::Null).0, 404);
    let cancel = |body: Value| pages.ask("POST", "/api/act/cancel", &body);
    let both = json!(["w1", "w2"]);
    assert_eq!(cancel(json!({"ids": both, "rehearse": true})).1["word"], "cancel 2");
    assert_eq!(cancel(json!({"ids": both})).0, 400);
    assert_eq!(cancel(json!({"ids": both, "confirm": "cancel 2", "reason": "test"})).1["done"], 2);
    stage.play(&[], async |client| {
        crate::stage::ended(client, "w1").await;
        crate::stage::ended(client, "w2").await;
    });
    let cancelled = pages.get("/api/instances?status=cancelled");
    assert_eq!(cancelled["rows"].as_array().unwrap().len(), 2, "{cancelled}");
    assert_eq!(pages.get("/api/instances?status=failed")["rows"], json!([]));
    let (status, told) = pages.ask("POST", "/api/act/start", &json!({"id": "w1", "name": "waits"}));
    assert_eq!(status, 409, "{told}");
}

#[test]
fn the_first_pages_are_cheap_and_say_what_they_cost() {
    let stage = Stage::new("pages-cheap");
    let starts: Vec<String> = (0..60).map(|number| format!("echo-{number:02}")).collect();
    let starts: Vec<(&str, &str, &str)> = starts.iter().map(|id| (id.as_str(), "echo", "x")).collect();
    stage.play_to_the_end(&starts);
    let pages = Pages::of(&stage, &[]);
    // This account has two physical partitions, each of which is asked.
    for (path, most) in
        [("/api/overview", 20.0), ("/api/instances", 20.0), ("/api/instances?status=failed", 8.0)]
    {
        let cost = &pages.get(path)["cost"];
        let units = cost["units"].as_f64().unwrap();
        assert!(units > 1.0 && units <= most, "{path}: {cost}");
    }
    let first = pages.get("/api/instances");
    assert_eq!(first["rows"].as_array().unwrap().len(), 50);
    let next = first["next"].as_str().expect("a second page");
    let encoded: String = next.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let second = pages.get(&format!("/api/instances?cursor={encoded}"));
    let mut ids: Vec<&str> = [&first, &second]
        .iter()
        .flat_map(|page| page["rows"].as_array().unwrap())
        .map(|row| row["instance"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 60, "each is on one page");
}

#[test]
fn who_watches_is_told_and_nobody_looks_for_nobody() {
    let stage = Stage::new("pages-live");
    let pages = Pages::of(&stage, &["--budget", "1000"]);
    let container = format!("dbs/duroxide/colls/{}", stage.container);
    let looks = || {
        let lines = ACCOUNT.emulator.ledger().snapshot().lines;
        let of = lines.iter().filter(|line| {
            *line.container == *container && line.operation == cosmos_emulator::Operation::ChangeFeed
        });
        of.map(|line| line.totals.requests).sum::<u64>()
    };
    pages.get("/api/overview");
    assert_eq!(looks(), 0, "no tab watches");
    let mut stream = TcpStream::connect(&pages.host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request =
        format!("GET /api/events HTTP/1.1\r\nhost: {}\r\ncookie: {}\r\n\r\n", pages.host, pages.cookie());
    stream.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("it goes on"));
    assert!(lines.by_ref().any(|line| line == "event: hello"));
    while looks() == 0 {
        std::thread::yield_now();
    }
    stage.play_to_the_end(&[("a", "echo", "x")]);
    let told = lines.find(|line| line.starts_with("data: ") && line.contains("\"instance\":\"a\""));
    assert!(told.is_some_and(|told| told.contains("\"touched\":[\"a\"")));
}

#[test]
fn other_machines_need_a_token_of_the_operator() {
    let stage = Stage::new("pages-bind");
    let ended = stage.run(&["dashboard", "--bind", "0.0.0.0", "--port", "0"]).with_code(2);
    assert!(ended.stderr.contains("CDB_DASHBOARD_TOKEN"), "{}", ended.stderr);
    stage.run(&["dashboard", "--port", "0", "--token", "short"]).with_code(2);
}
