//! Any text as a continuation token of a query and of a change feed, and real tokens that point somewhere else: each is
//! resumed or refused.
//!
//! A token of a query carries the number of its query and a checksum, which keep mangled text out; they are put right
//! here, so that what is hostile arrives where queries resume.

#![no_main]

use std::cell::OnceCell;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use cosmos_emulator::Gateway;
use fuzz::{Account, KEY};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

thread_local! {
    static STAGE: OnceCell<Stage> = const { OnceCell::new() };
}

const ITEMS: &str = "/dbs/d/colls/c/docs";
const QUERIES: [&str; 8] = [
    "SELECT * FROM c",
    "SELECT * FROM c WHERE c.n > 2",
    "SELECT VALUE k FROM c JOIN k IN c.list",
    "SELECT * FROM c ORDER BY c.n DESC",
    "SELECT * FROM c ORDER BY c.s OFFSET 2 LIMIT 20",
    "SELECT DISTINCT VALUE c.s FROM c",
    "SELECT c.n, COUNT(1) AS many FROM c GROUP BY c.n",
    "SELECT VALUE SUM(c.n) FROM c",
];
const EVERYWHERE: (&str, &str) = ("x-ms-documentdb-query-enablecrosspartition", "True");
/// A key, all keys, one physical partition, and some keys of several.
const SCOPES: [&[(&str, &str)]; 4] = [
    &[KEY],
    &[EVERYWHERE],
    &[("x-ms-documentdb-partitionkeyrangeid", "1")],
    &[("x-ms-read-key-type", "EffectivePartitionKeyRange"), ("x-ms-start-epk", "08"), ("x-ms-end-epk", "28")],
];
/// Pages of a query whose tokens are kept.
const PAGES_MAX: usize = 4;

/// A token as it was given out: the query and scope that take it back, its range, and what is sealed in it.
struct Real {
    query: &'static str,
    scope: &'static [(&'static str, &'static str)],
    range: Value,
    envelope: Value,
}

struct Stage {
    as_service: Account,
    serving_all: Account,
    real: Vec<Real>,
}

impl Default for Stage {
    fn default() -> Self {
        let serving_all = Account::behind(Gateway::ServeAll);
        let mut real = Vec::new();
        for query in QUERIES {
            for scope in SCOPES {
                real.extend(tokens(&serving_all, query, scope));
            }
        }
        // Without all kinds of places nothing that begins with one is reached.
        for kind in ["Stream", "Sorted", "Distinct", "Grouped"] {
            assert!(real.iter().any(|token| token.envelope["place"].get(kind).is_some()), "{kind}");
        }
        Self { as_service: Account::default(), serving_all, real }
    }
}

fn tokens(account: &Account, query: &'static str, scope: &'static [(&str, &str)]) -> Vec<Real> {
    let mut found = Vec::new();
    let mut token: Option<String> = None;
    while found.len() < PAGES_MAX {
        let Some(next) = ask(account, query, scope, token.as_deref()) else { break };
        let wrapped: Value = serde_json::from_str(&next).expect("tokens are JSON");
        let sealed = wrapped["token"].as_str().expect("the engine's own token");
        let bytes = URL_SAFE_NO_PAD.decode(sealed).expect("base64");
        let envelope = serde_json::from_slice(&bytes[8..]).expect("JSON behind the checksum");
        found.push(Real { query, scope, range: wrapped["range"].clone(), envelope });
        token = Some(next);
    }
    found
}

/// Asks for a page; the token of the next.
fn ask(account: &Account, query: &str, scope: &[(&str, &str)], token: Option<&str>) -> Option<String> {
    let mut headers = vec![
        ("content-type", "application/query+json"),
        ("x-ms-documentdb-isquery", "True"),
        ("x-ms-max-item-count", "3"),
    ];
    headers.extend(token.map(|token| ("x-ms-continuation", token)));
    headers.extend(scope);
    let answer = account.send("POST", ITEMS, &headers, json!({"query": query}).to_string().into())?;
    Some(answer.headers().get("x-ms-continuation")?.to_str().ok()?.to_owned())
}

/// The text of an envelope as the emulator writes it.
fn sealed(envelope: &[u8]) -> String {
    let sum = envelope.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    URL_SAFE_NO_PAD.encode([&sum.to_be_bytes(), envelope].concat())
}

/// The position in a place, if it has one.
fn position(envelope: &mut Value) -> Option<&mut Value> {
    let place = envelope["place"].as_object_mut()?.values_mut().next()?;
    place.get_mut("after")
}

/// Bytes with some of them changed: a place and a byte for each change.
fn changed(mut bytes: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    for change in changes.chunks_exact(2) {
        let at = usize::from(change[0]) % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = change[1];
        }
    }
    bytes
}

impl Real {
    /// The token with other bytes in it.
    fn twisted(&self, way: u8, bytes: &[u8]) -> Option<String> {
        let mut envelope = self.envelope.clone();
        let body = match way % 4 {
            0 => changed(envelope.to_string().into_bytes(), bytes),
            1 => {
                envelope["place"] = serde_json::from_slice(bytes).ok()?;
                envelope.to_string().into_bytes()
            }
            2 => {
                *position(&mut envelope)? = json!(bytes);
                envelope.to_string().into_bytes()
            }
            _ => {
                let position = position(&mut envelope)?;
                let held: Vec<u8> = serde_json::from_value(position.clone()).ok()?;
                *position = json!(changed(held, bytes));
                envelope.to_string().into_bytes()
            }
        };
        Some(json!({"token": sealed(&body), "range": self.range}).to_string())
    }
}

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (which, way, bytes) = input;
    STAGE.with(|stage| {
        let stage = stage.get_or_init(Stage::default);
        if way < 192 {
            let real = &stage.real[usize::from(which) % stage.real.len()];
            if let Some(token) = real.twisted(way, bytes) {
                ask(&stage.serving_all, real.query, real.scope, Some(&token));
            }
            return;
        }
        let Ok(token) = std::str::from_utf8(bytes) else { return };
        let query = QUERIES[usize::from(which) % QUERIES.len()];
        for scope in SCOPES {
            ask(&stage.as_service, query, scope, Some(token));
            let feeds = [
                [("a-im", "Incremental Feed"), ("if-none-match", token)],
                [("x-ms-continuation", token), ("x-ms-max-item-count", "3")],
            ];
            for headers in feeds {
                stage.as_service.send("GET", ITEMS, &[&headers[..], scope].concat(), Bytes::new());
            }
        }
    });
});
