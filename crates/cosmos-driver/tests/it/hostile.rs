//! Servers that mean harm: endless answers, endless pages, regions that would be asked in clear.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cosmos_driver::{
    CallOptions, Connections, Credential, Driver, ErrorKind, ItemOptions, Negotiation, PartitionKey, Query,
    QueryOptions, Scope,
};
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

type Body = BoxBody<Bytes, Infallible>;
/// Answers a request: its path, and how many came before it.
type Manners = Arc<dyn Fn(&http::request::Parts, u64) -> Response<Body> + Send + Sync>;

/// A server on a free port; what is sent there is counted.
async fn serve(
    tls: Option<TlsAcceptor>,
    manners: impl Fn(SocketAddr) -> Manners,
) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (manners, count) = (manners(address), Arc::new(AtomicU64::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, manners, count) = (tls.clone(), manners.clone(), counted.clone());
            tokio::spawn(async move {
                match tls {
                    None => talk(stream, manners, count).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            talk(stream, manners, count).await;
                        }
                    }
                }
            });
        }
    });
    (address, count)
}

async fn talk(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    manners: Manners,
    count: Arc<AtomicU64>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let answer = manners(&request.into_parts().0, number);
        async move { Ok::<_, Infallible>(answer) }
    });
    let _ended = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(io), service).await;
}

fn whole(body: &Value) -> Response<Body> {
    Response::new(Full::new(Bytes::from(body.to_string())).boxed())
}

fn endless() -> Response<Body> {
    let blanks = futures::stream::repeat_with(|| Ok(Frame::data(Bytes::from(vec![b' '; 64 << 10]))));
    Response::new(BodyExt::boxed(StreamBody::new(blanks)))
}

fn account(locations: &[String]) -> Response<Body> {
    let locations: Vec<Value> = locations
        .iter()
        .enumerate()
        .map(|(number, url)| json!({ "name": format!("Region {number}"), "databaseAccountEndpoint": url }))
        .collect();
    whole(&json!({ "id": "hostile", "writableLocations": locations, "readableLocations": locations }))
}

/// An account whose queries are answered by `query`.
fn with_queries(address: SocketAddr, query: fn(u64) -> Response<Body>) -> Manners {
    Arc::new(move |head, number| match head.uri.path() {
        "/" => account(&[format!("http://{address}/")]),
        path if path.ends_with("/pkranges") && head.headers.contains_key("if-none-match") => {
            let mut answer = whole(&Value::Null);
            *answer.status_mut() = http::StatusCode::NOT_MODIFIED;
            answer
        }
        path if path.ends_with("/pkranges") => {
            let range = json!({ "id": "0", "minInclusive": "", "maxExclusive": "FF", "parents": [] });
            whole(&json!({ "PartitionKeyRanges": [range] }))
        }
        path if path.ends_with("/docs") && head.headers.contains_key("x-ms-cosmos-is-query-plan-request") => {
            let info = json!({ "distinctType": "None", "rewrittenQuery": "" });
            whole(&json!({ "queryInfo": info, "queryRanges": [{ "min": "", "max": "FF" }] }))
        }
        path if path.ends_with("/docs") => query(number),
        _ => {
            let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
            whole(&json!({ "id": "items", "_rid": "AAAAAIAAAAA=", "partitionKey": key }))
        }
    })
}

#[tokio::test]
async fn an_endless_answer_ends_at_the_limit_and_is_asked_for_once() {
    for negotiation in [Negotiation::Http1Only, Negotiation::Http2Only] {
        let (address, count) = serve(None, |_| Arc::new(|_, _| endless())).await;
        let connections = Connections { negotiation, response_bytes_max: 1 << 20, ..Connections::default() };
        let builder = Driver::builder(format!("http://{address}/"), Credential::emulator());
        let error = builder.connections(connections).build().await.expect_err("no account");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.message().contains("response_bytes_max"), "{error}");
        assert_eq!(count.load(Ordering::Relaxed), 1, "{negotiation:?}");
    }
}

#[tokio::test]
async fn an_answer_of_announced_length_is_refused_before_it_is_read() {
    let (address, _) = serve(None, |_| {
        Arc::new(|_, _| {
            let mut answer = endless();
            answer.headers_mut().insert("content-length", (1_u64 << 40).into());
            answer
        })
    })
    .await;
    let connections = Connections { negotiation: Negotiation::Http1Only, ..Connections::default() };
    let builder = Driver::builder(format!("http://{address}/"), Credential::emulator());
    let error = builder.connections(connections).build().await.expect_err("no account");
    assert!(error.message().contains("response_bytes_max"), "{error}");
}

/// An empty page that says where to go on.
fn empty_page(token: &str) -> Response<Body> {
    let mut page = whole(&json!({ "_rid": "AAAAAIAAAAA=", "Documents": [], "_count": 0 }));
    page.headers_mut().insert("x-ms-continuation", token.parse().expect("a header"));
    page
}

#[tokio::test]
async fn pages_that_stand_still_end_the_query() {
    let (address, _) = serve(None, |address| with_queries(address, |_| empty_page("here"))).await;
    let builder = Driver::builder(format!("http://{address}/"), Credential::emulator());
    let driver = builder.build().await.expect("an account");
    let container = driver.container("db", "items").expect("a name");
    let query = Query::new("SELECT * FROM c");
    let mut pager = container.query(query, PartitionKey::from("a"), QueryOptions::default());
    pager.next().await.expect("the first page").expect("it says there is more");
    let error = pager.next().await.expect_err("the same again");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    let items = ["1", "2"].map(|id| (PartitionKey::from(id), id.to_owned()));
    let error = container.read_many(&items, &ItemOptions::default()).await.expect_err("the same again");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

#[tokio::test]
async fn empty_pages_end_a_call_in_time_with_a_place_to_go_on() {
    let (address, count) =
        serve(None, |address| with_queries(address, |number| empty_page(&number.to_string()))).await;
    let builder = Driver::builder(format!("http://{address}/"), Credential::emulator());
    let driver = builder.build().await.expect("an account");
    let container = driver.container("db", "items").expect("a name");
    let call = CallOptions::default().with_timeout(Duration::from_millis(500));
    let options = QueryOptions::default().with_call(call);
    let mut pager = container.query(Query::new("SELECT * FROM c"), Scope::Container, options);
    for _ in 0..2 {
        let before = count.load(Ordering::Relaxed);
        let next = tokio::time::timeout(Duration::from_secs(20), pager.next()).await.expect("in time");
        let page = next.expect("no error").expect("there may be more");
        assert!(page.items::<Value>().expect("rows").is_empty());
        assert!(page.continuation().is_some());
        assert!(count.load(Ordering::Relaxed) > before, "it looked on");
    }
}

#[tokio::test]
async fn an_answer_counts_that_comes_before_the_request_has_been_taken_whole() {
    let (address, count) = serve(None, |address| {
        with_queries(address, |_| {
            let mut refused = whole(&json!({ "message": "not as much as that" }));
            *refused.status_mut() = http::StatusCode::PAYLOAD_TOO_LARGE;
            refused
        })
    })
    .await;
    let builder = Driver::builder(format!("http://{address}/"), Credential::emulator());
    let connections = Connections { negotiation: Negotiation::Http2Only, ..Connections::default() };
    let driver = builder.connections(connections).build().await.expect("an account");
    let container = driver.container("db", "items").expect("a name");
    // The server has answered, and lets the stream go, long before it could have had all of this.
    let item = json!({ "id": "1", "pk": "a", "text": "x".repeat(1 << 20) });
    let error = container.create_item("a", &item, ItemOptions::default()).await.expect_err("refused");
    assert_eq!(error.status(), Some(413), "{error} {}", error.diagnostics());
    assert!(!error.may_have_been_applied(), "{error}");
    assert!(count.load(Ordering::Relaxed) < 10);
}

#[tokio::test]
async fn ranges_that_a_server_makes_up_do_not_make_requests_grow() {
    let longest = Arc::new(AtomicU64::new(0));
    let seen = longest.clone();
    let (address, _) = serve(None, move |address| {
        let ordinary = with_queries(address, |number| {
            let mut answer = whole(&json!({ "id": "1" }));
            let token = format!("made-up-{number}:-1#{number}");
            answer.headers_mut().insert("x-ms-session-token", token.parse().expect("a header"));
            answer
        });
        let seen = seen.clone();
        Arc::new(move |head, number| {
            let token = head.headers.get("x-ms-session-token").map_or(0, |token| token.len() as u64);
            seen.fetch_max(token, Ordering::Relaxed);
            ordinary(head, number)
        })
    })
    .await;
    let builder = Driver::builder(format!("http://{address}/"), Credential::emulator());
    let driver = builder.build().await.expect("an account");
    let container = driver.container("db", "items").expect("a name");
    for number in 0..600 {
        let item = json!({ "id": number.to_string(), "pk": "a" });
        container.upsert_item("a", &item, ItemOptions::default()).await.expect("taken");
        let scope = PartitionKey::from("a");
        let mut pager = container.query(Query::new("SELECT * FROM c"), scope, QueryOptions::default());
        // It is no page; only what was sent matters.
        let _answer = pager.next().await;
    }
    let longest = longest.load(Ordering::Relaxed);
    assert!((1..4096).contains(&longest), "a token of {longest} bytes was sent");
}

/// A certificate that clients on this machine do not check.
fn tls() -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("they fit");
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn an_https_endpoint_leads_nobody_to_a_region_in_clear() {
    let (plain, count) =
        serve(None, |address| Arc::new(move |_, _| account(&[format!("http://{address}/")]))).await;
    let (secure, _) = serve(Some(tls()), |address| {
        Arc::new(move |_, _| account(&[format!("http://{plain}/"), format!("https://{address}/")]))
    })
    .await;
    let builder = Driver::builder(format!("https://{secure}/"), Credential::emulator());
    let driver = builder.build().await.expect("one region is left");
    assert_eq!(driver.read_regions(), ["Region 1"]);
    assert_eq!(driver.write_regions(), ["Region 1"]);
    driver.refresh_account().await.expect("read again");
    let container = driver.container("db", "items").expect("a name");
    let options = ItemOptions::default().with_timeout(Duration::from_secs(5));
    // What it answers does not matter here, only where it was asked.
    let _answer = container.read_item("a", "1", options).await;
    assert_eq!(count.load(Ordering::Relaxed), 0, "nothing was sent in clear");
}

#[tokio::test]
async fn an_https_account_of_regions_in_clear_only_is_not_taken() {
    let (plain, count) =
        serve(None, |address| Arc::new(move |_, _| account(&[format!("http://{address}/")]))).await;
    let (secure, _) =
        serve(Some(tls()), |_| Arc::new(move |_, _| account(&[format!("http://{plain}/")]))).await;
    let builder = Driver::builder(format!("https://{secure}/"), Credential::emulator());
    let error = builder.build().await.expect_err("no region is left");
    assert!(error.message().contains("in clear"), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 0);
}
