//! Ranges that split and merge: a filled container, what changes its ranges, and what goes on meanwhile.

use std::time::Duration;

use cosmos_driver::{Batch, Bulk, CallOptions, Container, ItemOptions, QueryOptions, Scope};
use cosmos_emulator::{Config, Phase, Progression, SplitMode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::globe::Globe;

pub(crate) const ITEMS: u64 = 90;
const AT_ONCE: Progression = Progression::Automatic { lock_duration: Duration::ZERO };
/// Writers are held up for a moment, with 410/1007, before other ranges take over.
pub(crate) const WITH_A_LOCK: Progression =
    Progression::Automatic { lock_duration: Duration::from_millis(40) };
pub(crate) const PLAIN: &str = "SELECT * FROM c";
pub(crate) const SORTED: &str = "SELECT * FROM c ORDER BY c.n";

pub(crate) async fn filled() -> (Globe, Container) {
    let globe = Globe::with(Config::default().with_partitions(2)).await;
    let driver = globe.builder().build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a valid name");
    fill(&items).await;
    (globe, items)
}

pub(crate) async fn fill(items: &Container) {
    let bulk = (0..ITEMS).fold(Bulk::new(), |bulk, n| {
        let item = json!({ "id": format!("i{n}"), "pk": format!("p{n}"), "n": n, "k": n % 3 });
        bulk.create(format!("p{n}"), &item)
    });
    let done = items.bulk(bulk, CallOptions::default()).await.expect("done");
    assert!(done.is_success());
}

pub(crate) fn ids(globe: &Globe) -> Vec<u32> {
    let partitions = globe.emulator.partitions("db", "items").expect("listed");
    partitions.iter().map(|partition| partition.id).collect()
}

/// Cuts every range in two, at once.
pub(crate) fn split(globe: &Globe) {
    for id in ids(globe) {
        globe.emulator.split("db", "items", id, SplitMode::Midpoint, AT_ONCE).expect("it splits");
    }
}

/// The ranges by pairs of neighbours.
pub(crate) fn pairs(globe: &Globe) -> Vec<[u32; 2]> {
    let mut partitions = globe.emulator.partitions("db", "items").expect("listed");
    partitions.sort_by(|a, b| a.min_inclusive.cmp(&b.min_inclusive));
    partitions.chunks_exact(2).map(|pair| [pair[0].id, pair[1].id]).collect()
}

/// Makes every two neighbours one, at once.
pub(crate) fn merge(globe: &Globe) {
    for pair in pairs(globe) {
        globe.emulator.merge("db", "items", pair, AT_ONCE).expect("they merge");
    }
}

/// Waits until no range is on its way to become others.
pub(crate) async fn settled(globe: &Globe) {
    let is_under_way = || {
        let operations = globe.emulator.operations().expect("listed");
        operations.iter().any(|operation| operation.phase != Phase::Succeeded)
    };
    while is_under_way() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn ns(rows: &[Value]) -> Vec<u64> {
    rows.iter().map(|row| row["n"].as_u64().expect("a number")).collect()
}

pub(crate) fn all() -> Vec<u64> {
    (0..ITEMS).collect()
}

/// Reads a query page by page, with `change` told how many pages were read, and checks that each item came once.
pub(crate) async fn read_by_pages(items: &Container, text: &str, mut change: impl FnMut(usize)) {
    let mut pager = items.query(text, Scope::Container, QueryOptions::default().with_page_size(7));
    let mut seen = Vec::new();
    for pages in 0.. {
        change(pages);
        let next = pager.next().await.unwrap_or_else(|e| panic!("{text}, page {pages}: {e:?}"));
        let Some(page) = next else { break };
        seen.extend(ns(&page.items::<Value>().expect("rows")));
    }
    if text == PLAIN {
        seen.sort_unstable();
    }
    assert_eq!(seen, all(), "{text}");
}

/// Batches, bulks, reads and queries that go on while ranges change.
pub(crate) struct Load {
    items: Container,
    workers: JoinSet<()>,
}

impl Load {
    const WORKERS: u64 = 4;
    const ROUNDS: u64 = 12;

    pub(crate) fn start(items: &Container) -> Self {
        let mut workers = JoinSet::new();
        for worker in 0..Self::WORKERS {
            let items = items.clone();
            workers.spawn(async move {
                for round in 0..Self::ROUNDS {
                    work(&items, &format!("{worker}-{round}")).await;
                }
            });
        }
        Self { items: items.clone(), workers }
    }

    /// Waits for the end and counts what was written.
    pub(crate) async fn finish(mut self) {
        while let Some(worker) = self.workers.join_next().await {
            worker.expect("nothing was lost");
        }
        let query = "SELECT VALUE COUNT(1) FROM c WHERE c.w";
        let pages = self.items.query(query, Scope::Container, QueryOptions::default());
        let count: Vec<u64> = pages.collect().await.expect("counted");
        assert_eq!(count, [Self::WORKERS * Self::ROUNDS * (IN_A_BATCH + IN_A_BULK)], "everything once");
    }
}

const IN_A_BATCH: u64 = 10;
const IN_A_BULK: u64 = 20;

async fn work(items: &Container, name: &str) {
    let key = format!("w{name}");
    let batch = (0..IN_A_BATCH).fold(Batch::new(&*key), |batch, n| {
        batch.create(&json!({ "id": n.to_string(), "pk": key, "w": true }))
    });
    let done = items.batch(batch, CallOptions::default()).await.expect("a batch");
    assert!(done.is_success(), "{:?}", done.failed());
    let bulk = (0..IN_A_BULK).fold(Bulk::new(), |bulk, n| {
        let key = format!("b{name}-{n}");
        bulk.create(&*key, &json!({ "id": "1", "pk": key, "w": true }))
    });
    let done = items.bulk(bulk, CallOptions::default()).await.expect("a bulk");
    assert!(done.is_success(), "{:?}", done.results());
    items.read_item(&*key, "7", ItemOptions::default()).await.expect("its own write");
    let query = "SELECT * FROM c WHERE IS_DEFINED(c.n) ORDER BY c.n";
    let options = QueryOptions::default().with_page_size(10);
    let rows: Vec<Value> = items.query(query, Scope::Container, options).collect().await.expect("rows");
    assert_eq!(ns(&rows), all());
}
