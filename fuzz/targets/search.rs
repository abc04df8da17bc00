//! Any text as what is searched for, and any as what ranks: an answer or a refusal, and a plan whose queries can be run.

#![no_main]

use std::cell::OnceCell;

use fuzz::{Account, KEY};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

thread_local! {
    static ACCOUNT: OnceCell<Account> = const { OnceCell::new() };
}

const FEATURES: &str = "HybridSearch, WeightedRankFusion, HybridSearchSkipOrderByRewrite, Top, OffsetAndLimit, OrderBy";
const PLACEHOLDER: &str = "{documentdb-formattablehybridsearchquery-";

/// A query of a plan with numbers in place of what a client puts in.
fn filled(text: &str) -> String {
    let text = text.replace("{documentdb-formattableorderbyquery-filter}", "true");
    let mut parts = text.split(PLACEHOLDER);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |filled, part| {
        let (name, rest) = part.split_once('}').expect("a placeholder ends");
        filled + if name.starts_with("hitcountsarray") { "[1]" } else { "7" } + rest
    })
}

fuzz_target!(|text: &str| {
    let (needle, rank) = text.split_once('\n').unwrap_or((text, "FullTextScore(c.s, @p)"));
    let needle: Value = serde_json::from_str(needle).unwrap_or_else(|_| needle.into());
    let query = format!("SELECT TOP 3 c.id FROM c WHERE NOT FullTextContainsAll(c.s, 'x', @p) ORDER BY RANK {rank}");
    ACCOUNT.with(|account| {
        let account = account.get_or_init(Account::default);
        let parameters = json!([{"name": "@p", "value": needle}]);
        let body = json!({"query": query, "parameters": parameters}).to_string();
        let headers = [KEY, ("content-type", "application/query+json"), ("x-ms-documentdb-isquery", "True")];
        account.send("POST", "/dbs/d/colls/c/docs", &headers, body.clone().into());
        let headers = [
            ("content-type", "application/query+json"),
            ("x-ms-cosmos-is-query-plan-request", "True"),
            ("x-ms-cosmos-supported-query-features", FEATURES),
        ];
        let planned = account.send("POST", "/dbs/d/colls/c/docs", &headers, body.into());
        let Some(planned) = planned.filter(|answer| answer.status().is_success()) else { return };
        let plan: Value = serde_json::from_slice(planned.body()).expect("a plan is JSON");
        let search = &plan["hybridSearchQueryInfo"];
        let components = search["componentQueryInfos"].as_array().into_iter().flatten();
        let queries = components.map(|component| &component["rewrittenQuery"]);
        for query in queries.chain([&search["globalStatisticsQuery"]]).filter_map(Value::as_str) {
            let query = filled(query);
            assert!(cosmos_emulator::sql::parse(&query).is_ok(), "{query} of the plan of {text} does not parse");
            let body = json!({"query": query, "parameters": parameters}).to_string();
            let headers = [KEY, ("content-type", "application/query+json"), ("x-ms-documentdb-isquery", "True")];
            account.send("POST", "/dbs/d/colls/c/docs", &headers, body.into());
        }
    });
});
