//! Which function answers a request. What only reads and what acts are two lists, and `--read-only` has only the first.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use cosmos_wire::resource::percent_decode;
use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::Value;

use super::answer::{self, Answer, Outcome};
use super::api::{act, care, emulator, explorer, instance, instances, lists, overview};
use super::{Store, live};

/// A request as the functions see it.
pub(super) struct Asked {
    pub(super) method: Method,
    /// What follows `/api/`, decoded once.
    pub(super) path: Vec<String>,
    query: BTreeMap<String, String>,
    pub(super) body: Value,
}

impl Asked {
    /// A parameter that is there and not empty.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A parameter that is a number.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.parameter(name)?.parse().ok()
    }

    /// A text of the body, or the empty one.
    pub(super) fn text(&self, name: &str) -> &str {
        self.body[name].as_str().unwrap_or_default()
    }
}

/// Finds and asks.
pub(super) async fn answer_to(store: &Arc<Store>, parts: &Parts, body: Value) -> Answer {
    let path = parts.uri.path().trim_start_matches("/api/");
    let path: Option<Vec<String>> =
        path.split('/').map(|part| percent_decode(part).map(Cow::into_owned)).collect();
    let Some(path) = path else {
        return answer::problem(StatusCode::BAD_REQUEST, "the path is not percent-encoded UTF-8");
    };
    let query = pairs(parts.uri.query().unwrap_or_default());
    let asked = Asked { method: parts.method.clone(), path, query, body };
    let names: Vec<&str> = asked.path.iter().map(String::as_str).collect();
    if asked.method == Method::GET && names == ["events"] {
        let last = parts.headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
        return live::subscribe(store, last);
    }
    let is_download = asked.parameter("download").is_some();
    let outcome = match Box::pin(read(store, &asked, &names)).await {
        None if !store.is_read_only => Box::pin(act(store, &asked, &names)).await,
        found => found,
    };
    match outcome {
        Some(Ok(value)) if is_download => answer::download("cdb-download.json", &value),
        Some(Ok(value)) => answer::json(StatusCode::OK, &value),
        Some(Err(failure)) => answer::problem(failure.status, &failure.sentence),
        None => answer::problem(StatusCode::NOT_FOUND, "there is nothing at this path"),
    }
}

async fn read(store: &Arc<Store>, asked: &Asked, path: &[&str]) -> Option<Outcome> {
    // A query is sent as a body; so is the wish to have the container examined.
    if asked.method == Method::POST {
        return Some(match path {
            ["explorer", "query"] => explorer::query(store, asked).await,
            ["explorer", "explain"] => explorer::explain(store, asked).await,
            ["care", "fsck"] => care::begin(store),
            _ => return None,
        });
    }
    if asked.method != Method::GET {
        return None;
    }
    Some(match path {
        ["meta"] => overview::meta(store).await,
        ["overview"] => overview::overview(store).await,
        ["count"] => overview::count(store).await,
        ["activity"] => overview::activity(store).await,
        ["instances"] => instances::list(store, asked).await,
        ["instances", id] => instance::show(store, asked, id).await,
        ["instances", id, "events", number] => instance::event(store, asked, id, number).await,
        ["instances", id, "children"] => instance::children_of(store, id).await,
        ["instances", id, "kv"] => instance::key_values(store, id).await,
        ["instances", id, "documents"] => instance::documents(store, id).await,
        ["queues"] => lists::queues(store).await,
        ["runtimes"] => lists::runtimes(store).await,
        ["dead-letters"] => lists::dead_letters(store).await,
        ["care"] => care::report(store).await,
        ["explorer", "containers"] => explorer::containers(store).await,
        ["explorer", "item"] => explorer::item(store, asked).await,
        ["explorer", "feed"] => explorer::feed(store, asked).await,
        ["emulator", rest @ ..] => emulator::ask(store, asked, rest).await,
        _ => return None,
    })
}

async fn act(store: &Arc<Store>, asked: &Asked, path: &[&str]) -> Option<Outcome> {
    Some(match (asked.method.as_str(), path) {
        ("POST", ["act", "start"]) => act::start(store, asked).await,
        ("POST", ["act", "raise"]) => act::raise(store, asked).await,
        ("POST", ["act", "enqueue"]) => act::enqueue(store, asked).await,
        ("POST", ["act", "cancel"]) => act::cancel(store, asked).await,
        ("POST", ["act", "delete"]) => act::delete(store, asked).await,
        ("POST", ["act", "prune"]) => act::prune(store, asked).await,
        ("POST", ["act", "dead-letters"]) => act::dead_letters(store, asked).await,
        ("POST", ["act", "repair"]) => care::repair(store, asked).await,
        ("PUT", ["explorer", "item"]) => explorer::write(store, asked).await,
        ("DELETE", ["explorer", "item"]) => explorer::delete(store, asked).await,
        ("POST" | "PUT" | "DELETE", ["emulator", rest @ ..]) => emulator::ask(store, asked, rest).await,
        _ => return None,
    })
}

/// `a=b&c=d`; what is not well formed is left out.
fn pairs(query: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| percent_decode(&text.replace('+', " ")).map(Cow::into_owned);
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(name)?, decode(value)?))
    };
    query.split('&').filter(|part| !part.is_empty()).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_once() {
        let pairs = pairs("prefix=a%2Fb+c&x&%zz=1&y=%2525");
        assert_eq!(pairs.get("prefix").unwrap(), "a/b c");
        assert_eq!(pairs.get("y").unwrap(), "%25");
        assert_eq!(pairs.len(), 3);
    }
}
