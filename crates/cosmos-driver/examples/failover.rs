//! Failover, watched: two regions, the first goes away and comes back.
//! `cargo run -p cosmos-driver --example failover`.

// An example talks to its reader.
#![allow(clippy::print_stdout)]
// Only part of the make-believe account is used here.
#![allow(dead_code)]

#[path = "../tests/it/world.rs"]
mod world;

use std::time::Duration;

use cosmos_driver::{ItemOptions, Timeouts};
use serde_json::json;
use world::World;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut account = World::start(&["East US", "West US"]).await;
    let timeouts = Timeouts { endpoint_unavailable: Duration::from_secs(1), ..Timeouts::default() };
    let driver = account.builder().timeouts(timeouts).build().await?;
    let items = driver.container("db", "items")?;
    items.create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await?;
    for second in 0..6 {
        match second {
            1 => {
                println!("-- East US goes away");
                account.down(0).await;
            }
            3 => {
                println!("-- East US is back");
                account.up(0).await;
            }
            _ => {}
        }
        let read = items.read_item("p", "1", ItemOptions::default()).await?;
        println!("{second} s: {}", read.diagnostics());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
