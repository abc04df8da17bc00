//! Which requests are let near: a web page's are not, however it comes to this machine.

use std::io::{BufReader, Write};
use std::net::TcpStream;

use cosmos_emulator::{Config, Emulator};
use serde_json::json;

use crate::client::{Answer, read_answer};

fn managed() -> Emulator {
    Emulator::start(Config::default().with_management()).unwrap()
}

fn management(emulator: &Emulator) -> String {
    authority(&emulator.management_endpoint().unwrap())
}

fn authority(endpoint: &str) -> String {
    endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

/// Sends exactly these bytes.
fn raw(address: &str, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    read_answer(&mut BufReader::new(stream)).unwrap()
}

/// A request to the management port with these header lines besides the length of its body.
fn ask(emulator: &Emulator, line: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    raw(&management(emulator), &format!("{line} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n{body}"))
}

#[track_caller]
fn assert_refused(answer: Answer, status: u16, reason: &str) {
    let said = answer.expect(status).json()["error"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains(reason), "{reason}: {said}");
}

#[test]
fn a_page_whose_name_leads_to_this_machine_is_refused() {
    let emulator = managed();
    let before = emulator.clock().now_millis();
    for line in
        ["GET /ledger", "GET /", "GET /health", "DELETE /faults", "POST /clock/advance", "GET /nothing"]
    {
        let headers = "host: evil.example:8082\r\ncontent-type: application/json\r\n";
        assert_refused(ask(&emulator, line, headers, r#"{"seconds": 900}"#), 403, "evil.example");
    }
    assert!(emulator.clock().now_millis() < before + 900_000, "nothing happened");
}

#[test]
fn a_page_of_another_place_is_refused_by_its_origin() {
    let emulator = managed();
    let host = management(&emulator);
    let json = "content-type: application/json\r\n";
    for line in ["GET /ledger", "POST /clock/advance", "DELETE /faults"] {
        for origin in ["https://evil.example", "null", "http://localhost:3000"] {
            let headers = format!("host: {host}\r\norigin: {origin}\r\n{json}");
            assert_refused(ask(&emulator, line, &headers, r#"{"seconds": 1}"#), 403, "only pages of");
        }
        let headers = format!("host: {host}\r\nsec-fetch-site: cross-site\r\n{json}");
        assert_refused(ask(&emulator, line, &headers, r#"{"seconds": 1}"#), 403, "Sec-Fetch-Site");
    }
    let own = format!("host: {host}\r\norigin: http://{host}\r\nsec-fetch-site: same-origin\r\n{json}");
    ask(&emulator, "POST /clock/advance", &own, r#"{"seconds": 1}"#).expect(200);
}

#[test]
fn a_change_that_a_form_could_send_is_refused() {
    let emulator = managed();
    let host = management(&emulator);
    let rule = r#"{"operation": "readItem", "verdict": {"kind": "status", "code": 503}}"#;
    for media_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        let headers = format!("host: {host}\r\ncontent-type: {media_type}\r\n");
        assert_refused(ask(&emulator, "POST /faults", &headers, rule), 415, "application/json");
    }
    assert_refused(
        ask(&emulator, "POST /faults", &format!("host: {host}\r\n"), rule),
        415,
        "application/json",
    );
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("copy");
    let body = json!({"folder": folder}).to_string();
    let headers = format!("host: {host}\r\ncontent-type: text/plain\r\n");
    assert_refused(ask(&emulator, "POST /snapshot", &headers, &body), 415, "application/json");
    assert!(!folder.exists() && emulator.faults().list().is_empty(), "nothing happened");
}

#[test]
fn programs_notice_nothing() {
    let emulator = managed();
    let host = management(&emulator);
    let port = host.rsplit(':').next().unwrap();
    for host in [host.clone(), format!("localhost:{port}"), "localhost".to_owned(), format!("[::1]:{port}")] {
        let headers = format!("host: {host}\r\nuser-agent: curl/8.5.0\r\naccept: */*\r\n");
        ask(&emulator, "GET /ledger", &headers, "").expect(200);
        ask(&emulator, "POST /goaway", &headers, "").expect(200);
        ask(&emulator, "DELETE /faults", &headers, "").expect(204);
        let json = format!("{headers}content-type: application/json\r\n");
        ask(&emulator, "POST /clock/advance", &json, r#"{"seconds": 1}"#).expect(200);
    }
}

#[test]
fn a_request_names_one_host_on_every_port() {
    let emulator = managed();
    for address in [management(&emulator), authority(&emulator.endpoint())] {
        let wrong = [
            String::new(),
            format!("host: {address}\r\nhost: evil.example\r\n"),
            format!("host: {address}\r\nhost: {address}\r\n"),
        ];
        for hosts in wrong {
            // As plain as requests get, and such as only a library understands.
            for more in ["", "connection: close\r\n"] {
                let answer = raw(&address, &format!("GET / HTTP/1.1\r\n{hosts}{more}\r\n"));
                assert_eq!(answer.status, 400, "{address}: {hosts:?} {more:?}");
                assert!(String::from_utf8_lossy(&answer.body).contains("one host"), "{answer:?}");
            }
        }
        let answer = raw(&address, &format!("GET / HTTP/1.1\r\nhost: {address}\r\n\r\n"));
        let said = String::from_utf8_lossy(&answer.body);
        assert!(!said.contains("one host"), "{address}: {said}");
    }
}
