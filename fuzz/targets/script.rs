//! Any text as a stored procedure: it runs or is refused, in bounded time and memory, and documents stay whole.

#![no_main]

use std::cell::OnceCell;

use bytes::Bytes;
use fuzz::{Account, KEY};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

thread_local! {
    static ACCOUNT: OnceCell<Account> = const { OnceCell::new() };
}

fuzz_target!(|text: &str| {
    ACCOUNT.with(|account| {
        let account = account.get_or_init(Account::default);
        let body = format!(
            "function (n) {{ var context = getContext(), all = context.getCollection(), link = all.getSelfLink(), \
             answer = context.getResponse(); {text}\n}}"
        );
        let script = json!({"id": "s", "body": body}).to_string();
        let headers = [("x-ms-documentdb-is-upsert", "true")];
        let kept = account.send("POST", "/dbs/d/colls/c/sprocs", &headers, script.into());
        if kept.is_none_or(|answer| !answer.status().is_success()) {
            return;
        }
        let run = account.send("POST", "/dbs/d/colls/c/sprocs/s", &[KEY], Bytes::from_static(b"[3]"));
        let is_done = run.is_some_and(|answer| answer.status().is_success());
        let read = account.send("GET", "/dbs/d/colls/c/docs/i3", &[KEY], Bytes::new()).expect("a legal request");
        let document: Value = serde_json::from_slice(read.body()).expect("what is answered is JSON");
        // What a script did not end well has not happened.
        assert!(is_done || document["n"] == 3, "a script that failed has changed a document: {text}");
        if is_done {
            account.restore(3);
        }
    });
});
