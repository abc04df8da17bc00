//! Threads that serve connections. Each has a runtime of its own and keeps the connections it was given, so a request
//! never moves between threads: waking another thread costs more than reading an item.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// How long work on side threads may go on once the server has stopped.
pub(crate) const LAST_CALLS: Duration = Duration::from_secs(5);

/// The threads of one server.
#[derive(Debug)]
pub(crate) struct Lanes {
    runtimes: Vec<Handle>,
    next: AtomicUsize,
    threads: Mutex<Vec<Lane>>,
}

#[derive(Debug)]
struct Lane {
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Lanes {
    /// With one thread or none, connections stay where they were accepted.
    pub(crate) fn start(threads: usize) -> io::Result<Self> {
        let mut lanes = Self { runtimes: Vec::new(), next: AtomicUsize::new(0), threads: Mutex::default() };
        for _ in 0..if threads > 1 { threads } else { 0 } {
            let runtime = runtime()?;
            lanes.runtimes.push(runtime.handle().clone());
            let (stop, stopped) = oneshot::channel::<()>();
            let thread = thread::Builder::new().name("cosmos-lane".to_owned()).spawn(move || {
                // Told to stop, or left alone: either way it is over.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_timeout(LAST_CALLS);
            })?;
            lanes.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(Lane { stop, thread });
        }
        Ok(lanes)
    }

    /// Serves a connection that was just accepted, on the next thread in turn.
    pub(crate) fn serve<F>(&self, stream: TcpStream, work: impl FnOnce(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(turn) = self.next.fetch_add(1, Ordering::Relaxed).checked_rem(self.runtimes.len()) else {
            tokio::spawn(work(stream));
            return;
        };
        let moved = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%error, "cannot hand a connection to its thread"),
        };
        self.runtimes[turn].spawn(async move {
            match TcpStream::from_std(moved) {
                Ok(stream) => work(stream).await,
                Err(error) => tracing::warn!(%error, "cannot take over a connection"),
            }
        });
    }

    /// Ends all threads; connections that are still open are cut.
    pub(crate) fn stop(&self) {
        let lanes = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for Lane { stop, thread } in lanes {
            drop(stop);
            // It only panics on a bug, which was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A runtime on one thread.
pub(crate) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().thread_name("cosmos-side").enable_io().enable_time().build()
}
