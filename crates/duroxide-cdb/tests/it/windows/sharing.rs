//! Readers of one instance share what they ask for, and none of them gets what is older than its question; what others
//! left unfinished waits while the account throttles.

use std::time::Duration;

use cosmos_emulator::{Operation, Verdict};
use duroxide::providers::Provider as _;
use duroxide_cdb::CosmosDBProviderConfig;
use futures::future::join_all;

use super::{LOCK, NOW, commit, mail, place_with, place_without_sweeps, status};
use crate::world::{emulator, event, named, until};

#[tokio::test]
async fn however_many_wait_for_one_instance_one_request_at_a_time_asks_for_it() {
    let place = place_without_sweeps().await;
    place.begin("a").await;
    let client = place.other().await;
    client.read("a").await.unwrap();
    let before = place.answered(Some(Operation::ReadItem));
    let looks = join_all((0..60).map(|_| client.read("a"))).await;
    assert!(looks.into_iter().all(|events| events.unwrap().len() == 1));
    // One for the first, and one for all that came while it was on its way.
    let asked = place.answered(Some(Operation::ReadItem)) - before;
    assert!(asked <= 2, "{asked} requests for 60 readers");
}

#[tokio::test]
async fn who_shares_a_look_sees_what_was_written_before_it_asked() {
    let place = place_without_sweeps().await;
    let provider = &place.provider;
    place.begin("a").await;
    let held = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::ReadItem).nth(1));
    let mut early = Box::pin(provider.read("a"));
    tokio::select! {
        _ = &mut early => panic!("its request is held up"),
        () = until("a look is in flight", async || held.struck() > 0) => {}
    }
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    commit(provider, &token, vec![event("a", 2)], named()).await.unwrap();
    let late = async {
        let mut late = Box::pin(join_all((0..5).map(|_| provider.read("a"))));
        assert!(futures::poll!(&mut late).is_pending());
        drop(held);
        late.await
    };
    let (early, late) = tokio::join!(early, late);
    assert!(!early.unwrap().is_empty());
    for events in late {
        assert_eq!(events.unwrap().len(), 2, "it asked after the commit");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweep_for_what_others_left_waits_while_the_account_throttles() {
    const INTERVAL: Duration = Duration::from_millis(20);
    let place = place_with(|config| CosmosDBProviderConfig { reconciler_interval: INTERVAL, ..config }).await;
    place.begin("a").await;
    let sweeps = || place.answered(Some(Operation::Query));
    // Looks at an instance are throttled, again and again.
    let throttled = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::ReadItem));
    let mut client = Box::pin(async {
        loop {
            let _ = place.provider.read("a").await;
        }
    });
    tokio::select! {
        () = &mut client => {}
        () = until("the account throttles", async || throttled.struck() > 30) => {}
    }
    let (begun, before) = (std::time::Instant::now(), sweeps());
    tokio::select! {
        () = &mut client => {}
        () = until("it has throttled for a while", async || throttled.struck() > 60) => {}
    }
    drop(client);
    let (took, made) = (begun.elapsed(), sweeps() - before);
    // In calm weather one comes after 20 to 120 ms; now it is put off by as much as searches are, several times.
    assert!(made <= took.as_secs() + 2, "{made} sweeps in {took:?}");
    drop(throttled);
    until("it sweeps again", async || sweeps() > before + made).await;
}
