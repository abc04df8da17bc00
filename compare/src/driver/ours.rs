//! The contender that is ours.

use cosmos_driver::{
    Batch, CallOptions, ChangeFeedStart, Container, ContentResponse, Credential, Driver, ItemOptions,
    Negotiation, PartitionKey, Query, QueryOptions, Scope,
};

use super::client::{self, CONNECTIONS_MAX, ITEMS, Item, KEYS, Operation, Protocol, QUERY, Row, SORTED};

/// `cosmos-driver`.
pub struct Ours {
    container: Container,
}

impl Ours {
    /// Connects, with its defaults but for protocol and number of connections.
    pub async fn connect(endpoint: &str, protocol: Protocol, regions: &[&str]) -> anyhow::Result<Self> {
        Self::connect_by(endpoint, protocol, regions, false).await
    }

    /// The same, by Gateway 2.0 or not.
    pub async fn connect_by(
        endpoint: &str,
        protocol: Protocol,
        regions: &[&str],
        is_gateway2: bool,
    ) -> anyhow::Result<Self> {
        let mut config = cosmos_driver::Config::default();
        config.connections.negotiation = match protocol {
            Protocol::Http1 => Negotiation::Http1Only,
            Protocol::Http2 => Negotiation::Http2Only,
        };
        config.sharding.connections_max = CONNECTIONS_MAX;
        config.connections.gateway2 = is_gateway2;
        let driver = Driver::builder(endpoint, Credential::emulator())
            .config(config)
            .preferred_regions(regions.iter().copied())
            .build()
            .await?;
        while is_gateway2 && driver.gateway2_in_use().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
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
            Operation::Sorted => {
                let rows: Vec<Row> =
                    self.container.query(SORTED, Scope::Container, QueryOptions::default()).collect().await?;
                Ok(client::in_order(&rows))
            }
            Operation::Changes => {
                let start = ChangeFeedStart::Beginning;
                let mut feed = self.container.change_feed(Scope::Container, start, CallOptions::default());
                let mut seen = 0;
                while seen < KEYS * ITEMS {
                    seen += feed.next().await?.items::<Row>()?.len() as u64;
                }
                Ok(seen)
            }
        }
    }
}
