//! Requests that fail, hang or get lost on the way.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cosmos_driver::{Certificates, Connections};
use cosmos_emulator::{Operation, Verdict};
use duroxide::providers::Provider as _;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;

use super::{LOCK, NOW, commit, config, mail, place, status};
use crate::flows::{Machine, options};
use crate::tap::{Asked, Tap};
use crate::world::{activity, emulator, event, fresh_name, named, start};

/// What passes. 401: a key that is being rotated, or a token that could not be renewed in time. 403/3: the account takes
/// writes elsewhere from now on. 404/1002: a replica that is behind the session.
const TROUBLES: [(u16, u32); 8] =
    [(429, 3200), (449, 0), (503, 0), (408, 0), (410, 1002), (401, 0), (403, 3), (404, 1002)];

#[tokio::test]
async fn a_commit_answered_with_a_passing_trouble_is_sent_again() {
    for (code, sub) in TROUBLES {
        let place = place().await;
        let machine = Machine::start(place.provider.clone(), options(Duration::from_secs(5))).await;
        let fault = emulator().faults().add(place.rule(status(code, sub)).on(Operation::Batch).times(1));
        assert_eq!(machine.run("a", "Hello", "Ann").await, "Hello, Ann!", "{code}/{sub}");
        assert_eq!(fault.struck(), 1);
        machine.stop().await;
    }
}

#[tokio::test]
async fn a_passing_trouble_that_outlasts_the_driver_stays_inside() {
    let sit_out = async |(code, sub)| {
        let place = place().await;
        place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let fault = emulator().faults().add(place.rule(status(code, sub)).on(Operation::Batch).times(11));
        let acked = commit(&place.provider, &token, vec![event("a", 1)], named()).await;
        assert!(acked.is_ok(), "{code}/{sub}: {acked:?}");
        assert_eq!(fault.struck(), 11, "{code}/{sub}");
    };
    futures::future::join_all(TROUBLES.map(sit_out)).await;
}

#[tokio::test]
async fn throttling_longer_than_the_runtime_would_wait_stays_inside() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let _fault = emulator().faults().add(
        place
            .rule(Verdict::Status {
                code: 429,
                sub_status: 3200,
                retry_after: Some(Duration::from_millis(150)),
            })
            .on(Operation::Batch)
            .times(6),
    );
    let acked = place.provider.ack_orchestration_item(
        &token,
        1,
        vec![event("a", 1)],
        vec![],
        vec![],
        named(),
        vec![],
    );
    acked.await.unwrap();
}

#[tokio::test]
async fn a_request_that_is_never_answered_does_not_hold_a_fetch_for_ever() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let _fault = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Query).times(1));
    let begun = std::time::Instant::now();
    let _ = place.provider.fetch_orchestration_item(LOCK, NOW, None).await;
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn an_enqueue_whose_answer_is_lost_makes_one_message() {
    for verdict in [Verdict::ResetAfterCommit, Verdict::ResetBefore] {
        let place = place().await;
        let _fault = emulator().faults().add(place.rule(verdict).on(Operation::CreateItem).times(1));
        place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        place.provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
        assert_eq!(place.kinds("a").await, ["orch_queue"]);
        assert_eq!(place.kinds("b").await, ["worker_queue"]);
    }
}

#[tokio::test]
async fn an_event_whose_answer_is_lost_is_received_once_even_after_it_was_consumed() {
    let place = place().await;
    place.begin("a").await;
    let lost = place.rule(Verdict::ResetAfterCommit).on(Operation::CreateItem).times(1);
    let held_up = place.rule(Verdict::Hang).on(Operation::CreateItem).times(1);
    let _lost = emulator().faults().add(lost);
    let held_up = emulator().faults().add(held_up);
    let sent = place.provider.enqueue_for_orchestrator(mail("a", "m"), None);
    let consumed = async {
        let wait = Duration::from_secs(20);
        let fetched = place.provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap();
        let (item, token, _) = fetched.expect("the first try arrived");
        assert_eq!(item.messages.len(), 1);
        commit(&place.provider, &token, vec![event("a", 2)], named()).await.unwrap();
        drop(held_up);
    };
    let (sent, ()) = tokio::join!(sent, consumed);
    sent.unwrap();
    assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert!(!place.kinds("a").await.contains(&"orch_queue".to_owned()));
}

/// A provider on a new container, behind a proxy.
async fn tapped(
    judge: impl Fn(&Asked) -> Option<Response<Full<Bytes>>> + Send + Sync + 'static,
) -> (CosmosDBProvider, Tap) {
    let tap = Tap::new(emulator(), judge).await;
    let behind = CosmosDBProviderConfig { endpoint: tap.endpoint.clone(), ..config(&fresh_name()) };
    (CosmosDBProvider::new_with_config(behind).await.unwrap(), tap)
}

#[tokio::test]
async fn one_throttled_operation_of_a_batch_is_the_cause_and_not_its_neighbours() {
    let batches = AtomicU32::new(0);
    let (provider, tap) = tapped(move |asked| {
        // The first two commits are answered as if their last operation had been throttled.
        if !asked.is_batch() || batches.fetch_add(1, Ordering::SeqCst) >= 2 {
            return None;
        }
        let operations: Vec<serde_json::Value> = serde_json::from_slice(&asked.body).unwrap();
        let mut results =
            vec![serde_json::json!({"statusCode": 424, "requestCharge": 0.0}); operations.len()];
        let last = results.len() - 1;
        results[last] = serde_json::json!({"statusCode": 429, "subStatusCode": 3200, "requestCharge": 1.0,
            "retryAfterMilliseconds": 20});
        let body = Bytes::from(serde_json::to_vec(&results).unwrap());
        Some(Response::builder().status(207).body(Full::new(body)).unwrap())
    })
    .await;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    commit(&provider, &token, vec![event("a", 1)], named()).await.unwrap();
    assert_eq!(provider.read("a").await.unwrap().len(), 1);
    assert_eq!(tap.asked().iter().filter(|asked| asked.is_batch()).count(), 3);
}

#[tokio::test]
async fn every_batch_says_that_it_is_all_or_nothing() {
    let (provider, tap) = tapped(|_| None).await;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let work = (1..=150).map(|id| activity("a", id)).collect();
    let events = vec![event("a", 1)];
    provider.ack_orchestration_item(&token, 1, events, work, vec![], named(), vec![]).await.unwrap();
    let batches: Vec<Asked> = tap.asked().into_iter().filter(Asked::is_batch).collect();
    assert!(batches.len() >= 2, "the commit and what it left to publish");
    for batch in batches {
        assert_eq!(batch.header("x-ms-cosmos-batch-atomic").map(str::to_lowercase).as_deref(), Some("true"));
        assert_eq!(batch.header("x-ms-cosmos-batch-continue-on-error").unwrap_or("False"), "False");
    }
}

#[tokio::test]
async fn a_read_asks_for_a_state_at_least_as_new_as_the_last_write() {
    let (provider, tap) = tapped(|_| None).await;
    let mut turn = 0;
    for round in 0..3 {
        let item = if round == 0 { start("a", "Hello", "") } else { mail("a", "m") };
        provider.enqueue_for_orchestrator(item, None).await.unwrap();
        let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        assert_eq!(item.history.len(), turn);
        turn += 1;
        commit(&provider, &token, vec![event("a", turn as u64)], named()).await.unwrap();
    }
    let asked = tap.asked();
    let first_write = asked.iter().position(|asked| asked.method == "POST" && !asked.path.ends_with("colls"));
    let mut loads = 0;
    for load in asked.iter().skip(first_write.unwrap()).filter(|asked| asked.is_load()) {
        loads += 1;
        let token = load.header("x-ms-session-token").unwrap_or_default();
        assert!(token.contains('#'), "a load without a session token: {token:?}");
    }
    assert!(loads >= 3, "{loads} loads");
}

#[tokio::test]
async fn a_server_whose_certificate_nobody_vouches_for_is_refused() {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let tap = Tap::tls(emulator(), made.cert.der().clone(), key).await;
    let trusting = |root: &rcgen::Certificate| {
        let certificates = Certificates::Trust(vec![root.der().to_vec()]);
        let mut driver = cosmos_driver::Config::default();
        driver.connections = Connections { certificates, ..Connections::default() };
        CosmosDBProviderConfig {
            endpoint: tap.endpoint.clone(),
            operation_timeout: Duration::from_secs(3),
            driver,
            ..config(&fresh_name())
        }
    };
    let refused = CosmosDBProvider::new_with_config(trusting(&other.cert)).await.expect_err("a stranger");
    assert!(refused.message.contains("ertificate"), "{refused}");
    let provider = CosmosDBProvider::new_with_config(trusting(&made.cert)).await.unwrap();
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
}
