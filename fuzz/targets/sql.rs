//! Any text as a query: it is answered or refused, never more than its page, and what parses prints as what
//! parses and prints the same.

#![no_main]

use std::cell::OnceCell;

use fuzz::{Account, KEY};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static ACCOUNT: OnceCell<Account> = const { OnceCell::new() };
}

fuzz_target!(|text: &str| {
    if let Ok(query) = cosmos_emulator::sql::parse(text) {
        let printed = query.to_string();
        match cosmos_emulator::sql::parse(&printed) {
            Ok(again) => assert_eq!(again.to_string(), printed, "{text} prints as another query"),
            Err(error) => panic!("{printed} does not parse: {error:?}"),
        }
    }
    ACCOUNT.with(|account| {
        let body = serde_json::json!({"query": text, "parameters": [{"name": "@p", "value": 3}]}).to_string();
        let headers = [
            KEY,
            ("content-type", "application/query+json"),
            ("x-ms-documentdb-isquery", "True"),
            ("x-ms-max-item-count", "5"),
        ];
        account.get_or_init(Account::default).send("POST", "/dbs/d/colls/c/docs", &headers, body.into());
    });
});
