//! The container's documents as they are stored, for what the framework's interface does not show.

use cosmos_driver::{Container, ErrorKind, FeedRange, ItemOptions, PartitionKey, Query, QueryOptions, Scope};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::Head;

/// The documents of one container.
#[derive(Debug, Clone)]
pub(crate) struct Documents {
    container: Container,
}

/// How a conditional or creating write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was done.
    Done,
    /// The document is there already, has changed, or is gone.
    Refused,
}

impl Documents {
    /// Of this container.
    pub(crate) fn new(container: Container) -> Self {
        Self { container }
    }

    /// Rows of a query in every physical partition, one partition after the other: the order is that of the parts.
    pub(crate) async fn query_all<T: DeserializeOwned>(&self, query: Query) -> anyhow::Result<Vec<T>> {
        let mut rows = Vec::new();
        for range in self.ranges().await? {
            rows.append(
                &mut self.container.query(query.clone(), range, QueryOptions::default()).collect().await?,
            );
        }
        Ok(rows)
    }

    /// The physical partitions.
    pub(crate) async fn ranges(&self) -> anyhow::Result<Vec<FeedRange>> {
        Ok(self.container.ranges(cosmos_driver::CallOptions::default()).await?)
    }

    /// Rows of a query, page by page.
    pub(crate) fn pages(&self, query: Query, scope: Scope) -> cosmos_driver::Pager {
        self.container.query(query, scope, QueryOptions::default().with_page_size(PAGE_ROWS))
    }

    /// Rows of a query in one instance's partition.
    pub(crate) async fn query<T: DeserializeOwned>(
        &self,
        partition: &str,
        query: Query,
    ) -> anyhow::Result<Vec<T>> {
        let scope = Scope::PartitionKey(PartitionKey::from(partition));
        Ok(self.container.query(query, scope, QueryOptions::default()).collect().await?)
    }

    /// Everything in one instance's partition.
    pub(crate) async fn partition(&self, partition: &str) -> anyhow::Result<Vec<Value>> {
        self.query(partition, Query::new("SELECT * FROM c")).await
    }

    /// Whether listings show an instance with this id.
    pub(crate) async fn is_instance(&self, partition: &str) -> anyhow::Result<bool> {
        let heads: Vec<Head> =
            self.query(partition, Query::new("SELECT * FROM c WHERE c.type = 'instance'")).await?;
        Ok(heads.iter().any(Head::is_visible))
    }

    /// The head of an instance, also while it is being deleted.
    pub(crate) async fn head(&self, partition: &str) -> anyhow::Result<Option<Head>> {
        let heads = Query::new("SELECT * FROM c WHERE c.type IN ('instance', 'deleting')");
        Ok(self.query(partition, heads).await?.into_iter().next())
    }

    /// One document.
    pub(crate) async fn read(&self, partition: &str, id: &str) -> anyhow::Result<Option<Value>> {
        match self.container.read_item(partition, id, ItemOptions::default()).await {
            Ok(response) => Ok(Some(response.json()?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a document.
    pub(crate) async fn create(&self, partition: &str, document: &Value) -> anyhow::Result<Written> {
        written(self.container.create_item(partition, document, ItemOptions::default()).await)
    }

    /// Replaces a document that still has this ETag.
    pub(crate) async fn replace(
        &self,
        partition: &str,
        id: &str,
        document: &Value,
        etag: &str,
    ) -> anyhow::Result<Written> {
        let options = ItemOptions::default().with_if_match(etag);
        written(self.container.replace_item(partition, id, document, options).await)
    }

    /// Deletes a document that still has this ETag.
    pub(crate) async fn delete(&self, partition: &str, id: &str, etag: &str) -> anyhow::Result<Written> {
        let options = ItemOptions::default().with_if_match(etag);
        written(self.container.delete_item(partition, id, options).await)
    }
}

fn written(outcome: Result<cosmos_driver::Response, cosmos_driver::Error>) -> anyhow::Result<Written> {
    match outcome {
        Ok(_) => Ok(Written::Done),
        Err(error) => match error.kind() {
            ErrorKind::Conflict | ErrorKind::PreconditionFailed | ErrorKind::NotFound => Ok(Written::Refused),
            _ => Err(error.into()),
        },
    }
}

/// Rows asked for at once; the service cuts pages at 4 MB anyway.
const PAGE_ROWS: u32 = 500;
