//! One look in flight for all readers of one thing.
//!
//! Many clients of one process may wait for one instance, and each asks for its head some ten times a second. What an
//! answer shows was there at some time after its request was sent, so it serves every reader that came before that: none
//! of them has seen, written or been told of anything later. A reader that comes while a request is in flight cannot
//! take that answer, for it may not show what this process, or somebody who told the reader, wrote after the request was
//! sent. It waits for the next request, which begins when the one in flight has ended, and all that came by then share
//! it. So however many readers there are, one request at a time is in flight, and each reads its own writes.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The looks under way, by what they look at.
#[derive(Debug)]
pub(crate) struct Looks<T> {
    /// Numbers the comings of readers and the beginnings of requests in their order. A clock could show two of them at
    /// one time.
    steps: AtomicU64,
    places: Mutex<HashMap<String, Arc<Place<T>>>>,
}

/// The last answer, if it came while others waited. Held by who has a request in flight.
type Place<T> = tokio::sync::Mutex<Option<Answer<T>>>;

#[derive(Debug)]
struct Answer<T> {
    begun: u64,
    seen: T,
}

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Self { steps: AtomicU64::new(0), places: Mutex::default() }
    }
}

impl<T: Clone> Looks<T> {
    /// What a look shows that began after this call: the reader's own, or another's. Who has waited for others as long as
    /// its patience lasts looks alone: their connection may be the trouble. A failure is not shared.
    pub(crate) async fn share<E, Looking>(
        &self,
        what: &str,
        patience: Duration,
        look: impl FnOnce() -> Looking,
    ) -> Result<T, E>
    where
        Looking: Future<Output = Result<T, E>>,
    {
        let came = self.step();
        let visit = self.visit(what);
        let Ok(mut last) = tokio::time::timeout(patience, visit.place.lock()).await else {
            return look().await;
        };
        if let Some(answer) = last.as_ref().filter(|answer| answer.begun > came) {
            return Ok(answer.seen.clone());
        }
        let begun = self.step();
        let seen = look().await?;
        *last = Some(Answer { begun, seen: seen.clone() });
        Ok(seen)
    }

    fn step(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::Relaxed)
    }

    fn visit(&self, what: &str) -> Visit<'_, T> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Arc::clone(places.entry(what.to_owned()).or_default());
        Visit { looks: self, what: what.to_owned(), place }
    }
}

/// A reader. The last one takes the place away.
struct Visit<'a, T> {
    looks: &'a Looks<T>,
    what: String,
    place: Arc<Place<T>>,
}

impl<T> Drop for Visit<'_, T> {
    fn drop(&mut self) {
        let mut places = self.looks.places.lock().unwrap_or_else(PoisonError::into_inner);
        // One is the map's, one is this reader's.
        if Arc::strong_count(&self.place) <= 2 {
            places.remove(&self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    const PATIENT: Duration = Duration::from_secs(60);

    /// An account whose answers wait until they are let through.
    struct Account {
        asked: Cell<u32>,
        answers: Semaphore,
    }

    impl Account {
        fn new() -> Self {
            Self { asked: Cell::new(0), answers: Semaphore::new(0) }
        }

        async fn ask(&self) -> Result<u32, Infallible> {
            self.asked.set(self.asked.get() + 1);
            let number = self.asked.get();
            self.answers.acquire().await.expect("it is not closed").forget();
            Ok(number)
        }
    }

    #[tokio::test]
    async fn those_who_come_while_a_look_is_under_way_share_the_next_and_none_gets_an_older_one() {
        let (account, looks) = (Account::new(), Looks::default());
        let mut first = Box::pin(looks.share("a", PATIENT, || account.ask()));
        assert!(futures::poll!(&mut first).is_pending());
        let others = (0..50).map(|_| looks.share("a", PATIENT, || account.ask()));
        let mut others = Box::pin(join_all(others));
        assert!(futures::poll!(&mut others).is_pending());
        assert_eq!(account.asked.get(), 1, "one is in flight");
        let mut elsewhere = Box::pin(looks.share("b", PATIENT, || account.ask()));
        assert!(futures::poll!(&mut elsewhere).is_pending());
        assert_eq!(account.asked.get(), 2, "other instances wait for nobody");
        account.answers.add_permits(100);
        assert_eq!(first.await, Ok(1));
        assert!(others.await.into_iter().all(|seen| seen == Ok(3)), "they came after the first had asked");
        elsewhere.await.unwrap();
        assert!(looks.places.lock().unwrap().is_empty(), "nothing is kept");
        assert_eq!(looks.share("a", PATIENT, || account.ask()).await, Ok(4));
    }

    #[tokio::test]
    async fn a_look_that_is_given_up_or_fails_stops_nobody() {
        let (account, looks) = (Account::new(), Looks::default());
        let mut first = Box::pin(looks.share("a", PATIENT, || account.ask()));
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(looks.share("a", PATIENT, || account.ask()));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        account.answers.add_permits(1);
        assert_eq!(second.await, Ok(2));
        let refused = looks.share("a", PATIENT, || async { Err::<u32, _>("refused") }).await;
        assert_eq!(refused, Err("refused"));
        assert!(looks.places.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_waited_long_enough_looks_alone() {
        let (account, looks) = (Account::new(), Looks::default());
        let mut first = Box::pin(looks.share("a", PATIENT, || account.ask()));
        assert!(futures::poll!(&mut first).is_pending());
        let second = looks.share("a", PATIENT, || async { Ok::<_, Infallible>(7) });
        assert_eq!(second.await, Ok(7));
    }
}
