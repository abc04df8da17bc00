//! A transport of the caller's own in place of sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use cosmos_driver::{
    CallOptions, Container, ContainerProperties, Credential, CustomTransport, Driver, ErrorKind, Exchange,
    ItemOptions, TransportError,
};
use cosmos_emulator::{Config, Emulator};
use http::{Method, Request};
use serde_json::json;

/// What becomes of the next creations, once each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    NotSent,
    AnswerLost,
    Hung,
}

#[derive(Debug)]
struct InProcess {
    emulator: Arc<Emulator>,
    mood: Mood,
    strikes: AtomicU32,
}

impl CustomTransport for InProcess {
    fn send(&self, request: Request<Bytes>) -> Exchange<'_> {
        Box::pin(async move {
            assert_eq!(request.uri().host(), Some("account.test"), "requests have absolute URIs");
            let is_creation = request.method() == Method::POST && request.uri().path().ends_with("/docs");
            let strikes = is_creation
                && self
                    .strikes
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok();
            if strikes && self.mood == Mood::NotSent {
                return Err(TransportError::not_sent("the cable is out"));
            }
            let answer = self.emulator.handle(request).await;
            match (strikes, self.mood) {
                (true, Mood::Hung) => std::future::pending().await,
                (true, _) => Err(TransportError::interrupted("the answer was lost")),
                (false, _) => answer.map_err(|_| TransportError::interrupted("reset")),
            }
        })
    }
}

async fn open(mood: Mood) -> Container {
    let emulator = Arc::new(Emulator::open(Config::default()).expect("it opens"));
    let transport = InProcess { emulator, mood, strikes: AtomicU32::new(1) };
    let driver = Driver::builder("http://account.test/", Credential::emulator())
        .transport(transport)
        .build()
        .await
        .expect("no socket is needed");
    driver.create_database("db", CallOptions::default()).await.expect("created");
    let items = ContainerProperties::new("items", &["/pk"]);
    driver.database("db").create_container(&items, None, CallOptions::default()).await.expect("created");
    driver.container("db", "items").expect("a name")
}

async fn create(container: &Container) -> Result<cosmos_driver::Response, cosmos_driver::Error> {
    container.create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await
}

#[tokio::test(start_paused = true)]
async fn what_a_plugged_transport_did_not_send_is_sent_again() {
    let container = open(Mood::NotSent).await;
    create(&container).await.expect("the second try arrives");
}

#[tokio::test(start_paused = true)]
async fn what_a_plugged_transport_may_have_sent_is_not_sent_again() {
    for mood in [Mood::AnswerLost, Mood::Hung] {
        let container = open(mood).await;
        let error = create(&container).await.expect_err("nobody knows whether it is there");
        assert!(error.may_have_been_applied(), "{mood:?}: {error}");
        assert_ne!(error.kind(), ErrorKind::Configuration);
        container.read_item("p", "1", ItemOptions::default()).await.expect("it is there");
    }
}
