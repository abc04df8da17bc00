//! The emulator behind the pages: its management port, asked on behalf of the page.

use bytes::Bytes;
use cosmos_wire::resource::percent_encode;
use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use super::super::answer::{Failure, Outcome};
use super::super::route::Asked;
use super::super::{Store, plain};
use super::act::audit;

/// Passes a request on. What changes something comes here only where that is served at all.
pub(in super::super) async fn ask(store: &Store, asked: &Asked, path: &[&str]) -> Outcome {
    let management = store.management.as_deref().ok_or_else(|| {
        Failure::new(StatusCode::NOT_FOUND, "this is no emulator, or it has no management port")
    })?;
    let path = path.iter().fold(String::new(), |mut path, part| {
        path.push('/');
        percent_encode(&mut path, part);
        path
    });
    let body = if asked.body.is_null() { Bytes::new() } else { Bytes::from(asked.body.to_string()) };
    let request = Request::builder()
        .method(asked.method.clone())
        .uri(&path)
        .header("content-type", "application/json")
        .body(Full::new(body))?;
    let reply = plain::send(management, request).await?;
    let answer: Value = serde_json::from_slice(&reply.body).unwrap_or(json!({}));
    if !reply.status.is_success() {
        let sentence = answer["error"].as_str().unwrap_or("the emulator refused");
        return Err(Failure::new(reply.status, sentence));
    }
    if asked.method != http::Method::GET {
        audit(&format!("emulator: {} {path} {}", asked.method, asked.body));
    }
    Ok(answer)
}
