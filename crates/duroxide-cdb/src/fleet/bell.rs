//! The bell: how a process hears that another one wrote something for it.
//!
//! One small document per container. A process that writes into a slot which is not its own sets its own entry in it,
//! without any condition: the number of its last ring and the last few things it rang for. Members read the document with
//! the ETag they know, which costs one request unit while nobody has rung. The bell carries no truth: what was not heard is
//! found by a search.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::documents::MessageHint;
use crate::documents::{Bell, Rung, RungMessage, RungWork, ids};
use crate::error::{Fault, Trouble};
use crate::store::{Call, Op, Store};

const OPERATION: &str = "ring";

/// The rings of this process.
#[derive(Debug, Clone)]
pub(crate) struct BellRinger {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    /// Under which name this process rings.
    name: String,
    state: Mutex<Ringing>,
    /// Held while something is being told.
    telling: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Ringing {
    n: u64,
    messages: VecDeque<RungMessage>,
    works: VecDeque<RungWork>,
    /// Something was rung for that is not told yet.
    is_due: bool,
    /// Somebody is telling it.
    is_sending: bool,
}

impl BellRinger {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let name = uuid::Uuid::new_v4().simple().to_string()[..NAME_DIGITS].to_owned();
        Self {
            inner: Arc::new(Inner {
                store,
                name,
                state: Mutex::default(),
                telling: tokio::sync::Mutex::default(),
            }),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    /// Rings for a message.
    pub(crate) fn ring_message(&self, hint: &MessageHint) {
        // A name that is long does not have to be told: who hears a number that is not listed searches.
        let is_short = hint.instance.len() <= NAME_BYTES_MAX;
        self.ring(|state| {
            if is_short {
                let (i, id) = (hint.instance.clone(), hint.id.clone());
                state.messages.push_back(RungMessage { n: state.n, i, id, s: hint.seq, v: hint.visible_at });
            }
        });
    }

    /// Rings for activities in a slot's part of the container.
    pub(crate) fn ring_work(&self, slot: u8) {
        let state = self.inner.lock();
        if state.is_due && state.works.back().is_some_and(|last| last.slot == slot) {
            return;
        }
        drop(state);
        self.ring(|state| state.works.push_back(RungWork { n: state.n, slot }));
    }

    fn ring(&self, add: impl FnOnce(&mut Ringing)) {
        if cosmos_wire::mutant!(37) {
            return;
        }
        let mut state = self.inner.lock();
        state.n += 1;
        add(&mut state);
        while state.messages.len() > LISTED_MAX {
            state.messages.pop_front();
        }
        while state.works.len() > LISTED_MAX {
            state.works.pop_front();
        }
        state.is_due = true;
        if !std::mem::replace(&mut state.is_sending, true) {
            drop(state);
            metrics::counter!("duroxide_cdb_rings_total").increment(1);
            tokio::spawn(send_all(Arc::clone(&self.inner)));
        }
    }

    /// Tells what was rung for and not told yet, now, and waits for what is being told.
    pub(crate) async fn flush(&self) {
        if let Err(fault) = self.inner.tell().await {
            tracing::debug!(%fault, "nobody hears the last ring of this process");
        }
    }
}

/// Tells what was rung for, and what is rung for meanwhile, so often and not oftener.
async fn send_all(inner: Arc<Inner>) {
    loop {
        match inner.tell().await {
            Ok(Told::Nothing) => return,
            Ok(Told::Something) => {}
            Err(fault) => {
                tracing::debug!(%fault, "a ring was not heard; what it was for is found by a search");
            }
        }
        tokio::time::sleep(RING_EVERY).await;
    }
}

/// Whether there was anything to tell.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Something,
    Nothing,
}

impl Inner {
    /// What is to be told, if anything is. If nothing is, who asked stops telling.
    fn due(&self) -> Option<Rung> {
        let mut state = self.lock();
        if !std::mem::take(&mut state.is_due) {
            state.is_sending = false;
            return None;
        }
        Some(Rung {
            n: state.n,
            m: state.messages.iter().cloned().collect(),
            w: state.works.iter().cloned().collect(),
        })
    }

    /// Tells what is due. It is taken under the lock, so that who has the lock next knows that nothing is on its way.
    async fn tell(&self) -> Result<Told, Fault> {
        let _one_at_a_time = self.telling.lock().await;
        let Some(rung) = self.due() else { return Ok(Told::Nothing) };
        self.send(&rung).await.map(|()| Told::Something)
    }

    async fn send(&self, rung: &Rung) -> Result<(), Fault> {
        let call = || Call { operation: OPERATION, deadline: Instant::now() + SEND_WITHIN };
        let value = serde_json::to_value(rung)?;
        let set = Op::set(ids::BELL, format!("/rings/{}", self.name), value);
        match self.store.write(call(), ids::LEASES, &set).await {
            Err(fault) if fault.trouble == Trouble::Missing => {}
            outcome => return outcome.map(drop),
        }
        let rings = BTreeMap::from([(self.name.clone(), rung.clone())]);
        let first = Op::create(&Bell { rings, ..Bell::silent() })?;
        match self.store.write(call(), ids::LEASES, &first).await {
            Err(fault) if fault.trouble == Trouble::Exists => {
                self.store.write(call(), ids::LEASES, &set).await.map(drop)
            }
            outcome => outcome.map(drop),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ringing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a member has heard so far: the last number of each process that rang.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// `None` before the first look: what was rung before is found by the first search.
    last: Option<HashMap<String, u64>>,
}

/// What is new on the bell.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) messages: Vec<RungMessage>,
    pub(crate) slots: Vec<u8>,
    /// Something was rung for that is not listed any more.
    pub(crate) is_partial: bool,
}

impl Heard {
    /// What others than `own` have rung for since the last look, or, at the first one, since this member joined: what was
    /// there before, its first search finds.
    pub(crate) fn hear(&mut self, bell: &Bell, own: &str, joined_at: u64) -> News {
        let mut news = News::default();
        if self.last.is_none() {
            let others = bell.rings.iter().filter(|(name, _)| name.as_str() != own);
            let messages = others.flat_map(|(_, rung)| &rung.m);
            news.messages.extend(messages.filter(|message| message.v >= joined_at).cloned());
        }
        if let Some(last) = &self.last {
            for (name, rung) in bell.rings.iter().filter(|(name, _)| name.as_str() != own) {
                let heard = last.get(name).copied().unwrap_or(0);
                let messages = rung.m.iter().filter(|message| message.n > heard);
                let works = rung.w.iter().filter(|work| work.n > heard);
                let (had, had_works) = (news.messages.len(), news.slots.len());
                news.messages.extend(messages.cloned());
                news.slots.extend(works.map(|work| work.slot));
                let listed = (news.messages.len() - had + news.slots.len() - had_works) as u64;
                news.is_partial |= rung.n.saturating_sub(heard) > listed;
            }
        }
        self.last = Some(bell.rings.iter().map(|(name, rung)| (name.clone(), rung.n)).collect());
        news
    }
}

/// A process tells its rings so often: what it sends in between is told together.
const RING_EVERY: Duration = Duration::from_millis(100);
const SEND_WITHIN: Duration = Duration::from_secs(2);
/// So many of each kind are listed: who looks rarely may have missed some and searches.
const LISTED_MAX: usize = 8;
const NAME_BYTES_MAX: usize = 120;
const NAME_DIGITS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(n: u64) -> RungMessage {
        RungMessage { n, i: format!("i{n}"), id: "m".into(), s: n, v: n }
    }

    fn bell(rings: &[(&str, Rung)]) -> Bell {
        Bell {
            rings: rings.iter().cloned().map(|(name, rung)| (name.to_owned(), rung)).collect(),
            ..Bell::silent()
        }
    }

    #[test]
    fn what_was_rung_for_between_the_first_search_and_the_first_look_is_heard() {
        let rung = Rung { n: 3, m: vec![message(1), message(2), message(3)], w: vec![] };
        let mut heard = Heard::default();
        let news = heard.hear(&bell(&[("a", rung.clone()), ("me", rung.clone())]), "me", 2);
        assert_eq!(news, News { messages: vec![message(2), message(3)], ..News::default() });
        assert_eq!(heard.hear(&bell(&[("a", rung)]), "me", 2), News::default(), "and only once");
    }

    #[test]
    fn each_ring_is_heard_once_and_one_that_is_not_listed_is_missed() {
        let rung =
            |n, listed: &[u64]| Rung { n, m: listed.iter().copied().map(message).collect(), w: vec![] };
        let mut heard = Heard::default();
        assert_eq!(
            heard.hear(&bell(&[("a", rung(3, &[3]))]), "me", 9),
            News::default(),
            "the first search finds it"
        );
        let news = heard.hear(&bell(&[("a", rung(5, &[3, 4, 5])), ("me", rung(9, &[]))]), "me", 9);
        assert_eq!(news, News { messages: vec![message(4), message(5)], ..News::default() });
        assert_eq!(heard.hear(&bell(&[("a", rung(5, &[3, 4, 5]))]), "me", 9), News::default());
        assert!(heard.hear(&bell(&[("a", rung(8, &[8]))]), "me", 9).is_partial);
        let new = Rung { n: 1, m: vec![], w: vec![RungWork { n: 1, slot: 7 }] };
        let news = heard.hear(&bell(&[("b", new)]), "me", 9);
        assert_eq!(
            news,
            News { slots: vec![7], ..News::default() },
            "one that rings for the first time is heard"
        );
    }
}
