//! Long queues of one instance: read in parts, in order, and without waiting between the parts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cosmos_driver::ItemOptions;
use cosmos_emulator::Operation;
use duroxide::providers::{Provider as _, WorkItem};
use duroxide_cdb::CosmosDBProvider;
use futures::stream::{StreamExt as _, TryStreamExt as _};
use serde_json::json;

use super::{LOCK, NOW, Place, commit, mail, place};
use crate::world::{DATABASE, emulator, event, named, noise, raw};

/// Fetches the next turn and commits it. Returns what it took.
async fn turn(provider: &CosmosDBProvider, number: u64) -> Vec<WorkItem> {
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    commit(provider, &token, vec![event("a", number)], named()).await.unwrap();
    item.messages
}

/// A place where `a` has begun, 700 messages wait for it, and its process has taken the first of them and remembers how
/// far it has to read. Another process then takes what it remembers, all but one.
async fn taken_by_another(between: impl AsyncFnOnce(&Place)) -> Place {
    let place = place().await;
    place.begin("a").await;
    for n in 0..700 {
        place.provider.enqueue_for_orchestrator(mail("a", &n.to_string()), None).await.unwrap();
    }
    assert_eq!(turn(&place.provider, 2).await.len(), 64);
    between(&place).await;
    let other = place.other().await;
    for number in 3..10 {
        assert_eq!(turn(&other, number).await.len(), 64);
    }
    place
}

fn mails(numbers: std::ops::Range<usize>) -> Vec<WorkItem> {
    numbers.map(|n| mail("a", &n.to_string())).collect()
}

#[tokio::test]
async fn a_process_that_remembers_a_part_that_others_took_goes_on_with_the_next_one() {
    let place = taken_by_another(async |_| {}).await;
    assert_eq!(turn(&place.provider, 10).await, mails(512..576));
}

#[tokio::test]
async fn messages_without_an_order_key_do_not_overtake_older_ones_of_a_long_queue() {
    let place = taken_by_another(async |place| {
        // Written last, as the public crate writes them.
        let later = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(1);
        let enqueued_at = u64::try_from(later.as_millis()).unwrap();
        let container = raw(&place.name).await;
        for n in 700..800 {
            let document = json!({
                "id": format!("uuid-{n}"), "instanceId": "a", "type": "orch_queue", "dispatchSlot": 7,
                "workItem": serde_json::to_string(&mail("a", &n.to_string())).unwrap(), "visibleAt": 1,
                "enqueuedAt": enqueued_at + n, "lockToken": null, "lockedUntil": null, "attemptCount": 0,
            });
            container.create_item("a", &document, ItemOptions::default()).await.unwrap();
        }
    })
    .await;
    let mut taken = Vec::new();
    for number in 10..15 {
        taken.extend(turn(&place.provider, number).await);
    }
    assert_eq!(taken, mails(512..800));
}

#[tokio::test]
async fn a_process_that_starts_beside_a_very_long_queue_reads_only_what_the_next_turns_take() {
    const MANY: usize = 4000;
    // What a message weighs, with what is stored around it.
    const BYTES: usize = 2000;
    let place = place().await;
    place.begin("a").await;
    let data = noise(BYTES - 500);
    futures::stream::iter(0..MANY)
        .map(|_| place.provider.enqueue_for_orchestrator(mail("a", &data), None))
        .buffer_unordered(16)
        .try_collect::<Vec<()>>()
        .await
        .unwrap();
    let link = format!("dbs/{DATABASE}/colls/{}", place.name);
    let read = || {
        let lines = emulator().ledger().snapshot().lines;
        let queries =
            lines.iter().filter(|line| *line.container == *link && line.operation == Operation::Query);
        queries.map(|line| line.totals.response_bytes).sum::<u64>()
    };
    // On a machine that does much else a query may take so long that it is asked again; that counts twice.
    let mut most = Vec::new();
    for numbers in [2..6, 6..10, 10..14] {
        let restarted = place.other().await;
        let mut bytes = 0;
        for number in numbers {
            let before = read();
            assert_eq!(turn(&restarted, number).await.len(), 64);
            bytes = bytes.max(read() - before);
        }
        if bytes < MANY as u64 * BYTES as u64 / 2 {
            return;
        }
        most.push(bytes);
    }
    panic!("{most:?} bytes were read for one turn");
}

/// What one process asked the partition of `a` so far.
fn asked(provider: &CosmosDBProvider) -> u64 {
    let spent = provider.spending();
    spent.instances.iter().find(|(instance, _)| instance == "a").map_or(0, |(_, spent)| spent.requests)
}

#[tokio::test]
async fn an_instance_that_another_process_works_on_is_looked_at_with_one_request() {
    let place = taken_by_another(async |_| {}).await;
    let other = place.other().await;
    let provider = &place.provider;
    // One message is left in the part that this process remembers, then none.
    for number in 10..12 {
        let (_, token, _) = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let before = asked(provider);
        let mut looks = 0;
        while asked(provider) == before {
            assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
            looks += 1;
        }
        assert_eq!(asked(provider) - before, 1, "after {looks} fetches");
        commit(&other, &token, vec![event("a", number)], named()).await.unwrap();
    }
    let wait = Duration::from_secs(30);
    let (item, ..) = provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert_eq!(item.messages, mails(640..700));
}
