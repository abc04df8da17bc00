//! Hedging, watched live: the first of two regions becomes slow, and the second is asked as well.
//!
//! `cargo run -p cosmos-driver --example hedging`

#![allow(clippy::print_stdout)] // Examples talk to people.

use std::time::Duration;

use cosmos_driver::{CallOptions, ContainerProperties, Credential, Driver, ItemOptions};
use cosmos_emulator::{Config, Emulator, FaultRule, Operation, Verdict};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let emulator = Emulator::start(Config::default().with_regions(&["East US", "West US"]))?;
    let driver = Driver::builder(emulator.endpoint(), Credential::emulator())
        .preferred_regions(["East US", "West US"])
        .build()
        .await?;
    driver.create_database("shop", CallOptions::default()).await?;
    let orders = ContainerProperties::new("orders", &["/customer"]);
    driver.database("shop").create_container(&orders, None, CallOptions::default()).await?;
    let orders = driver.container("shop", "orders")?;
    let order = json!({ "id": "1", "customer": "ada" });
    orders.create_item("ada", &order, ItemOptions::default()).await?;
    for _ in 0..50 {
        orders.read_item("ada", "1", ItemOptions::default()).await?;
    }
    let read = orders.read_item("ada", "1", ItemOptions::default()).await?;
    println!("all is well:        {}", read.diagnostics());

    let slow = Verdict::Delay { duration: Duration::from_millis(400) };
    let mut rule = FaultRule::new(slow).on(Operation::ReadItem);
    rule.region = Some("East US".to_owned());
    let _slow = emulator.faults().add(rule);
    for n in 1..=7 {
        let read = orders.read_item("ada", "1", ItemOptions::default()).await?;
        let how = if read.diagnostics().is_hedged() { "hedged" } else { "straight to West US" };
        println!("East US is slow, {n}: {how} {}", read.diagnostics());
    }
    Ok(())
}
