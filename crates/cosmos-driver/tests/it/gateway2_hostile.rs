//! Endpoints of Gateway 2.0 that mean harm, or are none, beside an ordinary gateway that works.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cosmos_driver::{Container, Diagnostics, Driver, ErrorKind, ItemOptions};
use cosmos_wire::gateway2::{PROBE_PATH, Response as Frame};
use cosmos_wire::header;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::json;
use tokio::net::TcpListener;

use crate::world::World;

type Body = BoxBody<Bytes, Infallible>;

fn whole(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    Response::builder().status(status).body(Full::new(body.into()).boxed()).expect("a response")
}

fn frame(status: u16, fields: &[(&'static str, &'static str)], body: &[u8]) -> Vec<u8> {
    let fields = fields.iter().map(|(name, text)| (*name, (*text).into())).collect();
    Frame { status, activity_id: [0; 16], fields, body }.encode().expect("a frame")
}

/// What speaks HTTP at an endpoint.
#[derive(Clone, Copy)]
enum Speaks {
    Http2,
    Http1,
}

/// An account whose endpoint of Gateway 2.0 answers probes with 200 and everything else like this.
async fn account(speaks: Speaks, manners: fn() -> Response<Body>) -> (World, Driver, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let count = counted.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let is_probe = request.uri().path() == PROBE_PATH;
                if !is_probe {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                async move { Ok::<_, Infallible>(if is_probe { whole(200, "") } else { manners() }) }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            let builder = match speaks {
                Speaks::Http2 => builder.http2_only(),
                Speaks::Http1 => builder.http1_only(),
            };
            tokio::spawn(async move {
                let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    let world = World::start().await;
    world.announce_gateway2(format!("http://{address}/"));
    let driver = world.builder().build().await.expect("the driver starts");
    (world, driver, count)
}

async fn until_used(driver: &Driver) {
    let begun = Instant::now();
    while driver.gateway2_in_use().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "its probe was answered");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn items(driver: &Driver) -> Container {
    driver.container("db", "items").expect("a valid name")
}

fn ways(log: &Diagnostics) -> Vec<bool> {
    log.attempts().iter().map(|attempt| attempt.gateway2).collect()
}

/// Answers that are no frames, or not whole ones.
fn nonsense() -> Vec<fn() -> Response<Body>> {
    vec![
        || whole(200, ""),
        || whole(200, "<html>who are you?</html>"),
        || whole(502, "bad gateway"),
        || whole(204, ""),
        || whole(200, frame(200, &[], b"{\"id\":\"1\"}")[..40].to_vec()),
        || {
            let mut cut = frame(200, &[(header::ETAG, "\"1\"")], b"{\"id\":\"1\"}");
            cut.pop();
            whole(200, cut)
        },
        || {
            let mut long = frame(200, &[], b"{}");
            long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
            whole(200, long)
        },
        || {
            let mut short = frame(200, &[], b"{}");
            short[..4].copy_from_slice(&4_u32.to_le_bytes());
            whole(200, short)
        },
        || {
            let mut status = frame(200, &[], b"{}");
            status[4..8].copy_from_slice(&70_000_u32.to_le_bytes());
            whole(200, status)
        },
        || {
            // Tokens without end, the last of them cut off.
            let mut endless = vec![0_u8; 24];
            endless.extend(std::iter::repeat_n([0x77, 0x77, 0x00, 0x00], 200_000).flatten());
            endless.extend([0x77, 0x77, 0x0C]);
            let length = u32::try_from(endless.len()).expect("short");
            endless[..4].copy_from_slice(&length.to_le_bytes());
            endless[4..8].copy_from_slice(&200_u32.to_le_bytes());
            whole(200, endless)
        },
    ]
}

#[tokio::test]
async fn answers_that_are_no_frames_end_the_use_of_an_endpoint() {
    for manners in nonsense() {
        let (world, driver, _) = account(Speaks::Http2, manners).await;
        let seeded = world.builder().build().await.expect("the driver starts");
        let item = json!({ "id": "1", "pk": "p" });
        items(&seeded).upsert_item("p", &item, ItemOptions::default()).await.ok();
        until_used(&driver).await;
        let items = items(&driver);
        let read = items.read_item("p", "nobody", ItemOptions::default()).await.expect_err("it is not there");
        assert_eq!(read.status(), Some(404), "the ordinary gateway knows: {read}");
        assert_eq!(ways(read.diagnostics()), [true, false], "{}", read.diagnostics());
        let again =
            items.read_item("p", "nobody", ItemOptions::default()).await.expect_err("it is not there");
        assert_eq!(ways(again.diagnostics()), [false], "{}", again.diagnostics());
    }
}

#[tokio::test]
async fn a_write_that_is_answered_with_nonsense_may_have_been_applied() {
    for manners in nonsense() {
        let (_world, driver, _) = account(Speaks::Http2, manners).await;
        until_used(&driver).await;
        let item = json!({ "id": "1", "pk": "p" });
        let error =
            items(&driver).create_item("p", &item, ItemOptions::default()).await.expect_err("nobody knows");
        assert!(error.may_have_been_applied(), "{error}");
        assert_eq!(ways(error.diagnostics()), [true], "{}", error.diagnostics());
    }
}

#[tokio::test]
async fn a_write_that_was_refused_on_the_way_goes_by_the_ordinary_gateway() {
    for manners in
        [|| whole(404, "nothing here"), || whole(405, ""), || whole(431, "too long"), || whole(401, "")]
    {
        let (_world, driver, _) = account(Speaks::Http2, manners).await;
        until_used(&driver).await;
        let item = json!({ "id": "1", "pk": "p" });
        let created = items(&driver).create_item("p", &item, ItemOptions::default()).await.expect("created");
        assert_eq!(ways(created.diagnostics()), [true, false], "{}", created.diagnostics());
    }
}

#[tokio::test]
async fn an_endless_answer_is_not_kept() {
    let (_world, driver, _) = account(Speaks::Http2, || {
        let blanks =
            futures::stream::repeat_with(|| Ok(hyper::body::Frame::data(Bytes::from(vec![b' '; 64 << 10]))));
        Response::new(BodyExt::boxed(StreamBody::new(blanks)))
    })
    .await;
    until_used(&driver).await;
    let error = items(&driver).read_item("p", "1", ItemOptions::default()).await.expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
}

#[tokio::test]
async fn a_value_that_is_no_header_is_no_answer() {
    let (_world, driver, _) = account(Speaks::Http2, || {
        let mut frame = frame(200, &[(header::CONTINUATION, "0123456789")], b"{}");
        let at = frame.windows(10).position(|window| window == b"0123456789").expect("it is there");
        frame[at + 3] = b'\n';
        whole(200, frame)
    })
    .await;
    until_used(&driver).await;
    let read =
        items(&driver).read_item("p", "nobody", ItemOptions::default()).await.expect_err("it is not there");
    assert_eq!(ways(read.diagnostics()), [true, false], "{}", read.diagnostics());
}

#[tokio::test]
async fn an_endpoint_that_speaks_less_than_http2_is_sent_nothing() {
    let (_world, driver, count) = account(Speaks::Http1, || whole(200, frame(200, &[], b"{}"))).await;
    let items = items(&driver);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        let read = items.read_item("p", "nobody", ItemOptions::default()).await.expect_err("it is not there");
        assert_eq!(ways(read.diagnostics()), [false], "{}", read.diagnostics());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(driver.gateway2_in_use(), Vec::<String>::new());
    assert_eq!(count.load(Ordering::Relaxed), 0, "no signed request was sent in a lesser protocol");
}
