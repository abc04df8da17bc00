//! Ctrl-C and SIGTERM as an event to wait for.

use std::io;

/// The signals that mean stop. Made before the work starts, so that none is missed.
#[derive(Debug)]
pub(crate) struct Interrupt {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Interrupt {
    /// Listens from now on.
    #[cfg(unix)]
    pub(crate) fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Returns when the process is asked to stop.
    #[cfg(unix)]
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Listens from now on.
    #[cfg(not(unix))]
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Returns when the process is asked to stop.
    #[cfg(not(unix))]
    pub(crate) async fn wait(&mut self) {
        // Without a console there is nothing to wait for but the end of the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Changes of the terminal's size.
#[derive(Debug)]
pub(crate) struct Resizes {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl Resizes {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signal: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change())?,
        })
    }

    /// Returns at the next change; never where systems do not tell.
    pub(crate) async fn next(&mut self) {
        #[cfg(unix)]
        self.signal.recv().await;
        #[cfg(not(unix))]
        std::future::pending::<()>().await;
    }
}
