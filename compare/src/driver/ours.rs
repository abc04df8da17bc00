//! The contender that is ours.

use cosmos_driver::{
    Batch, CallOptions, Container, ContentResponse, Credential, Driver, ItemOptions, Negotiation,
    PartitionKey, Query, QueryOptions,
};

use super::client::{self, CONNECTIONS_MAX, Item, Operation, Protocol, QUERY, Row};

/// `cosmos-driver`.
pub struct Ours {
    container: Container,
}

impl Ours {
    /// Connects, with its defaults but for protocol and number of connections.
    pub async fn connect(endpoint: &str, protocol: Protocol, regions: &[&str]) -> anyhow::Result<Self> {
        let mut config = cosmos_driver::Config::default();
        config.connections.negotiation = match protocol {
            Protocol::Http1 => Negotiation::Http1Only,
            Protocol::Http2 => Negotiation::Http2Only,
        };
        config.sharding.connections_max = CONNECTIONS_MAX;
        let driver = Driver::builder(endpoint, Credential::emulator())
            .config(config)
            .preferred_regions(regions.iter().copied())
            .build()
            .await?;
        Ok(Self { container: driver.container("bench", "items")? })
    }

    /// One operation; says how many answers there were.
    pub async fn call(&self, operation: Operation, n: u64) -> anyhow::Result<u64> {
        let key = client::key(n);
        match operation {
            Operation::Read => {
                let read = self.container.read_item(key, &client::id(n), ItemOptions::default()).await?;
                Ok(u64::from(!read.into_body().is_empty()))
            }
            Operation::Upsert => {
                self.container.upsert_item(key, &Item::new(n), ItemOptions::default()).await?;
                Ok(1)
            }
            Operation::Batch => {
                let batch = Batch::new(key).with_content(ContentResponse::Minimal);
                let batch = client::batch(n).fold(batch, |batch, item| batch.upsert(&item));
                let done = self.container.batch(batch, CallOptions::default()).await?.into_result()?;
                Ok(done.results().len() as u64)
            }
            Operation::Query => {
                let query = Query::new(QUERY).with("@status", "open");
                let rows: Vec<Row> = self
                    .container
                    .query(query, PartitionKey::from(key), QueryOptions::default())
                    .collect()
                    .await?;
                Ok(rows.iter().filter(|row| !row.id.is_empty() && row.number < u64::MAX).count() as u64)
            }
        }
    }
}
