//! Serves the in-memory emulator of the Rust driver on a free port, over HTTP/1.1 and HTTP/2, in the form its own
//! tests reach it: one region, no keys checked. Prints the same ready line as `cdb emulator` does.

use std::convert::Infallible;
use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;

use azure_core::http::headers::{HeaderName, HeaderValue};
use azure_core::http::{Method, Request};
use azure_data_cosmos_driver::in_memory_emulator::{InMemoryEmulatorHttpClient, VirtualAccountConfig, VirtualRegion};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use url::Url;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Url::parse(&format!("http://{}/", listener.local_addr()?))?;
    let region = VirtualRegion::new("East US", endpoint.clone());
    let emulator = Arc::new(InMemoryEmulatorHttpClient::try_new(VirtualAccountConfig::new(vec![region])?)?);
    let ready = serde_json::json!({
        "event": "ready",
        "accountEndpoint": endpoint.as_str(),
        "managementEndpoint": null,
        "regions": [{"name": "East US", "gatewayEndpoint": endpoint.as_str()}],
    });
    println!("{ready}");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (emulator, endpoint) = (Arc::clone(&emulator), endpoint.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&emulator), endpoint.clone(), request));
            // A client that goes away in the middle of a request is no failure of the server.
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// One request; what the emulator cannot answer at all is a 500 with its message.
async fn answer(
    emulator: Arc<InMemoryEmulatorHttpClient>,
    endpoint: Url,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let response = match forward(&emulator, &endpoint, request).await {
        Ok(response) => response,
        Err(failure) => {
            let mut response = hyper::Response::new(Full::from(failure.to_string()));
            *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
    };
    Ok(response)
}

async fn forward(
    emulator: &InMemoryEmulatorHttpClient,
    endpoint: &Url,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Failure> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut inner = Request::new(endpoint.join(path)?, Method::from_str(head.method.as_str())?);
    for (name, value) in &head.headers {
        let (name, value) = (name.as_str().to_owned(), value.to_str()?.to_owned());
        inner.headers_mut().insert(HeaderName::from(name), HeaderValue::from(value));
    }
    let bytes = body.collect().await?.to_bytes();
    if !bytes.is_empty() {
        inner.set_body(bytes.to_vec());
    }
    let raw = emulator.execute_request(&inner).await?.try_into_raw_response().await?;
    let mut response = hyper::Response::builder().status(u16::from(raw.status()));
    for (name, value) in raw.headers().iter() {
        response = response.header(name.as_str(), value.as_str());
    }
    let bytes: &[u8] = raw.body().as_ref();
    Ok(response.body(Full::from(Bytes::copy_from_slice(bytes)))?)
}
