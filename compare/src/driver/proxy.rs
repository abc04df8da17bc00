//! A proxy in front of the server, one of whose connections can be made to swallow everything without closing.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A running proxy; it ends with this value.
pub struct Proxy {
    /// `http://127.0.0.1:N`.
    pub endpoint: String,
    connections: Arc<Mutex<Vec<Arc<Wire>>>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Wire {
    is_swallowing: AtomicBool,
    /// Bytes the client sent.
    sent: AtomicU64,
    /// Bytes it was sent.
    received: AtomicU64,
    /// Of those, how many when somebody last looked.
    seen: AtomicU64,
}

impl Proxy {
    /// Starts one in front of an endpoint.
    pub async fn start(endpoint: &str) -> anyhow::Result<Self> {
        Self::start_beside(endpoint, None).await
    }

    /// Starts one in front of an endpoint whose answers name another one, too: clients shall come to that through its own
    /// proxy, which is given with the endpoint it is in front of.
    pub async fn start_beside(endpoint: &str, other: Option<(&str, &Self)>) -> anyhow::Result<Self> {
        let target: SocketAddr = endpoint.trim_start_matches("http://").parse()?;
        // Addresses in answers are exchanged in place, so both must have as many digits.
        let listener = loop {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            if listener.local_addr()?.to_string().len() == target.to_string().len() {
                break listener;
            }
        };
        let own = listener.local_addr()?;
        let mut names = vec![(target.to_string().into_bytes(), own.to_string().into_bytes())];
        if let Some((endpoint, proxy)) = other {
            let plain = |url: &str| url.trim_start_matches("http://").as_bytes().to_vec();
            names.push((plain(endpoint), plain(&proxy.endpoint)));
        }
        let names: Arc<[(Vec<u8>, Vec<u8>)]> = names.into();
        let connections: Arc<Mutex<Vec<Arc<Wire>>>> = Arc::default();
        let opened = connections.clone();
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(target).await else { return };
                let wire = Arc::new(Wire::default());
                opened.lock().unwrap_or_else(PoisonError::into_inner).push(wire.clone());
                tokio::spawn(carry(near, far, names.clone(), wire));
            }
        });
        Ok(Self { endpoint: format!("http://{own}"), connections, task })
    }

    /// Bytes that went through it in both directions.
    pub fn carried(&self) -> u64 {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes =
            |wire: &Arc<Wire>| wire.sent.load(Ordering::Relaxed) + wire.received.load(Ordering::Relaxed);
        connections.iter().map(bytes).sum()
    }

    /// Marks how far every connection has come.
    pub fn look(&self) {
        for wire in self.connections.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            wire.seen.store(wire.sent.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// From now on, the connection that has carried the most since the last look swallows everything.
    pub fn swallow_busiest(&self) -> anyhow::Result<()> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let carried = |wire: &Wire| wire.sent.load(Ordering::Relaxed) - wire.seen.load(Ordering::Relaxed);
        let busiest = connections.iter().max_by_key(|wire| carried(wire)).context("no connection")?;
        if carried(busiest) == 0 {
            bail!("no connection carried anything");
        }
        busiest.is_swallowing.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(near: TcpStream, far: TcpStream, names: Arc<[(Vec<u8>, Vec<u8>)]>, wire: Arc<Wire>) {
    if near.set_nodelay(true).and(far.set_nodelay(true)).is_err() {
        return;
    }
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let up = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = near_in.read(&mut buffer).await {
            wire.sent.fetch_add(n as u64, Ordering::Relaxed);
            let is_lost = wire.is_swallowing.load(Ordering::Relaxed);
            if !is_lost && far_out.write_all(&buffer[..n]).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = far_in.read(&mut buffer).await {
            wire.received.fetch_add(n as u64, Ordering::Relaxed);
            for (from, to) in names.iter() {
                exchange(&mut buffer[..n], from, to);
            }
            let is_lost = wire.is_swallowing.load(Ordering::Relaxed);
            if !is_lost && near_out.write_all(&buffer[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// Account documents name the server; clients shall come through the proxy.
fn exchange(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let mut at = 0;
    while at + from.len() <= bytes.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + from.len()].copy_from_slice(to);
        }
        at += 1;
    }
}
