//! Any text as a continuation token of a query and of a change feed: it is resumed or refused.

#![no_main]

use std::cell::OnceCell;

use bytes::Bytes;
use fuzz::Account;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static ACCOUNT: OnceCell<Account> = const { OnceCell::new() };
}

const QUERIES: [&str; 3] = ["SELECT * FROM c", "SELECT * FROM c ORDER BY c.n DESC", "SELECT DISTINCT VALUE c.s FROM c"];

fuzz_target!(|input: (u8, &str)| {
    let (which, token) = input;
    ACCOUNT.with(|account| {
        let account = account.get_or_init(Account::default);
        let query = QUERIES[usize::from(which) % QUERIES.len()];
        let headers = [
            ("content-type", "application/query+json"),
            ("x-ms-documentdb-isquery", "True"),
            ("x-ms-max-item-count", "3"),
            ("x-ms-continuation", token),
        ];
        let body = serde_json::json!({ "query": query }).to_string();
        account.send("POST", "/dbs/d/colls/c/docs", &headers, body.into());
        let headers = [("a-im", "Incremental Feed"), ("if-none-match", token)];
        account.send("GET", "/dbs/d/colls/c/docs", &headers, Bytes::new());
        let headers = [("x-ms-continuation", token), ("x-ms-max-item-count", "3")];
        account.send("GET", "/dbs/d/colls/c/docs", &headers, Bytes::new());
    });
});
