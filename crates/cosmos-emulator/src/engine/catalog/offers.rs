//! Offers: throughput read and changed.

use std::sync::Arc;

use cosmos_wire::rid::Rid;
use serde_json::Value;

use super::offer::{self, Offer};
use super::{Catalog, body, not_found, record};
use crate::Failure;
use crate::engine::container::Container;
use crate::engine::request::{OfferMigration, ResourceFeed, ResourceReply, Throughput};
use crate::engine::{Engine, key, quota};
use crate::storage::{Batch, Change};

enum Owner {
    Database(u32),
    Container(Arc<Container>),
}

impl Engine {
    /// All offers.
    ///
    /// # Errors
    /// None today.
    pub fn offers(&self) -> Result<ResourceFeed, Failure> {
        let offers = if self.options().serverless { Vec::new() } else { all(&self.catalog()) };
        let resources = offers.into_iter().map(|(offer, _)| offer.document()).collect();
        Ok(ResourceFeed { rid: String::new(), resources, charge: quota::METADATA })
    }

    /// What a container may consume: its own throughput, or its share of the database's.
    pub fn throughput(&self, container: &Container) -> Option<Throughput> {
        if self.options().serverless {
            return None;
        }
        let own = container.shape().offer.as_ref().map(|offer| offer.throughput);
        own.or_else(|| self.shared_throughput(container))
    }

    /// What the database of a container shares among its containers.
    pub(crate) fn shared_throughput(&self, container: &Container) -> Option<Throughput> {
        let catalog = self.catalog();
        catalog.databases.get(&container.database)?.offer.as_ref().map(|offer| offer.throughput)
    }

    /// Refuses throughput where none can be bought.
    pub(crate) fn check_throughput(&self, wanted: Option<Throughput>) -> Result<Option<Throughput>, Failure> {
        if self.options().serverless && wanted.is_some() {
            return Err(Failure::bad_request(
                "Setting offer throughput or autopilot on container is not supported for serverless accounts. Learn \
                 more: https://aka.ms/cosmos-serverless-limitations",
            ));
        }
        wanted.map(offer::check).transpose()
    }

    /// Reads an offer by its id.
    ///
    /// # Errors
    /// 404.
    pub fn read_offer(&self, offer: &str) -> Result<ResourceReply, Failure> {
        if self.options().serverless {
            return Err(not_found());
        }
        let (offer, _) = find(&self.catalog(), offer)?;
        Ok(reply(&offer, None))
    }

    /// Changes an offer.
    ///
    /// # Errors
    /// 400 for throughput the service refuses, 404.
    pub fn replace_offer(
        &self,
        offer: &str,
        body: &[u8],
        migration: OfferMigration,
    ) -> Result<ResourceReply, Failure> {
        if self.options().serverless {
            return Err(not_found());
        }
        let body = Value::Object(body::object(body)?);
        let mut control = self.control();
        let (old, owner) = find(&self.catalog(), offer)?;
        let throughput = offer::replaced(old.throughput, &body, migration)?;
        let mut numbers = control.clone();
        let now = self.clock().now_seconds();
        let new = Offer { throughput, etag: numbers.next_etag(now), timestamp: now, ..old };
        let mut changes = vec![Change::Put(key::meta(), numbers.to_record().into())];
        let mut grown = None;
        let ticket = match owner {
            Owner::Database(number) => {
                let mut catalog = self.catalog_mut();
                let database = catalog.databases.get_mut(&number).ok_or_else(not_found)?;
                let before = database.offer.replace(new.clone());
                changes.push(Change::Put(key::database(number), record::database_record(database).into()));
                match self.commit(Batch { changes }) {
                    Ok(ticket) => ticket,
                    Err(failure) => {
                        database.offer = before;
                        return Err(failure);
                    }
                }
            }
            Owner::Container(container) => {
                let mut shape = (*container.shape()).clone();
                shape.offer = Some(new.clone());
                let record = record::container_record(container.database, &shape);
                changes.push(Change::Put(key::container(container.number), record.into()));
                let ticket = self.commit(Batch { changes })?;
                container.set_shape(shape);
                grown = Some(container);
                ticket
            }
        };
        *control = numbers;
        if let Some(container) = grown {
            self.grow(&control, &container, throughput)?;
        }
        Ok(reply(&new, Some(ticket)))
    }
}

fn all(catalog: &Catalog) -> Vec<(Offer, Owner)> {
    let mut offers = Vec::new();
    for database in catalog.databases.values() {
        offers.extend(database.offer.clone().map(|offer| (offer, Owner::Database(database.number))));
        for container in database.containers.values() {
            let offer = container.shape().offer.clone();
            offers.extend(offer.map(|offer| (offer, Owner::Container(Arc::clone(container)))));
        }
    }
    offers
}

fn find(catalog: &Catalog, id: &str) -> Result<(Offer, Owner), Failure> {
    let rid: Rid = id.parse().map_err(|_| not_found())?;
    all(catalog).into_iter().find(|(offer, _)| offer.rid == rid).ok_or_else(not_found)
}

fn reply(offer: &Offer, ticket: Option<crate::storage::Ticket>) -> ResourceReply {
    ResourceReply {
        status: 200,
        body: offer.document(),
        etag: offer.etag.clone(),
        rid: offer.rid.to_string(),
        charge: quota::METADATA,
        ticket,
    }
}
