//! A make-believe account over real sockets, for what the emulator does not do: live in another time, talk nonsense.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cosmos_driver::{Builder, Credential, Driver};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

#[derive(Default)]
pub(crate) struct Table {
    items: BTreeMap<String, Value>,
    lsn: u64,
    /// Seconds the service's clock is ahead of ours.
    clock_ahead: i64,
    /// What requests for items are answered with, after they were executed.
    nonsense: Option<&'static str>,
    /// Where its endpoint of Gateway 2.0 is, if not far away.
    gateway2: Option<String>,
}

pub(crate) struct World {
    table: Arc<Mutex<Table>>,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl World {
    pub(crate) async fn start() -> Self {
        let table: Arc<Mutex<Table>> = Arc::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = tokio::spawn(serve(listener, address, table.clone()));
        Self { table, address, server }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("not poisoned")
    }

    pub(crate) fn builder(&self) -> Builder {
        Driver::builder(format!("http://{}/", self.address), Credential::emulator())
    }

    pub(crate) fn clock_ahead(&self, seconds: i64) {
        self.table().clock_ahead = seconds;
    }

    pub(crate) fn announce_gateway2(&self, endpoint: String) {
        self.table().gateway2 = Some(endpoint);
    }

    pub(crate) fn talk(&self, nonsense: Option<&'static str>) {
        self.table().nonsense = nonsense;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, address: SocketAddr, table: Arc<Mutex<Table>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket option");
        let table = table.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| answer(request, address, table.clone()));
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http2().max_concurrent_streams(20);
            let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Answer = Response<Full<Bytes>>;

async fn answer(
    request: Request<Incoming>,
    address: SocketAddr,
    table: Arc<Mutex<Table>>,
) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let path = head.uri.path().to_owned();
    if let Some(refused) = clock_refusal(&head.headers, &table) {
        return Ok(refused);
    }
    if path == "/" {
        return Ok(account(address, &head.headers, &table));
    }
    if path.ends_with("/pkranges") {
        return Ok(ranges(&head.headers));
    }
    if path.ends_with("/colls/items") {
        let key = json!({ "paths": ["/pk"], "kind": "Hash", "version": 2 });
        return Ok(status(200, 0, &json!({ "id": "items", "_rid": "AAAAAIAAAAA=", "partitionKey": key })));
    }
    let mut answer = if head.method == Method::GET && path.ends_with("/docs") {
        changes(&head.headers, &table)
    } else {
        item(&head.method, &path, &body, &table)
    };
    if let Some(nonsense) = table.lock().expect("not poisoned").nonsense {
        *answer.body_mut() = Full::new(Bytes::from_static(nonsense.as_bytes()));
    }
    Ok(answer)
}

fn clock_refusal(headers: &http::HeaderMap, table: &Mutex<Table>) -> Option<Answer> {
    let ahead = table.lock().expect("not poisoned").clock_ahead;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let ours = now.saturating_add_signed(ahead);
    let theirs = cosmos_wire::date::parse(headers.get("x-ms-date")?.to_str().ok()?)?;
    let theirs = theirs.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    if ours.abs_diff(theirs) < 900 {
        return None;
    }
    let mut refused = status(403, 0, &json!({ "message": "the date is too far off" }));
    let date = cosmos_wire::date::format(SystemTime::UNIX_EPOCH + Duration::from_secs(ours));
    refused.headers_mut().insert("date", date.parse().expect("a header"));
    Some(refused)
}

fn account(address: SocketAddr, headers: &http::HeaderMap, table: &Mutex<Table>) -> Answer {
    let locations = json!([{ "name": "East", "databaseAccountEndpoint": format!("http://{address}/") }]);
    let policy = json!({ "defaultConsistencyLevel": "Session" });
    let mut account = json!({
        "id": "world",
        "writableLocations": locations,
        "readableLocations": locations,
        "userConsistencyPolicy": policy,
    });
    // As the service: only who asks is told.
    if headers.get("x-ms-cosmos-use-thinclient").is_some_and(|wanted| wanted == "true") {
        let near = table.lock().expect("not poisoned").gateway2.clone();
        let is_near = near.is_some();
        let endpoint = near.unwrap_or_else(|| "https://world.example:10250/".to_owned());
        let locations = json!([{ "name": "East", "databaseAccountEndpoint": endpoint }]);
        if is_near {
            account["thinClientWritableLocations"] = locations.clone();
        }
        account["thinClientReadableLocations"] = locations;
    }
    status(200, 0, &account)
}

fn ranges(headers: &http::HeaderMap) -> Answer {
    if headers.contains_key("if-none-match") {
        return status(304, 0, &Value::Null);
    }
    let ranges = json!([{ "id": "0", "minInclusive": "", "maxExclusive": "FF", "parents": [] }]);
    let mut answer = status(200, 0, &json!({ "PartitionKeyRanges": ranges, "_count": 1 }));
    answer.headers_mut().insert("etag", "\"1\"".parse().expect("a header"));
    answer
}

fn changes(headers: &http::HeaderMap, table: &Mutex<Table>) -> Answer {
    let table = table.lock().expect("not poisoned");
    if headers.get("if-none-match").is_some_and(|etag| etag == &format!("\"{}\"", table.lsn)) {
        return done(304, &Value::Null, table.lsn);
    }
    let items: Vec<&Value> = table.items.values().collect();
    done(200, &json!({ "Documents": items, "_count": items.len() }), table.lsn)
}

fn item(method: &Method, path: &str, body: &[u8], table: &Mutex<Table>) -> Answer {
    let mut table = table.lock().expect("not poisoned");
    if *method == Method::GET {
        let id = path.rsplit('/').next().unwrap_or_default();
        return match table.items.get(id) {
            Some(item) => done(200, item, table.lsn),
            None => done(404, &json!({ "message": "missing" }), table.lsn),
        };
    }
    let item: Value = serde_json::from_slice(body).unwrap_or_default();
    let id = item["id"].as_str().unwrap_or_default().to_owned();
    table.lsn += 1;
    table.items.insert(id, item.clone());
    done(201, &item, table.lsn)
}

fn done(code: u16, body: &Value, lsn: u64) -> Answer {
    let mut answer = status(code, 0, body);
    answer.headers_mut().insert("x-ms-session-token", format!("0:-1#{lsn}").parse().expect("a header"));
    answer.headers_mut().insert("x-ms-request-charge", "1".parse().expect("a header"));
    answer.headers_mut().insert("etag", format!("\"{lsn}\"").parse().expect("a header"));
    answer
}

fn status(code: u16, sub: u32, body: &Value) -> Answer {
    let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let mut response = Response::builder().status(code);
    if sub != 0 {
        response = response.header("x-ms-substatus", sub);
    }
    response.body(Full::new(bytes)).expect("a response")
}
