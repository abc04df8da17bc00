//! The way to the endpoint: proxies and the address that connections come from.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cosmos_driver::{
    CallOptions, Connections, Credential, Driver, Error, ErrorKind, Negotiation, Protocol, Proxy, ProxyServer,
};
use cosmos_emulator::{Config, Emulator};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A proxy that opens tunnels, all of them to one place, and writes down what it was asked.
struct TestProxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    server: JoinHandle<()>,
}

impl TestProxy {
    /// `credentials` is what it wants in `Proxy-Authorization`.
    async fn to(target: SocketAddr, credentials: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = asked.clone();
        let server = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let heard = heard.clone();
                tokio::spawn(async move { tunnel(client, target, credentials, &heard).await });
            }
        });
        Self { address, asked, server }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn tunnel(
    mut client: TcpStream,
    target: SocketAddr,
    credentials: Option<&str>,
    heard: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    heard.lock().expect("not poisoned").push(head.lines().next().unwrap_or_default().to_owned());
    let is_welcome = credentials.is_none_or(|wanted| {
        head.lines().any(|line| line.strip_prefix("Proxy-Authorization: ") == Some(wanted))
    });
    if !is_welcome {
        client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await.ok()?;
        return None;
    }
    let mut server = TcpStream::connect(target).await.ok()?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n").await.ok()?;
    copy_bidirectional(&mut client, &mut server).await.ok()?;
    Some(())
}

fn socket_of(emulator: &Emulator) -> SocketAddr {
    let endpoint = emulator.endpoint();
    let (_, authority) = endpoint.trim_end_matches('/').split_once("://").expect("a URL");
    authority.replace("localhost", "127.0.0.1").parse().expect("an address")
}

async fn through(proxy: ProxyServer, endpoint: &str, negotiation: Negotiation) -> Result<Driver, Error> {
    let connections = Connections {
        proxy: Proxy::Through(proxy),
        negotiation,
        connect_timeout: Duration::from_secs(20),
        ..Connections::default()
    };
    Driver::builder(endpoint, Credential::emulator()).connections(connections).build().await
}

#[tokio::test]
async fn an_endpoint_that_only_a_proxy_knows_is_reached_through_its_tunnel() {
    for (negotiation, protocol) in
        [(Negotiation::Adaptive, Protocol::Http2), (Negotiation::Http1Only, Protocol::Http1)]
    {
        let emulator = Emulator::start(Config::default()).expect("it starts");
        let target = socket_of(&emulator);
        let proxy = TestProxy::to(target, Some("Basic YWRhOnNAY3JldA==")).await;
        let server = ProxyServer::new(&format!("http://ada:s%40cret@{}", proxy.address)).expect("a proxy");
        // The emulator names its regions by the host that it was asked by, so all requests go to that name.
        let endpoint = format!("http://cosmos.test:{}/", target.port());
        let driver = through(server, &endpoint, negotiation).await.expect("nobody else knows the name");
        driver.create_database("db", CallOptions::default()).await.expect("created");
        assert_eq!(driver.connections()[0].protocol, Some(protocol));
        let asked = proxy.asked();
        let wanted = format!("CONNECT cosmos.test:{} HTTP/1.1", target.port());
        assert!(!asked.is_empty() && asked.iter().all(|line| *line == wanted), "{asked:?}");
    }
}

#[tokio::test]
async fn tls_goes_through_the_tunnel_to_the_endpoint() {
    let emulator = Emulator::start(Config::default().with_tls()).expect("it starts");
    let proxy = TestProxy::to(socket_of(&emulator), None).await;
    let server = ProxyServer::new(&format!("http://{}", proxy.address)).expect("a proxy");
    let driver = through(server, &emulator.endpoint(), Negotiation::Adaptive).await.expect("it answers");
    assert_eq!(driver.connections()[0].protocol, Some(Protocol::Http2), "agreed with the endpoint, by ALPN");
    assert!(!proxy.asked().is_empty());
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_and_its_password_is_not() {
    let emulator = Emulator::start(Config::default()).expect("it starts");
    let proxy = TestProxy::to(socket_of(&emulator), Some("Basic nobody")).await;
    let server = ProxyServer::new(&format!("http://ada:secret@{}", proxy.address)).expect("a proxy");
    let error = through(server, "http://cosmos.test:1/", Negotiation::Adaptive).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Connection);
    let text = format!("{error} {error:?}");
    assert!(
        text.contains("wants a user and password") && text.contains(&proxy.address.to_string()),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn excepted_endpoints_are_reached_without_the_proxy() {
    let emulator = Emulator::start(Config::default()).expect("it starts");
    let proxy = TestProxy::to(socket_of(&emulator), None).await;
    let server = ProxyServer::new(&format!("http://{}", proxy.address)).expect("a proxy");
    let server = server.except(["127.0.0.0/8", "localhost"]);
    through(server, &emulator.endpoint(), Negotiation::Adaptive).await.expect("straight");
    assert_eq!(proxy.asked(), Vec::<String>::new());
}

/// Only Linux has all of 127.0.0.0/8 on its loopback.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_come_from_the_local_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}/", listener.local_addr().expect("bound"));
    let local = std::net::IpAddr::from([127, 0, 0, 7]);
    let connections = Connections {
        local_address: Some(local),
        connect_timeout: Duration::from_secs(1),
        ..Connections::default()
    };
    let building =
        tokio::spawn(Driver::builder(endpoint, Credential::emulator()).connections(connections).build());
    let (_, peer) = listener.accept().await.expect("somebody comes");
    assert_eq!(peer.ip(), local);
    building.abort();
}
