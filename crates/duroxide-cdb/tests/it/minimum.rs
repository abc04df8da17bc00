//! The least each operation can cost, and that it costs no more: requests, and documents the account looks at. The
//! partition is full of what is none of the operation's business, so that a scan would show.

use cosmos_emulator::Operation;
use duroxide::providers::{Provider as _, ProviderAdmin as _, SessionFetchConfig, WorkItem};
use duroxide::{Event, EventKind, TagFilter};
use duroxide_cdb::CosmosDBProvider;

use crate::budgets::{Account, unshared};
use crate::windows::{LOCK, NOW, mail, of_session};
use crate::world::{activity, event, named, start};

/// Requests and documents looked at.
type Bill = (u64, u64);

/// An account with an instance that has a long past and much before it.
struct Shop {
    account: Account,
    provider: CosmosDBProvider,
}

impl Shop {
    async fn open() -> Self {
        let account = Account::new(1);
        let provider = account.provider(unshared(account.config())).await;
        let shop = Self { account, provider };
        let provider = &shop.provider;
        provider.enqueue_for_orchestrator(start("x", "Hello", ""), None).await.unwrap();
        for turn in 0..PAST {
            let token = Self::turn(provider).await;
            let set = EventKind::KeyValueSet { key: "k".into(), value: "v".into(), last_updated_at_ms: 1 };
            let said = EventKind::CustomStatusUpdated { status: Some("s".into()) };
            let kinds = [set, said].into_iter().zip(3 * turn + 2..);
            let events = std::iter::once(event("x", 3 * turn + 1))
                .chain(kinds.map(|(kind, id)| Event::with_event_id(id, "x", 1, None, kind)))
                .collect();
            let work = vec![activity("x", 3 * turn + 1)];
            provider.ack_orchestration_item(&token, 1, events, work, vec![], named(), vec![]).await.unwrap();
            provider.enqueue_for_orchestrator(mail("x", "m"), None).await.unwrap();
        }
        shop
    }

    /// Another process, which knows nothing of any instance.
    async fn other(&self) -> CosmosDBProvider {
        let other = self.account.provider(unshared(self.account.config())).await;
        assert_eq!(other.get_custom_status("nobody", 0).await.unwrap(), None);
        other
    }

    async fn turn(by: &CosmosDBProvider) -> String {
        by.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap().1
    }

    async fn work(&self) -> (u64, String) {
        let found = self.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap();
        let (WorkItem::ActivityExecute { id, .. }, token, _) = found.unwrap() else { panic!("no activity") };
        (id, token)
    }

    /// What something costs.
    async fn bill(&self, something: impl AsyncFnOnce()) -> Bill {
        self.account.emulator.ledger().reset();
        something().await;
        let snapshot = self.account.emulator.ledger().snapshot();
        assert_eq!(snapshot.totals.cross_partition_queries, 0, "{}", self.account.told());
        (snapshot.totals.requests, snapshot.totals.documents_visited)
    }

    /// What a process pays that knows nothing.
    async fn bill_of_other(&self, something: impl AsyncFnOnce(&CosmosDBProvider)) -> Bill {
        let other = self.other().await;
        self.bill(async || something(&other).await).await
    }
}

fn done(id: u64) -> WorkItem {
    WorkItem::ActivityCompleted { instance: "x".into(), execution_id: 1, id, result: "r".into() }
}

fn compare(rows: &[(&str, Bill, Bill)]) {
    for (what, paid, most) in rows {
        assert!(paid.0 >= 1, "{what} asked nobody");
        assert!(
            paid.0 <= most.0 && paid.1 <= most.1,
            "{what}: {paid:?} requests and documents, not {most:?}"
        );
    }
}

#[tokio::test]
async fn a_look_at_an_instance_reads_one_document_whatever_else_it_has() {
    let shop = Shop::open().await;
    compare(&[
        (
            "get_custom_status",
            shop.bill_of_other(async |other| {
                assert_eq!(other.get_custom_status("x", 0).await.unwrap().unwrap().0.as_deref(), Some("s"));
            })
            .await,
            (1, 1),
        ),
        (
            "get_kv_value",
            shop.bill_of_other(async |other| {
                assert_eq!(other.get_kv_value("x", "k").await.unwrap().as_deref(), Some("v"));
            })
            .await,
            (1, 1),
        ),
        (
            "get_kv_all_values",
            shop.bill_of_other(async |other| {
                assert_eq!(other.get_kv_all_values("x").await.unwrap().len(), 1);
            })
            .await,
            (1, 1),
        ),
        (
            "get_instance_stats",
            shop.bill_of_other(async |other| {
                let stats = other.get_instance_stats("x").await.unwrap().unwrap();
                assert_eq!(stats.history_event_count, 3 * PAST);
            })
            .await,
            (1, 1),
        ),
        (
            "get_instance_info",
            shop.bill_of_other(async |other| {
                assert_eq!(other.get_instance_info("x").await.unwrap().status, "Running");
            })
            .await,
            (1, 1),
        ),
        (
            "latest_execution_id",
            shop.bill_of_other(async |other| assert_eq!(other.latest_execution_id("x").await.unwrap(), 1))
                .await,
            (1, 1),
        ),
        (
            "get_parent_id",
            shop.bill_of_other(async |other| assert_eq!(other.get_parent_id("x").await.unwrap(), None)).await,
            (1, 1),
        ),
        (
            "get_execution_info",
            shop.bill_of_other(async |other| {
                assert_eq!(other.get_execution_info("x", 1).await.unwrap().status, "Running");
            })
            .await,
            (1, 1),
        ),
        (
            "enqueue_for_orchestrator",
            shop.bill_of_other(async |other| {
                other.enqueue_for_orchestrator(mail("x", "m"), None).await.unwrap();
            })
            .await,
            (1, 0),
        ),
        (
            "enqueue_for_worker",
            shop.bill_of_other(async |other| {
                other.enqueue_for_worker(activity("x", 9999)).await.unwrap();
            })
            .await,
            (1, 0),
        ),
    ]);
}

#[tokio::test]
async fn a_lock_is_kept_given_back_and_used_with_one_write_and_elsewhere_with_one_read_more() {
    let shop = Shop::open().await;
    for (is_own, most) in [(true, (1, 1)), (false, (2, 2))] {
        // A commit also looks at each document that it replaces or removes.
        let most_of_commit = (most.0, most.1 + 3);
        let most_of_turn = if is_own { most_of_commit } else { (3, 7) };
        // Who has read once remembers, so each has to be a new one.
        let who = async || if is_own { shop.provider.clone() } else { shop.other().await };
        let turn = Shop::turn(&who().await).await;
        let by = who().await;
        let renewed = shop.bill(async || by.renew_orchestration_item_lock(&turn, LOCK).await.unwrap()).await;
        let by = who().await;
        let abandoned =
            shop.bill(async || by.abandon_orchestration_item(&turn, None, true).await.unwrap()).await;
        let turn = Shop::turn(&who().await).await;
        let by = who().await;
        let committed = shop.bill(async || {
            let work = vec![activity("x", 1000 + u64::from(is_own))];
            by.ack_orchestration_item(&turn, 1, vec![], work, vec![], named(), vec![]).await.unwrap();
        });
        compare(&[
            ("renewing a turn", renewed, most),
            ("abandoning a turn", abandoned, most),
            // Elsewhere the versions of held mail have to be read, too.
            ("committing a turn", committed.await, most_of_turn),
        ]);
        shop.provider.enqueue_for_orchestrator(mail("x", "m"), None).await.unwrap();

        let (_, work) = shop.work().await;
        let by = who().await;
        let renewed = shop.bill(async || by.renew_work_item_lock(&work, LOCK).await.unwrap()).await;
        let by = who().await;
        let abandoned = shop.bill(async || by.abandon_work_item(&work, None, true).await.unwrap()).await;
        let (id, work) = shop.work().await;
        let by = who().await;
        let completed = shop.bill(async || by.ack_work_item(&work, Some(done(id))).await.unwrap()).await;
        let (_, work) = shop.work().await;
        let by = who().await;
        let dropped = shop.bill(async || by.ack_work_item(&work, None).await.unwrap()).await;
        compare(&[
            ("renewing an activity", renewed, most),
            ("abandoning an activity", abandoned, most),
            ("completing an activity", completed, most_of_commit),
            ("dropping an activity", dropped, most),
        ]);
    }
}

#[tokio::test]
async fn an_activity_of_a_session_that_is_owned_costs_no_more_than_another() {
    let account = Account::new(1);
    let provider = account.provider(unshared(account.config())).await;
    let shop = Shop { account, provider };
    let session = SessionFetchConfig { owner_id: "me".into(), lock_timeout: LOCK };
    let provider = &shop.provider;
    let fetch = async |wait| {
        let found = provider.fetch_work_item(LOCK, wait, Some(&session), &TagFilter::Any).await.unwrap();
        found.map(|(_, token, _)| token)
    };
    assert_eq!(fetch(NOW).await, None, "from here on nothing is searched for");
    let mut bills = Vec::new();
    for (id, item) in
        [activity("x", 1), of_session("x", 2, "s"), of_session("x", 3, "s")].into_iter().enumerate()
    {
        provider.enqueue_for_worker(item).await.unwrap();
        let bill = shop.bill(async || {
            let token = fetch(LOCK).await.unwrap();
            provider.renew_work_item_lock(&token, LOCK).await.unwrap();
            provider.ack_work_item(&token, Some(done(id as u64 + 1))).await.unwrap();
        });
        bills.push(bill.await);
    }
    let [plain, claiming, steady] = bills[..] else { panic!("{bills:?}") };
    assert_eq!(plain.0, 3);
    assert_eq!(steady, plain);
    assert_eq!(claiming.0, plain.0 + 1, "a session that is new is claimed with one write");
}

#[tokio::test]
async fn a_worker_that_knows_its_instance_reads_it_with_its_claim() {
    let shop = Shop::open().await;
    let mut bills = Vec::new();
    // Where the machine stalls between a claim and its reader, the reader asks.
    for _ in 0..5 {
        shop.work().await;
        let mut events = Vec::new();
        bills.push(shop.bill(async || events = shop.provider.read("x").await.unwrap()).await);
        assert_eq!(events.len() as u64, 3 * PAST);
        // The next reader asks: others may have committed meanwhile.
        let bill = shop.bill(async || assert_eq!(shop.provider.read("x").await.unwrap(), events)).await;
        assert_eq!(bill, (1, 1));
    }
    assert!(bills.contains(&(0, 0)), "{bills:?}");
}

#[tokio::test]
async fn what_is_large_is_not_sent_back_with_a_claim() {
    let shop = Shop::open().await;
    // Small, large, and small beside a large head.
    for (length, batches, values) in [(1_000, 1, 0), (100_000, 0, 0), (1_001, 0, 5)] {
        while let Some((_, token, _)) =
            shop.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap()
        {
            shop.provider.ack_work_item(&token, None).await.unwrap();
        }
        let mut item = activity("x", 5000 + length);
        let WorkItem::ActivityExecute { input, .. } = &mut item else { panic!("no activity") };
        *input = "i".repeat(usize::try_from(length).unwrap());
        shop.provider.enqueue_for_worker(item).await.unwrap();
        if values > 0 {
            let token = Shop::turn(&shop.provider).await;
            let set = |n: u64| {
                let (key, value) = (format!("large{n}"), "v".repeat(2000));
                let kind = EventKind::KeyValueSet { key, value, last_updated_at_ms: 1 };
                Event::with_event_id(1000 + n, "x", 1, None, kind)
            };
            let events = (0..values).map(set).collect();
            let done =
                shop.provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![]);
            done.await.unwrap();
        }
        shop.bill(async || drop(shop.work().await)).await;
        let claims = shop.account.emulator.ledger().snapshot();
        assert_eq!(claims.operation(Operation::Batch).requests, batches, "{length}");
    }
}

#[tokio::test]
async fn a_worker_sees_what_another_process_committed_before_its_claim() {
    let shop = Shop::open().await;
    let other = shop.other().await;
    let token = Shop::turn(&other).await;
    let more = vec![event("x", 3 * PAST + 1)];
    other.ack_orchestration_item(&token, 1, more, vec![], vec![], named(), vec![]).await.unwrap();
    shop.work().await;
    let bill = shop.bill(async || {
        assert_eq!(shop.provider.read("x").await.unwrap().len() as u64, 3 * PAST + 1);
    });
    // The head has come already with the new event in it, unless the machine stalled.
    let requests = bill.await.0;
    assert!(requests <= 2, "{requests} requests");
}

#[tokio::test]
async fn a_small_history_is_read_with_the_head_and_nothing_else() {
    let shop = Shop::open().await;
    let provider = &shop.provider;
    provider.enqueue_for_orchestrator(start("small", "Hello", ""), None).await.unwrap();
    loop {
        let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        if item.instance == "small" {
            let events = vec![event("small", 1), event("small", 2)];
            provider
                .ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![])
                .await
                .unwrap();
            break;
        }
    }
    let read = async |other: &CosmosDBProvider| {
        assert_eq!(other.read("small").await.unwrap().len(), 2);
    };
    let read_again = async |other: &CosmosDBProvider| {
        assert_eq!(other.read_with_execution("small", 1).await.unwrap().len(), 2);
    };
    compare(&[
        ("read", shop.bill_of_other(read).await, (1, 1)),
        ("read_with_execution", shop.bill_of_other(read_again).await, (1, 1)),
    ]);
}

#[tokio::test]
async fn who_learned_of_a_newer_execution_does_not_get_the_one_that_came_with_a_claim() {
    let shop = Shop::open().await;
    let other = shop.other().await;
    shop.work().await;
    let token = Shop::turn(&other).await;
    other
        .ack_orchestration_item(&token, 2, vec![event("x", 1)], vec![], vec![], named(), vec![])
        .await
        .unwrap();
    assert_eq!(shop.provider.read_with_execution("x", 2).await.unwrap().len(), 1);
    assert_eq!(shop.provider.read("x").await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_worker_sees_what_its_own_process_committed_after_its_claim() {
    let shop = Shop::open().await;
    let provider = &shop.provider;
    let token = Shop::turn(provider).await;
    shop.work().await;
    let more = vec![event("x", 3 * PAST + 1)];
    provider.ack_orchestration_item(&token, 1, more, vec![], vec![], named(), vec![]).await.unwrap();
    assert_eq!(provider.read("x").await.unwrap().len() as u64, 3 * PAST + 1);
}

#[tokio::test]
async fn a_worker_does_not_see_an_instance_that_its_own_process_deleted_after_its_claim() {
    let shop = Shop::open().await;
    shop.work().await;
    shop.provider.delete_instance("x", true).await.unwrap();
    assert_eq!(shop.provider.read("x").await.unwrap(), []);
}

#[tokio::test]
async fn an_activity_whose_instance_is_gone_is_handed_out_all_the_same() {
    let shop = Shop::open().await;
    shop.provider.read("x").await.unwrap();
    shop.other().await.delete_instance("x", true).await.unwrap();
    shop.provider.enqueue_for_worker(activity("x", 9999)).await.unwrap();
    loop {
        let (id, token) = shop.work().await;
        assert_eq!(shop.provider.read("x").await.unwrap(), []);
        shop.provider.ack_work_item(&token, None).await.unwrap();
        if id == 9999 {
            break;
        }
    }
}

const PAST: u64 = 20;
