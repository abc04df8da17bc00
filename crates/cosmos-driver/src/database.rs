//! Databases.

use cosmos_wire::resource::{Link, ResourceKind};
use http::uri::PathAndQuery;
use serde::Serialize;

use crate::body::json;
use crate::container::Container;
use crate::container::properties::ContainerProperties;
use crate::driver::Driver;
use crate::error::Error;
use crate::limits;
use crate::metadata::container::path_of;
use crate::operation::{Call, run};
use crate::options::{CallOptions, Throughput};
use crate::request::{Kind, Operation};
use crate::response::Response;
use crate::throughput::ask_for;

/// A database by name.
#[derive(Clone, Debug)]
pub struct Database {
    driver: Driver,
    id: String,
}

#[derive(Serialize)]
struct NewDatabase<'a> {
    id: &'a str,
}

impl Database {
    pub(crate) fn new(driver: Driver, id: String) -> Self {
        Self { driver, id }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A container of it, by name. Nothing is sent.
    ///
    /// # Errors
    /// When one of the names cannot be one.
    pub fn container(&self, id: &str) -> Result<Container, Error> {
        self.driver.container(&self.id, id)
    }

    /// Creates it; an existing one is a conflict.
    ///
    /// # Errors
    /// As any operation.
    pub async fn create(&self, options: CallOptions) -> Result<Response, Error> {
        self.create_with_throughput(None, options).await
    }

    /// Creates it with throughput that its containers share; an existing one is a conflict.
    ///
    /// # Errors
    /// As any operation.
    pub async fn create_with_throughput(
        &self,
        throughput: Option<Throughput>,
        options: CallOptions,
    ) -> Result<Response, Error> {
        limits::resource_id("database", &self.id)?;
        let mut operation = Operation::new(
            Kind::CreateDatabase,
            ResourceKind::Database,
            "".into(),
            PathAndQuery::from_static("/dbs"),
        );
        operation.body = json(&NewDatabase { id: &self.id })?;
        ask_for(&mut operation, throughput);
        self.run(operation, &options).await
    }

    /// Reads it.
    ///
    /// # Errors
    /// As any operation.
    pub async fn read(&self, options: CallOptions) -> Result<Response, Error> {
        self.run(self.operation(Kind::ReadDatabase)?, &options).await
    }

    /// Deletes it with everything in it.
    ///
    /// # Errors
    /// As any operation.
    pub async fn delete(&self, options: CallOptions) -> Result<Response, Error> {
        let response = self.run(self.operation(Kind::DeleteDatabase)?, &options).await?;
        for ((database, _), cell) in self.driver.core.containers.load().iter() {
            if *database == self.id {
                cell.forget();
            }
        }
        Ok(response)
    }

    /// Creates a container in it.
    ///
    /// # Errors
    /// As any operation.
    pub async fn create_container(
        &self,
        properties: &ContainerProperties,
        throughput: Option<Throughput>,
        options: CallOptions,
    ) -> Result<Response, Error> {
        let container = self.container(&properties.id)?;
        let mut operation = self.containers(Kind::CreateContainer)?;
        operation.body = json(properties)?;
        ask_for(&mut operation, throughput);
        let response = self.run(operation, &options).await?;
        container.forget();
        Ok(response)
    }

    /// One page of its containers.
    ///
    /// # Errors
    /// As any operation.
    pub async fn list_containers(
        &self,
        continuation: Option<&str>,
        options: CallOptions,
    ) -> Result<Response, Error> {
        let mut operation = self.containers(Kind::ListContainers)?;
        operation.resume(continuation)?;
        self.run(operation, &options).await
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// An operation on the database itself.
    fn operation(&self, kind: Kind) -> Result<Operation, Error> {
        limits::resource_id("database", &self.id)?;
        let link = Link::database(&self.id);
        let path = path_of(link.to_path())?;
        Ok(Operation::new(kind, ResourceKind::Database, link.to_string().into(), path))
    }

    /// An operation on the feed of its containers.
    fn containers(&self, kind: Kind) -> Result<Operation, Error> {
        limits::resource_id("database", &self.id)?;
        let link = Link::database(&self.id);
        let signed = link.to_string().into();
        let path = path_of(link.feed(ResourceKind::Container).to_path())?;
        Ok(Operation::new(kind, ResourceKind::Container, signed, path))
    }

    async fn run(&self, operation: Operation, options: &CallOptions) -> Result<Response, Error> {
        let core = &self.driver.core;
        Box::pin(run(core, operation, &Call::start(core, options))).await
    }
}

pub(crate) async fn list_databases(
    driver: &Driver,
    continuation: Option<&str>,
    options: &CallOptions,
) -> Result<Response, Error> {
    let mut operation = Operation::new(
        Kind::ListDatabases,
        ResourceKind::Database,
        "".into(),
        PathAndQuery::from_static("/dbs"),
    );
    operation.resume(continuation)?;
    Box::pin(run(&driver.core, operation, &Call::start(&driver.core, options))).await
}
