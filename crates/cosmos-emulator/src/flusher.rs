//! Waiting for the disk without blocking the threads that serve sockets.
//!
//! One thread waits for the newest ticket anyone holds and then tells everyone it covers, so a thousand writers in
//! flight cost one flush and one thread. A store that needs no flush has no such thread.

use std::sync::{Arc, mpsc};
use std::thread;

use tokio::sync::oneshot;

use crate::storage::{Storage, StorageError, Ticket};

struct Waiter {
    ticket: Ticket,
    done: oneshot::Sender<Result<(), StorageError>>,
}

/// Tells when a commit is on disk.
#[derive(Debug)]
pub(crate) struct Flusher {
    /// None when commits are as durable as they will be at once.
    inbox: Option<mpsc::Sender<Waiter>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flusher {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> std::io::Result<Self> {
        if !storage.is_slow_to_sync() {
            return Ok(Self { inbox: None, thread: None });
        }
        let (inbox, waiters) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("cosmos-sync".to_owned())
            .spawn(move || flush_loop(storage.as_ref(), &waiters))?;
        Ok(Self { inbox: Some(inbox), thread: Some(thread) })
    }

    /// Waits until everything up to `ticket` is on disk.
    pub(crate) async fn wait(&self, ticket: Ticket) -> Result<(), StorageError> {
        let Some(inbox) = &self.inbox else { return Ok(()) };
        let (done, told) = oneshot::channel();
        let stopped = || StorageError("the thread that waits for the disk has stopped".to_owned());
        inbox.send(Waiter { ticket, done }).map_err(|_| stopped())?;
        told.await.unwrap_or_else(|_| Err(stopped()))
    }
}

fn flush_loop(storage: &dyn Storage, waiters: &mpsc::Receiver<Waiter>) {
    while let Ok(first) = waiters.recv() {
        let mut group = vec![first];
        group.extend(waiters.try_iter());
        let newest = group.iter().map(|waiter| waiter.ticket).max().unwrap_or(Ticket(0));
        let outcome = storage.wait_durable(newest);
        for waiter in group {
            // A waiter whose request was dropped no longer listens.
            let _ = waiter.done.send(outcome.clone());
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // It only panics if the store does, which was reported when it happened.
            let _ = thread.join();
        }
    }
}
