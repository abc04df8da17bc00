//! Containers: their definition and their items.

pub(crate) mod properties;

use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::epk::Epk;
use cosmos_wire::partition_key::PartitionKey;
use cosmos_wire::resource::ResourceKind;
use http::HeaderValue;
use serde::{Deserialize, Serialize};

use crate::batch::{Batch, BatchResponse};
use crate::body::json;
use crate::change_feed::{ChangeFeed, ChangeFeedStart};
use crate::database::Database;
use crate::driver::Driver;
use crate::error::Error;
use crate::limits;
use crate::metadata::container::{ContainerCell, path_of};
use crate::operation::{Call, run};
use crate::options::{CallOptions, ContentResponse, ItemOptions};
use crate::patch::Patch;
use crate::query::{Pager, Query, QueryOptions, Scope};
use crate::request::{Kind, Operation, Target};
use crate::response::Response;
use properties::ContainerProperties;

/// A container by name.
#[derive(Clone, Debug)]
pub struct Container {
    driver: Driver,
    cell: Arc<ContainerCell>,
}

/// A part of the key space that one physical partition holds, or held when it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedRange {
    /// The range's id; a hint, since splits change it.
    pub id: String,
    /// Lower bound of the effective partition key, inclusive, in hexadecimal.
    pub min: String,
    /// Upper bound, exclusive.
    pub max: String,
}

/// What can be sent as an item: any value that serializes, or JSON bytes as they are.
pub trait ToBody {
    /// The JSON text.
    ///
    /// # Errors
    /// When the value cannot be written as JSON.
    fn to_body(self) -> Result<Bytes, Error>;

    /// Appends the JSON text, without a buffer of its own where that can be.
    ///
    /// # Errors
    /// When the value cannot be written as JSON; what was appended until then stays.
    fn append_body(self, out: &mut Vec<u8>) -> Result<(), Error>
    where
        Self: Sized,
    {
        out.extend_from_slice(&self.to_body()?);
        Ok(())
    }
}

impl<T: Serialize + ?Sized> ToBody for &T {
    fn to_body(self) -> Result<Bytes, Error> {
        json(&self)
    }

    fn append_body(self, out: &mut Vec<u8>) -> Result<(), Error> {
        serde_json::to_writer(out, self)
            .map_err(|e| Error::serialization("the value cannot be written as JSON", e))
    }
}

impl ToBody for Bytes {
    fn to_body(self) -> Result<Bytes, Error> {
        Ok(self)
    }
}

impl Container {
    pub(crate) fn new(driver: Driver, cell: Arc<ContainerCell>) -> Self {
        Self { driver, cell }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.cell.id
    }

    /// The name of its database.
    #[must_use]
    pub fn database_id(&self) -> &str {
        &self.cell.database
    }

    /// Its database.
    #[must_use]
    pub fn database(&self) -> Database {
        self.driver.database(&self.cell.database)
    }

    /// Reads its definition.
    ///
    /// # Errors
    /// As any operation.
    pub async fn read(&self, options: CallOptions) -> Result<Response, Error> {
        let operation = self.cell.operation(Kind::ReadContainer, ResourceKind::Container, &self.cell.path);
        self.run(operation, &Call::start(&self.driver.core, &options)).await
    }

    /// Replaces its definition: indexing policy, time to live and the like.
    ///
    /// # Errors
    /// As any operation.
    pub async fn replace(
        &self,
        properties: &ContainerProperties,
        options: CallOptions,
    ) -> Result<Response, Error> {
        let mut operation =
            self.cell.operation(Kind::ReplaceContainer, ResourceKind::Container, &self.cell.path);
        operation.body = json(properties)?;
        self.run(operation, &Call::start(&self.driver.core, &options)).await
    }

    /// Deletes it with all its items.
    ///
    /// # Errors
    /// As any operation.
    pub async fn delete(&self, options: CallOptions) -> Result<Response, Error> {
        let operation = self.cell.operation(Kind::DeleteContainer, ResourceKind::Container, &self.cell.path);
        let response = self.run(operation, &Call::start(&self.driver.core, &options)).await?;
        self.forget();
        Ok(response)
    }

    /// The physical partitions, in the order of the key space.
    ///
    /// # Errors
    /// As any operation.
    pub async fn ranges(&self, options: CallOptions) -> Result<Vec<FeedRange>, Error> {
        let call = Call::start(&self.driver.core, &options);
        let info = self.cell.info(&self.driver.core, &call).await?;
        let seen = info.ranges.load_full();
        call.within(self.cell.refresh_ranges(&self.driver.core, &call, &info, &seen)).await?;
        let ranges = info.ranges.load();
        Ok(ranges
            .all()
            .iter()
            .map(|range| FeedRange {
                id: range.id.to_string(),
                min: range.bounds.min.to_hex(),
                max: range.bounds.max.to_hex(),
            })
            .collect())
    }

    /// Creates an item; an existing one with its id is a conflict.
    ///
    /// # Errors
    /// As any operation.
    pub async fn create_item(
        &self,
        key: impl Into<PartitionKey>,
        item: impl ToBody,
        options: ItemOptions,
    ) -> Result<Response, Error> {
        let body = item.to_body()?;
        check_own_id(&body)?;
        self.item(Kind::CreateItem, &key.into(), None, body, &options).await
    }

    /// Creates an item or replaces the one with its id.
    ///
    /// # Errors
    /// As any operation.
    pub async fn upsert_item(
        &self,
        key: impl Into<PartitionKey>,
        item: impl ToBody,
        options: ItemOptions,
    ) -> Result<Response, Error> {
        let body = item.to_body()?;
        check_own_id(&body)?;
        self.item(Kind::UpsertItem, &key.into(), None, body, &options).await
    }

    /// Reads an item.
    ///
    /// # Errors
    /// As any operation; a missing item is [`crate::ErrorKind::NotFound`].
    pub async fn read_item(
        &self,
        key: impl Into<PartitionKey>,
        id: &str,
        options: ItemOptions,
    ) -> Result<Response, Error> {
        self.item(Kind::ReadItem, &key.into(), Some(id), Bytes::new(), &options).await
    }

    /// Replaces an item that exists.
    ///
    /// # Errors
    /// As any operation.
    pub async fn replace_item(
        &self,
        key: impl Into<PartitionKey>,
        id: &str,
        item: impl ToBody,
        options: ItemOptions,
    ) -> Result<Response, Error> {
        self.item(Kind::ReplaceItem, &key.into(), Some(id), item.to_body()?, &options).await
    }

    /// Deletes an item.
    ///
    /// # Errors
    /// As any operation.
    pub async fn delete_item(
        &self,
        key: impl Into<PartitionKey>,
        id: &str,
        options: ItemOptions,
    ) -> Result<Response, Error> {
        self.item(Kind::DeleteItem, &key.into(), Some(id), Bytes::new(), &options).await
    }

    /// Changes parts of an item.
    ///
    /// # Errors
    /// As any operation.
    pub async fn patch_item(
        &self,
        key: impl Into<PartitionKey>,
        id: &str,
        patch: &Patch,
        options: ItemOptions,
    ) -> Result<Response, Error> {
        self.item(Kind::PatchItem, &key.into(), Some(id), patch.to_bytes()?, &options).await
    }

    /// Executes a batch: all of it or nothing.
    ///
    /// # Errors
    /// As any operation. A batch in which an operation failed is an answer, not an error; see [`BatchResponse`].
    pub async fn batch(&self, batch: Batch, options: CallOptions) -> Result<BatchResponse, Error> {
        let is_minimal = batch.content() == ContentResponse::Minimal;
        let (key, body) = batch.into_body()?;
        let call = Call::start(&self.driver.core, &options);
        let mut operation = Operation::new(
            Kind::Batch,
            ResourceKind::Document,
            self.cell.link.clone(),
            self.cell.docs_path.clone(),
        );
        self.aim(&mut operation, &key, &call).await?;
        operation.body = body;
        operation.is_minimal = is_minimal;
        operation.on_unknown = options.on_unknown;
        BatchResponse::new(self.run(operation, &call).await?)
    }

    /// Starts a query. Nothing is sent until the first page is asked for.
    #[must_use]
    pub fn query(&self, query: impl Into<Query>, scope: impl Into<Scope>, options: QueryOptions) -> Pager {
        Pager::new(self.clone(), query.into(), scope.into(), options)
    }

    /// Follows changes. Nothing is sent until the first page is asked for.
    #[must_use]
    pub fn change_feed(
        &self,
        scope: impl Into<Scope>,
        start: ChangeFeedStart,
        options: CallOptions,
    ) -> ChangeFeed {
        ChangeFeed::new(self.clone(), scope.into(), start, options)
    }

    /// The session token of everything this driver has seen of the container.
    #[must_use]
    pub fn session_token(&self) -> Option<String> {
        self.cell.known().and_then(|info| info.sessions.combined())
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(crate) fn cell(&self) -> &Arc<ContainerCell> {
        &self.cell
    }

    pub(crate) fn forget(&self) {
        self.cell.forget();
    }

    pub(crate) async fn run(&self, operation: Operation, call: &Call<'_>) -> Result<Response, Error> {
        Box::pin(run(&self.driver.core, operation, call)).await
    }

    /// Points an operation at one logical partition.
    pub(crate) async fn aim(
        &self,
        operation: &mut Operation,
        key: &PartitionKey,
        call: &Call<'_>,
    ) -> Result<(), Error> {
        let info = self.cell.info(&self.driver.core, call).await?;
        limits::full_key(key, &info.definition)?;
        let header = HeaderValue::try_from(key.to_string())
            .map_err(|_| Error::limit(format!("partition key {key} cannot be sent in a header")))?;
        operation.target = Target::Key { header, epk: Epk::of(key, &info.definition) };
        operation.container = Some(info);
        Ok(())
    }

    async fn item(
        &self,
        kind: Kind,
        key: &PartitionKey,
        id: Option<&str>,
        body: Bytes,
        options: &ItemOptions,
    ) -> Result<Response, Error> {
        let call = Call::start(&self.driver.core, &options.call);
        self.item_within(kind, key, id, body, options, &call).await
    }

    /// One item as part of a call that has begun.
    pub(crate) async fn item_within(
        &self,
        kind: Kind,
        key: &PartitionKey,
        id: Option<&str>,
        body: Bytes,
        options: &ItemOptions,
        call: &Call<'_>,
    ) -> Result<Response, Error> {
        limits::body("item", body.len())?;
        let mut operation = match id {
            None => Operation::new(
                kind,
                ResourceKind::Document,
                self.cell.link.clone(),
                self.cell.docs_path.clone(),
            ),
            Some(id) => {
                limits::item_id(id)?;
                let mut path = String::with_capacity(self.cell.docs_path.as_str().len() + 1 + id.len() * 2);
                path.push_str(self.cell.docs_path.path());
                path.push('/');
                cosmos_wire::resource::percent_encode(&mut path, id);
                Operation::new(
                    kind,
                    ResourceKind::Document,
                    format!("{}/docs/{id}", self.cell.link).into(),
                    path_of(path)?,
                )
            }
        };
        self.aim(&mut operation, key, call).await?;
        operation.body = body;
        operation.if_match = etag(options.if_match.as_deref())?;
        operation.if_none_match = etag(options.if_none_match.as_deref())?;
        operation.is_minimal = !kind.is_read() && options.content == ContentResponse::Minimal;
        operation.consistency = options.call.consistency;
        operation.on_unknown = options.call.on_unknown;
        self.run(operation, call).await
    }
}

fn etag(text: Option<&str>) -> Result<Option<HeaderValue>, Error> {
    text.map(|text| {
        HeaderValue::from_str(text)
            .map_err(|_| Error::bad_request(format!("ETag {text:?} cannot be sent in a header")))
    })
    .transpose()
}

/// The id inside a body obeys the same rules as one in a path.
pub(crate) fn check_own_id(body: &[u8]) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Own<'a> {
        #[serde(borrow)]
        id: std::borrow::Cow<'a, str>,
    }
    match serde_json::from_slice::<Own<'_>>(body) {
        Ok(own) => limits::item_id(&own.id),
        Err(error) => Err(Error::limit(format!("item: it needs a string property \"id\" ({error})"))),
    }
}
