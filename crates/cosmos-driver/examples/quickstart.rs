//! A whole tour against the embedded emulator: `cargo run -p cosmos-driver --example quickstart`.

// An example talks to its reader.
#![allow(clippy::print_stdout)]

use cosmos_driver::{
    Batch, CallOptions, ContainerProperties, Credential, Driver, ErrorKind, ItemOptions, Patch, Query,
    QueryOptions, Scope,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    id: String,
    customer: String,
    total: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let emulator = cosmos_emulator::Emulator::start(cosmos_emulator::Config::default().with_partitions(4))?;
    let driver = Driver::builder(emulator.endpoint(), Credential::emulator()).build().await?;

    driver.create_database("shop", CallOptions::default()).await?;
    let properties = ContainerProperties::new("orders", &["/customer"]);
    driver.database("shop").create_container(&properties, None, CallOptions::default()).await?;
    let orders = driver.container("shop", "orders")?;

    for (n, customer) in ["ada", "bob", "ada", "cyd"].into_iter().enumerate() {
        let order = Order { id: n.to_string(), customer: customer.to_owned(), total: 10.0 * (n + 1) as f64 };
        let created = orders.create_item(customer, &order, ItemOptions::default()).await?;
        println!("created order {n} for {customer}: {} request units", created.charge());
    }

    let read = orders.read_item("bob", "1", ItemOptions::default()).await?;
    let etag = read.etag().unwrap_or_default().to_owned();
    println!("read {:?}", read.json::<Order>()?);

    let raise = Patch::new().increment("/total", 5);
    orders.patch_item("bob", "1", &raise, ItemOptions::default().with_if_match(&etag)).await?;
    let stale = orders.patch_item("bob", "1", &raise, ItemOptions::default().with_if_match(&etag)).await;
    assert_eq!(stale.expect_err("the order has changed").kind(), ErrorKind::PreconditionFailed);

    let batch = Batch::new("ada")
        .create(&Order { id: "9".to_owned(), customer: "ada".to_owned(), total: 1.0 })
        .patch("0", &Patch::new().set("/paid", true), None)
        .read("0");
    let done = orders.batch(batch, CallOptions::default()).await?.into_result()?;
    println!("batch of {}: {} request units", done.results().len(), done.charge());

    let query =
        Query::new("SELECT * FROM c WHERE c.total >= @least ORDER BY c.total DESC").with("@least", 10);
    let mut pages = orders.query(query, Scope::Container, QueryOptions::default());
    while let Some(page) = pages.next().await? {
        for order in page.items::<Order>()? {
            println!("{:>6} {}", order.total, order.customer);
        }
        println!("diagnostics: {}", page.diagnostics());
    }
    Ok(())
}
