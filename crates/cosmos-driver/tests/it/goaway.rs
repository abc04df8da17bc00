//! A server that ends connections in the middle of requests, frame by frame: what was refused unseen is sent again,
//! what may have been executed is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cosmos_driver::{Connections, Container, Credential, Driver, ItemOptions, Negotiation, Retry};
use h2::Reason;
use h2::server::{Connection, SendResponse};
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

/// How the first write is met.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It is taken, and the connection ends with this reason and without an answer.
    AfterTaking(Reason),
    /// Its stream alone is reset, for this reason.
    Reset(Reason),
}

/// A container at a server that ends its first write like this and takes all others; and how many writes it was sent.
async fn container(end: End) -> (Container, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}/", listener.local_addr().expect("bound"));
    let writes: Arc<AtomicU64> = Arc::default();
    let (own, count) = (endpoint.clone(), writes.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream, own.clone(), end, count.clone()));
        }
    });
    let connections = Connections { negotiation: Negotiation::Http2Only, ..Connections::default() };
    let retry = Retry { regions_max: 0, ..Retry::default() };
    let builder = Driver::builder(endpoint, Credential::emulator()).connections(connections).retry(retry);
    let driver = builder.build().await.expect("an account");
    (driver.container("db", "items").expect("a name"), writes)
}

async fn talk(stream: TcpStream, endpoint: String, end: End, writes: Arc<AtomicU64>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let is_write = request.uri().path().ends_with("/docs");
        if is_write && writes.fetch_add(1, Ordering::SeqCst) == 0 {
            match end {
                End::AfterTaking(reason) => return shut(connection, reason).await,
                End::Reset(reason) => respond.send_reset(reason),
            }
            continue;
        }
        answer(&request, &endpoint, respond);
    }
}

/// GOAWAY that counts the stream as taken, then the end of the connection.
async fn shut(mut connection: Connection<TcpStream, Bytes>, reason: Reason) {
    connection.abrupt_shutdown(reason);
    while let Some(Ok(_)) = connection.accept().await {}
}

fn answer<T>(request: &Request<T>, endpoint: &str, mut respond: SendResponse<Bytes>) {
    let path = request.uri().path();
    let is_again = request.headers().contains_key("if-none-match");
    let (status, body) = match path {
        "/" => {
            let here = json!([{ "name": "East", "databaseAccountEndpoint": endpoint }]);
            (200, json!({ "id": "a", "writableLocations": here, "readableLocations": here }))
        }
        _ if path.ends_with("/pkranges") && is_again => (304, Value::Null),
        _ if path.ends_with("/pkranges") => {
            let range = json!({ "id": "0", "minInclusive": "", "maxExclusive": "FF", "parents": [] });
            (200, json!({ "PartitionKeyRanges": [range] }))
        }
        _ if path.ends_with("/docs") => (201, json!({ "id": "1" })),
        _ => {
            let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
            (200, json!({ "id": "items", "_rid": "AAAAAIAAAAA=", "partitionKey": key }))
        }
    };
    let head = Response::builder().status(status).body(()).expect("a response");
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    // A peer that has gone away needs no answer.
    if let Ok(mut stream) = respond.send_response(head, body.is_empty())
        && !body.is_empty()
    {
        let _gone = stream.send_data(body, true);
    }
}

#[tokio::test]
async fn a_write_that_was_taken_before_the_connection_ended_is_not_sent_again() {
    for reason in [
        Reason::NO_ERROR,
        Reason::INTERNAL_ERROR,
        Reason::ENHANCE_YOUR_CALM,
        Reason::PROTOCOL_ERROR,
        Reason::REFUSED_STREAM,
    ] {
        let (items, writes) = container(End::AfterTaking(reason)).await;
        let item = json!({ "id": "1", "pk": "a" });
        let error = items.create_item("a", &item, ItemOptions::default()).await.expect_err("no answer");
        assert!(error.may_have_been_applied(), "{reason:?}: {error}");
        assert_eq!(writes.load(Ordering::SeqCst), 1, "{reason:?}: {}", error.diagnostics());
    }
}

#[tokio::test]
async fn only_a_stream_that_was_refused_is_sent_again() {
    let item = json!({ "id": "1", "pk": "a" });
    let (items, writes) = container(End::Reset(Reason::REFUSED_STREAM)).await;
    items.create_item("a", &item, ItemOptions::default()).await.expect("taken the second time");
    assert_eq!(writes.load(Ordering::SeqCst), 2);
    for reason in [Reason::NO_ERROR, Reason::INTERNAL_ERROR, Reason::CANCEL, Reason::ENHANCE_YOUR_CALM] {
        let (items, writes) = container(End::Reset(reason)).await;
        let error = items.create_item("a", &item, ItemOptions::default()).await.expect_err("no answer");
        assert!(error.may_have_been_applied(), "{reason:?}: {error}");
        assert_eq!(writes.load(Ordering::SeqCst), 1, "{reason:?}: {}", error.diagnostics());
    }
}
