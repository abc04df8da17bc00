//! A transport of your own: one that writes down every request and hands it on, here to an account in this process.
//!
//! ```sh
//! cargo run -p cosmos-driver --example transport
//! ```
#![allow(clippy::print_stdout)] // Examples talk to people.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cosmos_driver::{
    CallOptions, ContainerProperties, Credential, CustomTransport, Driver, Exchange, ItemOptions,
    TransportError,
};
use cosmos_emulator::{Config, Emulator};
use http::Request;
use serde_json::json;

/// Prints what goes by.
#[derive(Debug)]
struct Recorder {
    account: Arc<Emulator>,
}

impl CustomTransport for Recorder {
    fn send(&self, request: Request<Bytes>) -> Exchange<'_> {
        Box::pin(async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let begun = Instant::now();
            // Whoever does not know whether the request arrived must say so: the driver decides by it what it may repeat.
            let answer = self.account.handle(request).await;
            let answer = answer.map_err(|_| TransportError::interrupted("the connection was reset"))?;
            println!("{method} {path}: {} after {:?}", answer.status(), begun.elapsed());
            Ok(answer)
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let account = Arc::new(Emulator::open(Config::default())?);
    let driver = Driver::builder("http://account.test/", Credential::emulator())
        .transport(Recorder { account })
        .build()
        .await?;
    driver.create_database("shop", CallOptions::default()).await?;
    let orders = ContainerProperties::new("orders", &["/customer"]);
    driver.database("shop").create_container(&orders, None, CallOptions::default()).await?;
    let orders = driver.container("shop", "orders")?;
    let order = json!({ "id": "1", "customer": "ada" });
    let created = orders.create_item("ada", &order, ItemOptions::default()).await?;
    println!("{}", created.diagnostics());
    Ok(())
}
