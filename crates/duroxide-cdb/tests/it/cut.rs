//! The wire between a process and the account, which can be cut.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cosmos_emulator::Emulator;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// A wire. Bytes go through it as they are, until it is severed.
pub(crate) struct Cut {
    pub(crate) endpoint: String,
    traffic: Arc<Traffic>,
    accepting: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

#[derive(Default)]
struct Traffic {
    /// How often something went to the account: about once per request.
    sent: AtomicU64,
    changed: Notify,
}

impl Cut {
    /// A wire to the emulator.
    pub(crate) async fn new(emulator: &Emulator) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let server = emulator.endpoint();
        let server: SocketAddr =
            server.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
        let traffic = Arc::new(Traffic::default());
        let accepting = tokio::spawn(accept(listener, server, Arc::clone(&traffic)));
        Self { endpoint: format!("http://{address}"), traffic, accepting: Mutex::new(Some(accepting)) }
    }

    /// Ends when so many requests have gone through.
    pub(crate) async fn after(&self, requests: u64) {
        loop {
            let changed = self.traffic.changed.notified();
            if self.traffic.sent.load(Ordering::SeqCst) >= requests {
                return;
            }
            changed.await;
        }
    }

    /// Cuts the wire: nothing goes either way any more, and nobody gets through again.
    pub(crate) fn sever(&self) {
        if let Some(accepting) = self.accepting.lock().expect("never poisoned").take() {
            accepting.abort();
        }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.sever();
    }
}

/// The connections are in a set that is dropped, and so cut, with the task.
async fn accept(listener: TcpListener, server: SocketAddr, traffic: Arc<Traffic>) {
    let mut wires = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        let Ok(account) = TcpStream::connect(server).await else { return };
        let _ = (client.set_nodelay(true), account.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_account, to_account) = account.into_split();
        wires.spawn(carry(from_client, to_account, Some(Arc::clone(&traffic))));
        wires.spawn(carry(from_account, to_client, None));
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, traffic: Option<Arc<Traffic>>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut bytes).await {
        if count == 0 {
            return;
        }
        if let Some(traffic) = &traffic {
            traffic.sent.fetch_add(1, Ordering::SeqCst);
            traffic.changed.notify_waiters();
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
