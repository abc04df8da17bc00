//! The service's clock, as pages of queries show it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cosmos_driver::{
    CallOptions, Container, ContainerProperties, Credential, Driver, ItemOptions, PartitionKey, QueryOptions,
    Scope,
};
use cosmos_emulator::{Config, Emulator};
use http::header::{DATE, HOST};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

/// An emulator behind a socket that dates its answers by hand, each an hour after the one before.
struct Calendar {
    hours: Arc<AtomicU64>,
    server: JoinHandle<()>,
    items: Container,
}

impl Drop for Calendar {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Calendar {
    /// Four ranges, all of which have several items.
    async fn filled() -> Self {
        let emulator = Emulator::start(Config::default().with_partitions(4)).expect("the emulator starts");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}/", listener.local_addr().expect("bound"));
        let hours = Arc::new(AtomicU64::new(0));
        let server = tokio::spawn(serve(listener, Arc::new(emulator), hours.clone()));
        let driver = Driver::builder(endpoint, Credential::emulator()).build().await.expect("it answers");
        let database = driver.database("db");
        database.create(CallOptions::default()).await.expect("created");
        let properties = ContainerProperties::new("items", &["/pk"]);
        database.create_container(&properties, None, CallOptions::default()).await.expect("created");
        let items = database.container("items").expect("a valid name");
        for n in 0..40 {
            let (key, item) = (format!("p{n}"), json!({ "id": "1", "pk": format!("p{n}"), "n": n }));
            items.create_item(key, &item, ItemOptions::default()).await.expect("created");
        }
        Self { hours, server, items }
    }

    /// The date of the last answer.
    fn today(&self) -> SystemTime {
        date_of(self.hours.load(Ordering::SeqCst))
    }
}

fn date_of(hours: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + hours * 3600)
}

async fn serve(listener: TcpListener, emulator: Arc<Emulator>, hours: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (emulator, hours) = (emulator.clone(), hours.clone());
        connections.spawn(async move {
            let service = service_fn(move |request| answer(request, emulator.clone(), hours.clone()));
            let server = auto::Builder::new(TokioExecutor::new());
            let _ended = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    emulator: Arc<Emulator>,
    hours: Arc<AtomicU64>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    // The account tells where it is by the host it was asked at.
    if let (None, Some(authority)) = (head.headers.get(HOST), head.uri.authority()) {
        head.headers.insert(HOST, authority.as_str().parse().expect("a header"));
    }
    let answer = emulator.handle(Request::from_parts(head, body)).await.expect("no faults");
    let mut answer = answer.map(Full::new);
    let date = date_of(hours.fetch_add(1, Ordering::SeqCst) + 1);
    answer.headers_mut().insert(DATE, cosmos_wire::date::format(date).parse().expect("a header"));
    Ok(answer)
}

#[tokio::test]
async fn a_page_shows_the_date_of_the_latest_of_its_answers() {
    let calendar = Calendar::filled().await;
    let range = calendar.items.ranges(CallOptions::default()).await.expect("ranges").remove(0);
    let scopes = [Scope::PartitionKey(PartitionKey::from("p1")), Scope::Range(range), Scope::Container];
    for scope in scopes {
        let about = format!("{scope:?}");
        let text = "SELECT c.n FROM c ORDER BY c.n";
        let mut pager = calendar.items.query(text, scope, QueryOptions::default());
        let page = pager.next().await.expect("a page").expect("rows");
        assert_eq!(page.date(), Some(calendar.today()), "{about}");
    }
    let read = calendar.items.read_item("p1", "1", ItemOptions::default()).await.expect("it is there");
    assert_eq!(read.date(), Some(calendar.today()), "as answers about one item do");
}

#[tokio::test]
async fn a_page_that_was_read_ahead_shows_no_date_that_may_be_old() {
    let calendar = Calendar::filled().await;
    let options = QueryOptions::default().with_page_size(1);
    let mut pager = calendar.items.query("SELECT c.n FROM c ORDER BY c.n", Scope::Container, options);
    assert!(pager.next().await.expect("a page").expect("a row").date().is_some());
    assert_eq!(pager.next().await.expect("a page").expect("a row").date(), None);
}
