//! The container's documents as they are stored, for what the framework's interface does not show.

use cosmos_driver::{Container, ErrorKind, FeedRange, ItemOptions, PartitionKey, Query, QueryOptions, Scope};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::{Head, Partition, legible, text_of};
use crate::output::{plural, say};

/// The documents of one container.
#[derive(Debug, Clone)]
pub(crate) struct Documents {
    container: Container,
}

/// Rows of a query, and those that cannot be read.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) unreadable: Vec<Value>,
}

/// Says which instances are passed over because they cannot be read, and how to look at them.
pub(crate) fn tell_unreadable(rows: &[Value]) {
    let names: Vec<&str> = rows.iter().map(|row| text_of(row, "instanceId")).collect();
    if let Some(first) = names.first() {
        let shown: Vec<String> = names.iter().take(NAMED_MAX).map(|name| format!("{name:?}")).collect();
        let more = if names.len() > NAMED_MAX { ", …" } else { "" };
        say(format!(
            "{} cannot be read: {}{more}. `cdb why {first:?}` says why, `cdb fsck` finds all of them, \
             `cdb delete {first:?} --force` removes one",
            plural(names.len(), "instance"),
            shown.join(", ")
        ));
    }
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

    /// Rows of a query in every physical partition, one partition after the other: the order is that of the parts. Each
    /// is read as far as it can be.
    pub(crate) async fn query_all<T: DeserializeOwned>(&self, query: Query) -> anyhow::Result<Vec<T>> {
        Ok(self.raw(query).await?.iter().filter_map(legible).collect())
    }

    /// The same, with those that cannot be read as a whole apart.
    pub(crate) async fn query_strictly<T: DeserializeOwned>(&self, query: Query) -> anyhow::Result<Rows<T>> {
        let mut found = Rows { rows: Vec::new(), unreadable: Vec::new() };
        for row in self.raw(query).await? {
            match T::deserialize(&row) {
                Ok(read) => found.rows.push(read),
                Err(_) => found.unreadable.push(row),
            }
        }
        Ok(found)
    }

    async fn raw(&self, query: Query) -> anyhow::Result<Vec<Value>> {
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

    /// Rows of a query in one instance's partition, each read as far as it can be.
    pub(crate) async fn query<T: DeserializeOwned>(
        &self,
        partition: &str,
        query: Query,
    ) -> anyhow::Result<Vec<T>> {
        let scope = Scope::PartitionKey(PartitionKey::from(partition));
        let rows: Vec<Value> = self.container.query(query, scope, QueryOptions::default()).collect().await?;
        Ok(rows.iter().filter_map(legible).collect())
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

    /// Whether the head of an instance cannot be read as a whole.
    pub(crate) async fn is_unreadable(&self, partition: &str) -> anyhow::Result<bool> {
        let heads = Query::new("SELECT * FROM c WHERE c.type IN ('instance', 'deleting')");
        Ok(!Partition::new(self.query(partition, heads).await?).unreadable().is_empty())
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
/// So many instances are named in one sentence.
const NAMED_MAX: usize = 5;
