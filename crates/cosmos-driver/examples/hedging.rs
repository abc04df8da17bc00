//! Hedging, watched: the first region turns slow, the second answers instead.
//! `cargo run -p cosmos-driver --example hedging`.

// An example talks to its reader.
#![allow(clippy::print_stdout)]
// Only part of the make-believe account is used here.
#![allow(dead_code)]

#[path = "../tests/it/world.rs"]
mod world;

use std::time::Duration;

use cosmos_driver::{CallOptions, HedgingMode, ItemOptions};
use serde_json::json;
use world::{Mood, World};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let account = World::start(&["East US", "West US"]).await;
    let driver = account.builder().build().await?;
    let items = driver.container("db", "items")?;
    items.create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await?;
    for _ in 0..50 {
        items.read_item("p", "1", ItemOptions::default()).await?;
    }
    println!("-- East US turns slow");
    account.mood(0, Mood::Slow(Duration::from_millis(400)));
    for hedging in [HedgingMode::Off, HedgingMode::default()] {
        let options = ItemOptions::from(CallOptions::default().with_hedging(hedging));
        let read = items.read_item("p", "1", options).await?;
        println!("{hedging:?}: {:?}\n  {}", read.diagnostics().elapsed(), read.diagnostics());
    }
    Ok(())
}
