//! Failover, watched live: a region goes down and comes back, and the write region moves, while items are read and
//! written.
//!
//! `cargo run -p cosmos-driver --example failover`

#![allow(clippy::print_stdout)] // Examples talk to people.

use std::time::Duration;

use cosmos_driver::{
    CallOptions, Container, ContainerProperties, Credential, Driver, ItemOptions, Response, Timeouts,
};
use cosmos_emulator::{Config, Emulator, Failover, Offline};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let emulator = Emulator::start(Config::default().with_regions(&["East US", "West US"]))?;
    // A minute is right for a cloud; here it would be long to watch.
    let timeouts = Timeouts { endpoint_unavailable: Duration::from_millis(500), ..Timeouts::default() };
    let driver = Driver::builder(emulator.endpoint(), Credential::emulator())
        .preferred_regions(["East US", "West US"])
        .timeouts(timeouts)
        .build()
        .await?;
    driver.create_database("shop", CallOptions::default()).await?;
    let orders = ContainerProperties::new("orders", &["/customer"]);
    driver.database("shop").create_container(&orders, None, CallOptions::default()).await?;
    let orders = driver.container("shop", "orders")?;
    show("both regions are up", &driver, &orders).await?;

    emulator.regions().fail_over("West US", Failover::Planned)?;
    show("writes have moved to West US", &driver, &orders).await?;

    emulator.regions().take_offline("East US", Offline::Refuse)?;
    show("East US refuses connections", &driver, &orders).await?;
    show("and is avoided", &driver, &orders).await?;

    emulator.regions().bring_online("East US")?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    show("East US is back", &driver, &orders).await?;
    Ok(())
}

async fn show(what: &str, driver: &Driver, orders: &Container) -> Result<(), cosmos_driver::Error> {
    println!("{what}:");
    let order = json!({ "id": "1", "customer": "ada" });
    let written = orders.upsert_item("ada", &order, ItemOptions::default()).await?;
    let read = orders.read_item("ada", "1", ItemOptions::default()).await?;
    println!("  write {}", path(&written));
    println!("  read  {}", path(&read));
    println!(
        "  the driver writes to {:?} and reads from {:?}",
        driver.write_regions(),
        driver.read_regions()
    );
    Ok(())
}

/// The regions an operation went through.
fn path(response: &Response) -> String {
    let steps = response.diagnostics().attempts().iter().map(|attempt| {
        let result = match (&attempt.status, &attempt.error) {
            (Some(status), _) => status.to_string(),
            (None, Some(error)) => error.to_string(),
            (None, None) => "no answer".to_owned(),
        };
        format!("{} ({result})", attempt.region)
    });
    steps.collect::<Vec<_>>().join(" → ")
}
