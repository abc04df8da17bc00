//! HTTPS, HTTP/2 and how connections are told to leave, with clients that are not ours.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cosmos_emulator::{Config, Emulator, Fsync, Limits, Tls};
use cosmos_wire::signature::{Key, Signable};
use http::{Request, StatusCode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

fn trusting(pem: &str) -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    roots
}

fn port(endpoint: &str) -> u16 {
    endpoint.trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

async fn connect(
    endpoint: &str,
    name: &str,
    roots: rustls::RootCertStore,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(("127.0.0.1", port(endpoint))).await?;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// A signed `GET /dbs`.
fn question(endpoint: &str, emulator: &Emulator) -> Request<()> {
    let date = cosmos_wire::date::format(std::time::SystemTime::now());
    let key = Key::from_base64(emulator.key()).expect("a key");
    let token = key.authorization(&Signable::new("GET", "dbs", "", &date));
    Request::get(format!("{endpoint}dbs"))
        .header("x-ms-version", "2020-07-15")
        .header("x-ms-date", date)
        .header("authorization", token)
        .body(())
        .expect("a request")
}

struct H2 {
    sender: h2::client::SendRequest<Bytes>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl H2 {
    async fn over<T>(io: T) -> Self
    where
        T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = h2::client::handshake(io).await.expect("HTTP/2");
        Self { sender, connection: tokio::spawn(connection) }
    }

    async fn status(&mut self, request: Request<()>) -> Result<StatusCode, h2::Error> {
        let mut sender = self.sender.clone().ready().await?;
        let (answer, _) = sender.send_request(request, true)?;
        let answer = answer.await?;
        let status = answer.status();
        let mut body = answer.into_body();
        while let Some(data) = body.data().await {
            let data = data?;
            // The window grows again with what was read.
            let _ = body.flow_control().release_capacity(data.len());
        }
        Ok(status)
    }
}

#[tokio::test]
async fn a_client_that_trusts_the_exported_certificate_speaks_http2_or_http11() {
    let emulator = Emulator::start(Config::default().with_tls()).unwrap();
    let endpoint = emulator.endpoint();
    assert!(endpoint.starts_with("https://127.0.0.1:"), "{endpoint}");
    let roots = trusting(emulator.certificate().unwrap());
    for name in ["localhost", "127.0.0.1", "::1"] {
        let stream = connect(&endpoint, name, roots.clone(), &["h2", "http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut client = H2::over(stream).await;
        assert_eq!(client.status(question(&endpoint, &emulator)).await.unwrap(), 200);
    }
    let stream = connect(&endpoint, "localhost", roots, &["http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let host = endpoint.trim_start_matches("https://").trim_end_matches('/').to_owned();
    let request = question("/", &emulator).map(|()| http_body_util::Empty::<Bytes>::new());
    let request = {
        let (mut parts, body) = request.into_parts();
        parts.headers.insert("host", host.parse().unwrap());
        Request::from_parts(parts, body)
    };
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_account_advertises_https_under_tls() {
    let emulator = Emulator::start(Config::default().with_tls()).unwrap();
    let endpoint = emulator.endpoint();
    let stream = connect(&endpoint, "localhost", trusting(emulator.certificate().unwrap()), &["h2"]).await;
    let (mut sender, connection) = h2::client::handshake(stream.unwrap()).await.unwrap();
    tokio::spawn(connection);
    let date = cosmos_wire::date::format(std::time::SystemTime::now());
    let key = Key::from_base64(emulator.key()).unwrap();
    let request = Request::get(&endpoint)
        .header("x-ms-version", "2020-07-15")
        .header("x-ms-date", &date)
        .header("authorization", key.authorization(&Signable::new("GET", "", "", &date)))
        .body(())
        .unwrap();
    let answer = sender.send_request(request, true).unwrap().0.await.unwrap();
    let mut text = Vec::new();
    let mut body = answer.into_body();
    while let Some(data) = body.data().await {
        text.extend_from_slice(&data.unwrap());
    }
    let account: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(account["writableLocations"][0]["databaseAccountEndpoint"], endpoint);
}

#[tokio::test]
async fn a_client_that_does_not_trust_it_or_asks_for_another_name_is_not_served() {
    let config = Config { tls: Tls::Generated { names: vec!["cosmos.local".into()] }, ..Config::default() };
    let emulator = Emulator::start(config).unwrap();
    let endpoint = emulator.endpoint();
    let other = Emulator::start(Config::default().with_tls()).unwrap();
    let stranger = trusting(other.certificate().unwrap());
    assert!(connect(&endpoint, "localhost", stranger, &["h2"]).await.is_err());
    let roots = trusting(emulator.certificate().unwrap());
    assert!(connect(&endpoint, "elsewhere.local", roots.clone(), &["h2"]).await.is_err());
    assert!(connect(&endpoint, "cosmos.local", roots, &["h2"]).await.is_ok());
}

#[tokio::test]
async fn a_given_certificate_and_the_one_of_a_folder_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::default().with_tls().with_folder(folder.path(), Fsync::Off);
    let first = Emulator::start(config.clone()).unwrap();
    let pem = first.certificate().unwrap().to_owned();
    drop(first);
    let again = Emulator::start(config).unwrap();
    assert_eq!(again.certificate(), Some(pem.as_str()), "clients need not trust anew");
    let tls = Tls::Files {
        certificate: folder.path().join("tls/certificate.pem"),
        key: folder.path().join("tls/key.pem"),
    };
    let given = Emulator::start(Config { tls, ..Config::default() }).unwrap();
    connect(&given.endpoint(), "localhost", trusting(&pem), &["h2"]).await.unwrap();
}

#[tokio::test]
async fn a_connection_serves_twenty_streams() {
    let emulator = Emulator::start(Config::default().with_tls()).unwrap();
    let endpoint = emulator.endpoint();
    let roots = trusting(emulator.certificate().unwrap());
    let stream = connect(&endpoint, "localhost", roots, &["h2"]).await.unwrap();
    let mut client = H2::over(stream).await;
    client.status(question(&endpoint, &emulator)).await.unwrap();
    assert_eq!(client.sender.current_max_send_streams(), 20);
}

#[tokio::test]
async fn goaway_ends_connections_and_loses_no_answer() {
    let emulator = Emulator::start(Config::default().with_tls()).unwrap();
    let endpoint = emulator.endpoint();
    let roots = trusting(emulator.certificate().unwrap());
    let stream = connect(&endpoint, "localhost", roots.clone(), &["h2"]).await.unwrap();
    let mut client = H2::over(stream).await;
    client.status(question(&endpoint, &emulator)).await.unwrap();
    // A request that is held while the connection is told to leave.
    let hang = emulator.faults().add(
        cosmos_emulator::FaultRule::new(cosmos_emulator::Verdict::Hang)
            .on(cosmos_emulator::Operation::ListDatabases)
            .times(1),
    );
    let held =
        client.sender.clone().ready().await.unwrap().send_request(question(&endpoint, &emulator), true);
    let (held, _) = held.unwrap();
    while hang.struck() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(emulator.goaway(), 1);
    // The client learns of it: nothing new is sent on this connection.
    loop {
        match client.sender.clone().ready().await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break assert_eq!(error.reason(), Some(h2::Reason::NO_ERROR)),
        }
    }
    drop(hang);
    assert_eq!(held.await.unwrap().status(), 200);
    drop(client.sender);
    // The server may be gone before our last frame reaches it; what it owed has come.
    if let Err(error) = client.connection.await.unwrap() {
        assert!(error.is_io(), "{error}");
    }
    let again = connect(&endpoint, "localhost", roots, &["h2"]).await.unwrap();
    assert_eq!(H2::over(again).await.status(question(&endpoint, &emulator)).await.unwrap(), 200);
}

#[tokio::test]
async fn old_connections_are_told_to_leave() {
    // A connection that grows old before it has shown its protocol is closed without a word.
    let limits = Limits { connection_age_max: Some(Duration::from_secs(1)), ..Limits::default() };
    let emulator = Emulator::start(Config { limits, ..Config::default() }).unwrap();
    let endpoint = emulator.endpoint();
    let stream = TcpStream::connect(("127.0.0.1", port(&endpoint))).await.unwrap();
    let client = H2::over(stream).await;
    client.connection.await.unwrap().unwrap();
    // Those that are open already are measured by a new limit, too.
    emulator.limit_connection_age(None);
    let stream = TcpStream::connect(("127.0.0.1", port(&endpoint))).await.unwrap();
    let mut client = H2::over(stream).await;
    assert_eq!(client.status(question(&endpoint, &emulator)).await.unwrap(), 200);
    emulator.limit_connection_age(Some(Duration::from_millis(1)));
    client.connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cut_drops_connections_in_mid_request() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let endpoint = emulator.endpoint();
    let hang = emulator.faults().add(cosmos_emulator::FaultRule::new(cosmos_emulator::Verdict::Hang));
    let stream = TcpStream::connect(("127.0.0.1", port(&endpoint))).await.unwrap();
    let client = H2::over(stream).await;
    let mut sender = client.sender.clone().ready().await.unwrap();
    let (held, _) = sender.send_request(question(&endpoint, &emulator), true).unwrap();
    while hang.struck() == 0 {
        tokio::task::yield_now().await;
    }
    emulator.cut_connections();
    assert!(held.await.is_err());
}
