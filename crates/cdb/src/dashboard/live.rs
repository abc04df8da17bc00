//! News for the pages: one who looks, for all tabs together, within a budget, and only while somebody watches.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cosmos_driver::{CallOptions, ChangeFeed, ChangeFeedStart, Scope};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::Store;
use super::answer::{self, Answer};
use super::api::instances::row;
use crate::clock::now_ms;
use crate::documents::Meter;
use crate::model::{text_of, type_of};

/// Who watches, and what there was to see.
#[derive(Default)]
pub(super) struct Live {
    room: Mutex<Room>,
    /// Somebody came.
    arrival: Notify,
    /// Everything that this dashboard was charged.
    spent: Meter,
    looks: AtomicU64,
}

#[derive(Default)]
struct Room {
    tabs: Vec<mpsc::Sender<Bytes>>,
    /// The number of the last event; the first has 1.
    last: u64,
    /// The last events, for tabs that come back.
    recent: VecDeque<(u64, Bytes)>,
}

impl Live {
    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what an answer cost, and says what all did.
    pub(super) fn charge(&self, request_units: f64) -> f64 {
        self.spent.add(request_units);
        self.spent.read().1
    }

    /// Request units so far.
    pub(super) fn spent(&self) -> f64 {
        self.spent.read().1
    }

    /// Looks for changes so far, and tabs that watch now.
    pub(super) fn looks(&self) -> (u64, usize) {
        (self.looks.load(Ordering::Relaxed), self.room().watching())
    }

    fn tell(&self, name: &str, mut value: Value) {
        value["spent"] = json!(self.spent());
        let mut room = self.room();
        room.last += 1;
        let event = Bytes::from(format!("id: {}\nevent: {name}\ndata: {value}\n\n", room.last));
        let last = room.last;
        room.recent.push_back((last, event.clone()));
        if room.recent.len() > RECENT_MAX {
            room.recent.pop_front();
        }
        // A tab that does not keep up is let go; it comes back by itself and is told what it missed.
        room.tabs.retain(|tab| tab.try_send(event.clone()).is_ok());
    }
}

impl Room {
    fn watching(&mut self) -> usize {
        self.tabs.retain(|tab| !tab.is_closed());
        self.tabs.len()
    }
}

/// Lets a tab watch. One that was here before gets what it missed, or is told that it missed something.
pub(super) fn subscribe(store: &Store, last: Option<u64>) -> Answer {
    let (tab, events) = mpsc::channel(TAB_EVENTS_MAX);
    let mut room = store.live.room();
    if room.watching() >= TABS_MAX {
        return answer::problem(StatusCode::SERVICE_UNAVAILABLE, "too many tabs watch already");
    }
    let greeting = json!({"now": now_ms(), "spent": store.live.spent(), "budget": store.budget});
    let _ = tab.try_send(Bytes::from(format!("retry: 1000\nevent: hello\ndata: {greeting}\n\n")));
    if let Some(last) = last {
        let oldest = room.recent.front().map_or(room.last + 1, |(number, _)| *number);
        if last > room.last || last + 1 < oldest {
            let _ = tab.try_send(Bytes::from_static(b"event: reset\ndata: {}\n\n"));
        } else {
            let missed = room.recent.iter().filter(|(number, _)| *number > last);
            for (_, event) in missed {
                let _ = tab.try_send(event.clone());
            }
        }
    }
    room.tabs.push(tab);
    drop(room);
    store.live.arrival.notify_one();
    answer::events(events)
}

/// Looks for changes as long as the pages are served.
pub(super) async fn look(store: Arc<Store>) {
    let mut feed: Option<ChangeFeed> = None;
    let mut trouble = Duration::ZERO;
    let mut heartbeat = Instant::now();
    loop {
        if store.live.room().watching() == 0 {
            // What happens while nobody watches is of no interest to those who come later.
            feed = None;
            store.live.arrival.notified().await;
            continue;
        }
        let began = Instant::now();
        let (pause, charge) = match next(&store, &mut feed).await {
            Ok((changes, charge)) => {
                if !trouble.is_zero() {
                    trouble = Duration::ZERO;
                    store.live.tell("well", json!({}));
                }
                let is_quiet = changes.is_none();
                if let Some(changes) = changes {
                    store.live.tell("changes", changes);
                } else if heartbeat.elapsed() > HEARTBEAT {
                    heartbeat = Instant::now();
                    store.live.tell("quiet", json!({}));
                }
                (if is_quiet { PAUSE_QUIET } else { PAUSE_BUSY }, charge)
            }
            Err(error) => {
                feed = None;
                if trouble.is_zero() {
                    store.live.tell("trouble", json!({"error": format!("{error:#}")}));
                }
                trouble = (trouble * 2).clamp(TROUBLE_MIN, TROUBLE_MAX);
                (trouble, 0.0)
            }
        };
        let affordable = Duration::from_secs_f64((charge / store.budget).min(PAUSE_MAX_SECONDS));
        tokio::time::sleep_until(began + pause.max(affordable)).await;
    }
}

/// What has changed since the last look, if anything has, and what it cost to learn that.
async fn next(store: &Store, feed: &mut Option<ChangeFeed>) -> anyhow::Result<(Option<Value>, f64)> {
    let container = store.documents().container().clone();
    let feed = feed.get_or_insert_with(|| {
        container
            .change_feed(Scope::Container, ChangeFeedStart::Now, CallOptions::default())
            .with_page_size(PAGE_ITEMS)
    });
    let page = feed.next().await?;
    store.live.looks.fetch_add(1, Ordering::Relaxed);
    store.live.charge(page.charge());
    let items: Vec<Value> = page.items()?;
    if items.is_empty() {
        return Ok((None, page.charge()));
    }
    Ok((Some(changes(&items)), page.charge()))
}

/// The rows of heads that moved, and the names of everything that something happened to.
fn changes(items: &[Value]) -> Value {
    let mut touched = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    let mut rows = Vec::new();
    // The fleet's own documents change all the time, and no row of a page is about them.
    for item in items.iter().filter(|item| !duroxide_cdb::is_reserved(text_of(item, "instanceId"))) {
        touched.insert(text_of(item, "instanceId"));
        kinds.insert(type_of(item));
        if type_of(item) == "instance" && item["started"] == true {
            rows.push(row(item));
        }
    }
    json!({"now": now_ms(), "rows": rows, "touched": touched, "kinds": kinds, "documents": items.len()})
}

const PAGE_ITEMS: u16 = 200;
const PAUSE_BUSY: Duration = Duration::from_millis(700);
const PAUSE_QUIET: Duration = Duration::from_millis(1500);
const PAUSE_MAX_SECONDS: f64 = 60.0;
/// A tab learns within this that it still has a connection.
const HEARTBEAT: Duration = Duration::from_secs(15);
const TROUBLE_MIN: Duration = Duration::from_secs(2);
const TROUBLE_MAX: Duration = Duration::from_secs(15);
const RECENT_MAX: usize = 64;
/// More than are kept for those who come back, so that they get all of it.
const TAB_EVENTS_MAX: usize = 2 * RECENT_MAX;
const TABS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tab_that_does_not_read_is_let_go() {
        let live = Live::default();
        let (slow, _unread) = mpsc::channel(1);
        let (quick, mut read) = mpsc::channel(8);
        live.room().tabs.extend([slow, quick]);
        for number in 0..3 {
            live.tell("changes", json!({ "number": number }));
        }
        assert_eq!(live.looks().1, 1);
        let first = read.try_recv().unwrap();
        assert!(first.starts_with(b"id: 1\nevent: changes\ndata: {\"number\":0"), "{first:?}");
    }

    #[test]
    fn only_heads_that_have_begun_are_rows() {
        let items = [
            json!({"type": "instance", "instanceId": "a", "started": true, "status": "Running"}),
            json!({"type": "instance", "instanceId": "b", "started": false}),
            json!({"type": "history", "instanceId": "a"}),
        ];
        let told = changes(&items);
        assert_eq!(told["rows"].as_array().unwrap().len(), 1);
        assert_eq!(told["touched"], json!(["a", "b"]));
    }
}
