//! The management API, on a port of its own: health, the ledger, fault rules, metrics.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::command;
use crate::fault::FaultRule;
use crate::http::Account;
use crate::ledger::LedgerSnapshot;
use crate::server::{Gate, Handler, Received, Reset};

/// Answers requests to the management port. They are not signed: bind it where only you can reach it.
#[derive(Debug)]
pub(crate) struct Management {
    account: Arc<Account>,
    endpoint: String,
}

type Answer = (StatusCode, Value);

/// Furthest the clock is put forward at once.
const SECONDS_MAX: f64 = 1e9;

impl Management {
    pub(crate) fn new(account: Arc<Account>, endpoint: String) -> Self {
        Self { account, endpoint }
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Response<Bytes> {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        if *method == Method::GET && segments == ["metrics"] {
            return text(self.metrics());
        }
        let (status, body) = match (method.as_str(), segments.as_slice()) {
            ("GET", ["health"]) => (StatusCode::OK, json!({"status": "ok"})),
            ("GET", ["account"]) => (
                StatusCode::OK,
                command::account::document(&self.account, None, self.endpoint.trim_end_matches('/')),
            ),
            ("GET", ["ledger"]) => (StatusCode::OK, json!(self.account.ledger.snapshot())),
            ("DELETE", ["ledger"]) => {
                self.account.ledger.reset();
                (StatusCode::NO_CONTENT, Value::Null)
            }
            ("GET", ["faults"]) => (StatusCode::OK, json!({"faults": self.account.faults.list()})),
            ("POST", ["faults"]) => self.add_fault(body),
            ("DELETE", ["faults"]) => {
                self.account.faults.clear();
                (StatusCode::NO_CONTENT, Value::Null)
            }
            ("DELETE", ["faults", id]) => self.remove_fault(id),
            ("POST", ["clock", "advance"]) => self.advance_clock(body),
            ("POST", ["goaway"]) => (StatusCode::OK, json!({"connections": self.gates().map(|gate| gate.goaway()).sum::<u64>()})),
            ("GET", ["config", "connection-age"]) => {
                (StatusCode::OK, json!({"seconds": self.gates().next().and_then(|gate| gate.age_max()).map(|age| age.as_secs_f64())}))
            }
            (
                _,
                ["health" | "account" | "ledger" | "faults" | "metrics"]
                | ["faults", _]
                | ["clock", "advance"],
            ) => problem(StatusCode::METHOD_NOT_ALLOWED, &format!("{method} is not possible on {path}")),
            _ => problem(
                StatusCode::NOT_FOUND,
                "known paths: GET /health, GET /account, GET and DELETE /ledger, GET, POST and DELETE /faults, \
                 DELETE /faults/{id}, POST /clock/advance, GET /metrics",
            ),
        };
        json_response(status, &body)
    }

    /// What the connections of all regions listen to.
    fn gates(&self) -> impl Iterator<Item = Arc<Gate>> {
        self.account.regions.gates().into_iter()
    }

    fn add_fault(&self, body: &[u8]) -> Answer {
        let rule: FaultRule = match serde_json::from_slice(body) {
            Ok(rule) => rule,
            Err(error) => return problem(StatusCode::BAD_REQUEST, &format!("not a fault rule: {error}")),
        };
        if let Err(reason) = rule.validate() {
            return problem(StatusCode::BAD_REQUEST, &reason);
        }
        (StatusCode::CREATED, json!({"id": self.account.faults.install(rule)}))
    }

    fn remove_fault(&self, id: &str) -> Answer {
        match id.parse() {
            Ok(id) if self.account.faults.remove(id) => (StatusCode::NO_CONTENT, Value::Null),
            _ => problem(StatusCode::NOT_FOUND, "no fault rule has this id; GET /faults lists them"),
        }
    }

    /// `{"seconds": 3600}` puts the clock of the account forward, so that what expires can be seen to expire.
    fn advance_clock(&self, body: &[u8]) -> Answer {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let Some(seconds) = body["seconds"].as_f64().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds))
        else {
            return problem(StatusCode::BAD_REQUEST, "the body must be {\"seconds\": n} with 0 <= n <= 1e9");
        };
        self.account.clock.advance(Duration::from_secs_f64(seconds));
        (StatusCode::OK, json!({"now": cosmos_wire::date::format(self.account.clock.now())}))
    }

    fn metrics(&self) -> String {
        let mut out = String::with_capacity(4096);
        gauge(
            &mut out,
            "connections_open",
            "Connections open now.",
            self.gates().map(|gate| gate.traffic.connections_open.load(Ordering::Relaxed)).sum(),
        );
        let total: u64 = self.gates().map(|gate| gate.traffic.connections_total.load(Ordering::Relaxed)).sum();
        counter_head(&mut out, "connections_total", "Connections accepted.");
        let _ = writeln!(out, "cosmos_emulator_connections_total {total}");
        let snapshot = self.account.ledger.snapshot();
        series(&mut out, &snapshot, "requests_total", "Requests answered.", |totals| totals.requests as f64);
        series(&mut out, &snapshot, "failures_total", "Requests refused (400 and above).", |totals| {
            totals.failures as f64
        });
        series(&mut out, &snapshot, "request_units_total", "Request units charged.", |totals| {
            totals.request_units
        });
        series(&mut out, &snapshot, "documents_visited_total", "Documents read to answer.", |totals| {
            totals.documents_visited as f64
        });
        series(&mut out, &snapshot, "request_bytes_total", "Bytes in bodies received.", |totals| {
            totals.request_bytes as f64
        });
        series(&mut out, &snapshot, "response_bytes_total", "Bytes in bodies sent.", |totals| {
            totals.response_bytes as f64
        });
        out
    }
}

impl Handler for Management {
    async fn handle(&self, request: Received) -> Result<Response<Bytes>, Reset> {
        let (parts, body) = request.into_parts();
        Ok(match body {
            Ok(body) => self.answer(&parts.method, parts.uri.path(), &body),
            Err(_) => {
                let (status, body) =
                    problem(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large or did not arrive");
                json_response(status, &body)
            }
        })
    }
}

fn problem(status: StatusCode, message: &str) -> Answer {
    (status, json!({"error": message}))
}

fn json_response(status: StatusCode, body: &Value) -> Response<Bytes> {
    let bytes = if status == StatusCode::NO_CONTENT { Bytes::new() } else { body.to_string().into() };
    respond(status, "application/json", bytes)
}

fn text(body: String) -> Response<Bytes> {
    respond(StatusCode::OK, "text/plain; version=0.0.4", body.into())
}

fn respond(status: StatusCode, media_type: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(media_type));
    response
}

fn gauge(out: &mut String, name: &str, help: &str, value: u64) {
    let _ = writeln!(
        out,
        "# HELP cosmos_emulator_{name} {help}\n# TYPE cosmos_emulator_{name} gauge\ncosmos_emulator_{name} {value}"
    );
}

fn counter_head(out: &mut String, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP cosmos_emulator_{name} {help}\n# TYPE cosmos_emulator_{name} counter");
}

fn series(
    out: &mut String,
    snapshot: &LedgerSnapshot,
    name: &str,
    help: &str,
    value: impl Fn(&crate::ledger::Totals) -> f64,
) {
    counter_head(out, name, help);
    for line in &snapshot.lines {
        let container = line.container.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(
            out,
            "cosmos_emulator_{name}{{operation=\"{}\",container=\"{container}\"}} {}",
            line.operation.name(),
            value(&line.totals)
        );
    }
}
