//! The official driver, from the registry.

use anyhow::{Context, ensure};
use azure_data_cosmos::options::{ChangeFeedStartFrom, ConnectionPoolOptions, Region};
use azure_data_cosmos::{
    AccountReference, ContainerClient, CosmosClient, CosmosRuntime, FeedScope, Query, RoutingStrategy,
    TransactionalBatch,
};
use futures::{StreamExt, TryStreamExt};

use super::client::{self, CONNECTIONS_MAX, ITEMS, Item, KEYS, Operation, Protocol, QUERY, Row, SORTED};

/// `azure_data_cosmos`.
pub struct Official {
    container: ContainerClient,
}

impl Official {
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
        let pool = ConnectionPoolOptions::builder()
            .with_is_http2_allowed(protocol == Protocol::Http2)
            .with_max_http2_connections_per_endpoint(CONNECTIONS_MAX)
            .with_gateway_v2_disabled(!is_gateway2)
            .build()?;
        let runtime = CosmosRuntime::builder().with_connection_pool(pool).build().await?;
        let account = AccountReference::with_authentication_key(endpoint.parse()?, cosmos_wire::EMULATOR_KEY);
        let regions = regions.iter().map(|name| Region::from((*name).to_owned())).collect();
        let client = CosmosClient::builder()
            .with_runtime(runtime)
            .build(account, RoutingStrategy::PreferredRegions(regions))
            .await?;
        Ok(Self { container: client.database_client("bench").container_client("items", None).await? })
    }

    /// One operation; says how many answers there were.
    pub async fn call(&self, operation: Operation, n: u64) -> anyhow::Result<u64> {
        let key = client::key(n);
        match operation {
            Operation::Read => {
                let read = self.container.read_item(key, &client::id(n), None).await?;
                Ok(u64::from(!read.into_body().single()?.is_empty()))
            }
            Operation::Upsert => {
                self.container.upsert_item(key, &client::id(n), &Item::new(n), None).await?;
                Ok(1)
            }
            Operation::Batch => {
                let mut batch = TransactionalBatch::new(key);
                for item in client::batch(n) {
                    batch = batch.upsert_item(&item, None)?;
                }
                let done = self.container.execute_transactional_batch(batch, None).await?.into_model()?;
                ensure!(done.results().iter().all(|result| result.is_success()), "a batch failed");
                Ok(done.results().len() as u64)
            }
            Operation::Query => {
                let query = Query::from(QUERY).with_parameter("@status", "open")?;
                let rows = self.container.query_items::<Row>(query, FeedScope::partition(key), None).await?;
                let rows: Vec<Row> = rows.try_collect().await?;
                Ok(rows.iter().filter(|row| !row.id.is_empty() && row.number < u64::MAX).count() as u64)
            }
            Operation::Sorted => {
                let query = Query::from(SORTED);
                let rows =
                    self.container.query_items::<Row>(query, FeedScope::full_container(), None).await?;
                Ok(client::in_order(&rows.try_collect::<Vec<Row>>().await?))
            }
            Operation::Changes => {
                let (scope, start) = (FeedScope::full_container(), ChangeFeedStartFrom::Beginning);
                let mut pages = self.container.query_change_feed::<Row>(scope, start, None).await?;
                let mut seen = 0;
                while seen < KEYS * ITEMS {
                    seen += pages.next().await.context("the feed goes on")??.items().len() as u64;
                }
                Ok(seen)
            }
        }
    }
}
