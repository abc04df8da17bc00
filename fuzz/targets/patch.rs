//! Any bytes as the body of a patch: it is applied or refused, and the document stays one.

#![no_main]

use std::cell::OnceCell;

use bytes::Bytes;
use fuzz::{Account, KEY};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static ACCOUNT: OnceCell<Account> = const { OnceCell::new() };
}

fuzz_target!(|body: &[u8]| {
    ACCOUNT.with(|account| {
        let account = account.get_or_init(Account::default);
        let headers = [KEY, ("content-type", "application/json_patch+json")];
        let answer = account.send("PATCH", "/dbs/d/colls/c/docs/i3", &headers, Bytes::copy_from_slice(body));
        if answer.is_some_and(|answer| answer.status().is_success()) {
            let read =
                account.send("GET", "/dbs/d/colls/c/docs/i3", &[KEY], Bytes::new()).expect("a legal request");
            let document: serde_json::Value =
                serde_json::from_slice(read.body()).expect("the document is JSON");
            assert_eq!((&document["id"], &document["pk"]), (&"i3".into(), &"p".into()));
            account.restore(3);
        }
    });
});
