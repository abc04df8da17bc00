//! Something between driver and service: a proxy that can swallow bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cosmos_driver::{Builder, Credential, Driver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

/// A proxy whose connections can be made to swallow everything, without closing.
pub(crate) struct Hole {
    address: SocketAddr,
    swallowing: Arc<std::sync::Mutex<Vec<Arc<AtomicBool>>>>,
    open: Arc<AtomicUsize>,
    refusing: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Hole {
    pub(crate) async fn in_front_of(endpoint: &str) -> Self {
        let target: SocketAddr =
            endpoint.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let swallowing: Arc<std::sync::Mutex<Vec<Arc<AtomicBool>>>> = Arc::default();
        let open: Arc<AtomicUsize> = Arc::default();
        let refusing: Arc<AtomicBool> = Arc::default();
        let refused: Arc<AtomicUsize> = Arc::default();
        let (flags, count) = (swallowing.clone(), open.clone());
        let (refuses, refusals) = (refusing.clone(), refused.clone());
        tokio::spawn(async move {
            loop {
                let Ok((near, _)) = listener.accept().await else { return };
                if refuses.load(Ordering::SeqCst) {
                    refusals.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let flag = Arc::new(AtomicBool::new(false));
                flags.lock().expect("not poisoned").push(flag.clone());
                count.fetch_add(1, Ordering::SeqCst);
                let count = count.clone();
                tokio::spawn(async move {
                    carry(near, far, target, address, flag).await;
                    count.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, swallowing, open, refusing, refused }
    }

    /// A driver that sees only the proxy: account documents are rewritten on their way.
    pub(crate) fn builder(&self) -> Builder {
        Driver::builder(format!("http://{}/", self.address), Credential::emulator())
    }

    pub(crate) fn swallow_open_connections(&self) {
        for flag in self.swallowing.lock().expect("not poisoned").iter() {
            flag.store(true, Ordering::SeqCst);
        }
    }

    /// From now on new connections are closed as soon as they are made.
    pub(crate) fn refuse_new_connections(&self) {
        self.refusing.store(true, Ordering::SeqCst);
    }

    /// How many were.
    pub(crate) fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

async fn carry(
    near: TcpStream,
    far: TcpStream,
    target: SocketAddr,
    own: SocketAddr,
    swallow: Arc<AtomicBool>,
) {
    let (mut near_in, near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let near_out = Arc::new(Mutex::new(near_out));
    let flag = swallow.clone();
    let up = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n) = near_in.read(&mut buffer).await {
            if n == 0 {
                return;
            }
            if !flag.load(Ordering::SeqCst) && far_out.write_all(&buffer[..n]).await.is_err() {
                return;
            }
        }
    };
    let down = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n) = far_in.read(&mut buffer).await {
            if n == 0 {
                return;
            }
            let bytes = readdressed(&buffer[..n], target, own);
            if !swallow.load(Ordering::SeqCst) && near_out.lock().await.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// Both ports have five digits, so an address can be exchanged without moving anything.
fn readdressed(bytes: &[u8], target: SocketAddr, own: SocketAddr) -> Vec<u8> {
    let (from, to) = (target.to_string().into_bytes(), own.to_string().into_bytes());
    if from.len() != to.len() {
        return bytes.to_vec();
    }
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while at + from.len() <= bytes.len() {
        if bytes[at..at + from.len()] == from[..] {
            bytes[at..at + from.len()].copy_from_slice(&to);
        }
        at += 1;
    }
    bytes
}
