//! The door of a region: its listener, and what those who knock see.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::sync::watch;

use super::{Offline, Sockets};
use crate::engine::RegionId;
use crate::server::{self, Gate, Handler};

/// The door of a region.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) id: RegionId,
    pub(crate) name: String,
    pub(crate) kind: DoorKind,
    /// Frames that came through it, of those that take frames.
    frames: AtomicU64,
    state: watch::Sender<DoorState>,
    /// Whether connections are accepted, as the server of this door says.
    is_accepting: (Mutex<bool>, Condvar),
    socket: OnceLock<Socket>,
    /// Where clients are told that it is, if not at the socket.
    announced: OnceLock<String>,
    /// Until the server takes it.
    listener: Mutex<Option<TcpListener>>,
}

/// Where a door is.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) address: SocketAddr,
    pub(crate) gate: Arc<Gate>,
}

/// What is spoken at a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DoorKind {
    /// What every account has.
    Gateway,
    /// Frames, over HTTP/2 alone.
    Gateway2,
}

/// What those who knock see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DoorState {
    Open,
    Offline(Offline),
    /// The region left the account.
    Removed,
}

impl Door {
    pub(crate) fn new(id: RegionId, name: String, kind: DoorKind, is_removed: bool) -> Self {
        let state = if is_removed { DoorState::Removed } else { DoorState::Open };
        Self {
            id,
            name,
            kind,
            frames: AtomicU64::new(0),
            state: watch::Sender::new(state),
            is_accepting: (Mutex::new(true), Condvar::new()),
            socket: OnceLock::new(),
            announced: OnceLock::new(),
            listener: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> DoorState {
        *self.state.borrow()
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.state() == DoorState::Removed
    }

    pub(crate) fn offline(&self) -> Option<Offline> {
        match self.state() {
            DoorState::Offline(manner) => Some(manner),
            DoorState::Open | DoorState::Removed => None,
        }
    }

    pub(crate) fn count_frame(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.socket.get()
    }

    pub(crate) fn announced(&self) -> Option<&str> {
        self.announced.get().map(String::as_str)
    }

    pub(super) fn announce(&self, endpoint: String) {
        // Clients remember what they were told: it does not change under them.
        let _ = self.announced.set(endpoint);
    }

    /// Waits until requests are answered, in whatever way.
    pub(crate) async fn unhung(&self) {
        let mut state = self.state.subscribe();
        // The door holds the other end, so this only returns when the state is another one.
        let _ = state.wait_for(|state| *state != DoorState::Offline(Offline::Hang)).await;
    }

    pub(super) fn close(&self, manner: Offline) {
        self.state.send_replace(DoorState::Offline(manner));
        self.wait(manner != Offline::Refuse);
    }

    pub(super) fn open(&self) {
        self.state.send_replace(DoorState::Open);
        self.wait(true);
    }

    pub(super) fn remove(&self) {
        self.state.send_replace(DoorState::Removed);
    }

    /// Waits until the server of this door does as it is told, if there is one.
    fn wait(&self, is_accepting: bool) {
        if self.socket().is_some() {
            let (state, changed) = &self.is_accepting;
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            // A server that has stopped for good says nothing any more.
            let _ = changed.wait_timeout_while(state, PATIENCE, |state| *state != is_accepting);
        }
    }

    fn tell(&self, is_accepting: bool) {
        let (state, changed) = &self.is_accepting;
        *state.lock().unwrap_or_else(PoisonError::into_inner) = is_accepting;
        changed.notify_all();
    }

    /// Takes a port.
    pub(super) fn listen(&self, sockets: &Sockets) -> Result<(), (SocketAddr, io::Error)> {
        let (listener, address) = sockets.bind(self.id, self.kind)?;
        let (limits, lanes) = (sockets.limits.clone(), sockets.lanes.clone());
        let gate = Arc::new(match self.kind {
            DoorKind::Gateway => Gate::new(limits, sockets.tls.clone(), lanes),
            DoorKind::Gateway2 => Gate::http2_only(limits, sockets.tls.as_deref(), lanes),
        });
        if self.socket.set(Socket { address, gate }).is_ok() {
            *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
        }
        Ok(())
    }

    /// Serves this door until told to stop. A refusing door has no listener; the port is kept from others by a socket
    /// that is bound and does not listen.
    pub(crate) async fn serve<H: Handler>(
        &self,
        handler: Arc<H>,
        stopped: impl Future<Output = ()> + Send,
    ) -> io::Result<()> {
        let Some(Socket { address, gate }) = self.socket() else { return Ok(()) };
        let mut state = self.state.subscribe();
        let mut stopped = std::pin::pin!(stopped);
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        loop {
            let open = match listener.take() {
                Some(listener) => tokio::net::TcpListener::from_std(listener)?,
                None => {
                    let kept = bound(*address)?;
                    self.tell(false);
                    tokio::select! {
                        () = &mut stopped => return Ok(()),
                        _ = state.wait_for(|state| *state != DoorState::Offline(Offline::Refuse)) => {}
                    }
                    kept.listen(BACKLOG)?
                }
            };
            self.tell(true);
            tokio::select! {
                () = server::run(open, Arc::clone(&handler), Arc::clone(gate), &mut stopped) => return Ok(()),
                _ = state.wait_for(|state| *state == DoorState::Offline(Offline::Refuse)) => gate.cut(),
            }
        }
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// How long a server may take to close or open a listener.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket that has the port and lets nobody in.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
