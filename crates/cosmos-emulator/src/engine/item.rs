//! Operations on items: prepared without a lock, decided and done under the partition's.

use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::partition_key::PartitionKey;
use cosmos_wire::status::Status;

use super::container::{Container, epk_key, too_few_components};
use super::content::Content;
use super::document::{self, Draft, Stored, etag_matches};
use super::index::path::PathId;
use super::key::{self, EpkKey};
use super::partition::Partition;
use super::patch::Patch;
use super::request::{Conditions, ItemOp, ItemReply, ItemRequest, Standing, storage_failed};
use super::writer::Writer;
use super::{Engine, quota};
use crate::Failure;
use crate::failure::Origin;
use crate::sql::Filter;

/// An operation whose document is parsed and checked.
pub(crate) enum Prepared {
    Put {
        mode: PutMode,
        content: Content,
    },
    /// A replacement whose body has another id than its address.
    Rename {
        from: String,
        content: Content,
    },
    Read {
        id: String,
    },
    Delete {
        id: String,
    },
    Patch {
        id: String,
        patch: Patch,
    },
}

/// What a write of a whole document expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PutMode {
    Create,
    Upsert,
    Replace,
}

/// What an operation did.
pub(crate) struct Done {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    pub(crate) etag: Option<String>,
    pub(crate) charge: f64,
    pub(crate) item_lsn: Option<u64>,
}

impl Engine {
    /// One operation on one item.
    ///
    /// # Errors
    /// As the service refuses: 400, 404, 409, 412, 413 with their sub-statuses.
    pub fn item(&self, container: &Container, request: ItemRequest) -> Result<ItemReply, Failure> {
        let shape = self.current_shape(container)?;
        let key = request.partition_key.as_ref().ok_or_else(too_few_components)?;
        let epk = container.epk(key)?;
        let partition = Arc::clone(shape.partition_of(container.region, &epk));
        let epk = epk_key(&epk);
        let turn = self
            .admit(container, &shape, &partition)
            .map_err(|failure| from_partition(failure, container, partition.standing(&self.topology(), 0)))?;
        let outcome = self.item_in(container, &partition, &epk, request);
        turn.settle(outcome.as_ref().map_or_else(|failure| failure.charge, |reply| reply.charge));
        outcome
    }

    fn item_in(
        &self,
        container: &Container,
        partition: &Partition,
        epk: &EpkKey,
        request: ItemRequest,
    ) -> Result<ItemReply, Failure> {
        let key = request.partition_key.as_ref().ok_or_else(too_few_components)?;
        let prepared = self.prepare(container, key, request.op)?;
        self.catch_up(container, partition)?;
        let topology = self.topology();
        let refused = |failure: Failure| from_partition(failure, container, partition.standing(&topology, 0));
        let (done, lsn, ticket, acted) = if let Prepared::Read { id } = &prepared {
            partition.check_session(&topology, request.session_token.as_deref())?;
            let stored = self.stored(container, epk, id)?;
            (read(stored.as_ref(), &request.conditions).map_err(refused)?, 0, None, None)
        } else {
            let mut writer = Writer::begin(self, container, partition)?;
            let done = apply(&mut writer, epk, prepared, &request.conditions).map_err(refused)?;
            let (lsn, acted) = (writer.lsn(), writer.topology());
            (done, lsn, writer.commit()?, acted)
        };
        // The regions may have changed before the write began; a token of the older version would promise less.
        let topology = acted.as_ref().unwrap_or(&topology);
        let standing = partition.standing(topology, lsn.max(done.item_lsn.unwrap_or(0)));
        let Done { status, body, etag, charge, item_lsn } = done;
        Ok(ItemReply { status, body, etag, charge, item_lsn, standing, ticket })
    }

    /// Parses and checks what can be checked without looking at the store.
    pub(crate) fn prepare(
        &self,
        container: &Container,
        key: &PartitionKey,
        op: ItemOp,
    ) -> Result<Prepared, Failure> {
        let put = |mode: PutMode, body: &Bytes, address: Option<String>| {
            let draft = Draft::parse(body)?;
            let content = Content::new(container, &container.shape(), draft, self.clock().now_seconds());
            document::check_key(container, &content.document, key)?;
            Ok(match address.filter(|address| *address != content.id) {
                Some(from) => Prepared::Rename { from, content },
                None => Prepared::Put { mode, content },
            })
        };
        match op {
            ItemOp::Create { body } => put(PutMode::Create, &body, None),
            ItemOp::Upsert { body } => put(PutMode::Upsert, &body, None),
            ItemOp::Replace { id, body } => put(PutMode::Replace, &body, Some(id)),
            ItemOp::Read { id } => Ok(Prepared::Read { id }),
            ItemOp::Delete { id } => Ok(Prepared::Delete { id }),
            ItemOp::Patch { id, patch } => Ok(Prepared::Patch { id, patch }),
        }
    }

    /// The id of the item that a `docs/{rid}` link means.
    ///
    /// # Errors
    /// 400 for something that is no resource id of this container, 404.
    pub fn item_id_of_rid(
        &self,
        container: &Container,
        partition_key: &PartitionKey,
        rid: &str,
    ) -> Result<String, Failure> {
        let missing = || with_charge(Failure::not_found(), quota::READ_NOTHING);
        let rid: cosmos_wire::rid::Rid =
            rid.parse().map_err(|_| Failure::bad_request(format!("'{rid}' is not a resource id.")))?;
        if rid.container_rid() != Some(container.rid) {
            return Err(missing());
        }
        let counter = rid.counter().ok_or_else(missing)?;
        let epk = epk_key(&container.epk(partition_key)?);
        let entry = key::partition_entry(container.replica, PathId::CREATION.get(), &epk, &[], counter);
        let place =
            self.storage().get(&entry).map_err(|error| storage_failed(&error))?.ok_or_else(missing)?;
        let (_, id) = key::split_place(&place).ok_or_else(missing)?;
        Ok(id.to_owned())
    }

    /// An item as it is stored, unless it expired.
    pub(crate) fn stored(
        &self,
        container: &Container,
        epk: &EpkKey,
        id: &str,
    ) -> Result<Option<Stored>, Failure> {
        let key = key::item(container.replica, epk, id);
        let found = self.storage().get(&key).map_err(|error| storage_failed(&error))?;
        let default_ttl = container.shape().default_ttl;
        let stored = found.as_ref().and_then(Stored::from_bytes);
        Ok(stored.filter(|stored| {
            default_ttl.is_none() || !stored.is_expired(default_ttl, self.clock().now_seconds())
        }))
    }
}

/// Decides and does one operation.
pub(crate) fn apply(
    writer: &mut Writer<'_>,
    epk: &EpkKey,
    prepared: Prepared,
    conditions: &Conditions,
) -> Result<Done, Failure> {
    match prepared {
        Prepared::Put { mode, content } => put(writer, epk, mode, content, conditions),
        Prepared::Rename { from, content } => rename(writer, epk, &from, content, conditions),
        Prepared::Read { id } => read(writer.find(epk, &id)?.as_ref(), conditions),
        Prepared::Delete { id } => {
            let old = existing(writer, epk, &id, conditions)?;
            let indexed = writer.remove(epk, &id, &old)?;
            let charge = quota::delete(old.body.len(), indexed);
            Ok(Done { status: 204, body: Bytes::new(), etag: None, charge, item_lsn: None })
        }
        Prepared::Patch { id, patch } => patch_item(writer, epk, &id, &patch, conditions),
    }
}

fn put(
    writer: &mut Writer<'_>,
    epk: &EpkKey,
    mode: PutMode,
    content: Content,
    conditions: &Conditions,
) -> Result<Done, Failure> {
    let old = match mode {
        PutMode::Create => match writer.find(epk, &content.id)? {
            Some(_) => return Err(conflict()),
            None => None,
        },
        PutMode::Upsert => {
            let old = writer.find(epk, &content.id)?;
            if let Some(old) = &old {
                check_conditions(old, conditions)?;
            }
            old
        }
        PutMode::Replace => Some(existing(writer, epk, &content.id, conditions)?),
    };
    let written = writer.put(epk, old.as_ref(), content)?;
    let size = written.stored.body.len();
    let charge = match &old {
        None => quota::create(size, written.indexed_properties),
        Some(old) => quota::replace(old.body.len(), size, written.indexed_properties),
    };
    Ok(Done { charge, ..shown(if old.is_some() { 200 } else { 201 }, &written.stored) })
}

/// The item stays the one it was, under another id.
fn rename(
    writer: &mut Writer<'_>,
    epk: &EpkKey,
    from: &str,
    content: Content,
    conditions: &Conditions,
) -> Result<Done, Failure> {
    let old = existing(writer, epk, from, conditions)?;
    if writer.find(epk, &content.id)?.is_some() {
        return Err(conflict());
    }
    let written = writer.rename(epk, from, &old, content)?;
    let charge = quota::replace(old.body.len(), written.stored.body.len(), written.indexed_properties);
    Ok(Done { charge, ..shown(200, &written.stored) })
}

fn patch_item(
    writer: &mut Writer<'_>,
    epk: &EpkKey,
    id: &str,
    patch: &Patch,
    conditions: &Conditions,
) -> Result<Done, Failure> {
    let old = existing(writer, epk, id, conditions)?;
    let document = old.value()?;
    if let Some(condition) = &patch.condition
        && !Filter::parse(condition)?.matches(&document, writer.time)?
    {
        return Err(with_charge(
            precondition_failed().with_sub_status(Status::PATCH_CONDITION_NOT_MET.sub),
            quota::REFUSED_WRITE,
        ));
    }
    let changed = patch.apply(&document, |path| writer.container.is_immutable(path))?;
    let content = Content::new(writer.container, &writer.shape, Draft::of(changed)?, writer.now);
    let written = writer.put(epk, Some(&old), content)?;
    let operations = patch.operations.len();
    let charge =
        quota::patch(old.body.len(), written.stored.body.len(), written.indexed_properties, operations);
    Ok(Done { charge, ..shown(200, &written.stored) })
}

fn existing(writer: &Writer<'_>, epk: &EpkKey, id: &str, conditions: &Conditions) -> Result<Stored, Failure> {
    let old = writer.find(epk, id)?.ok_or_else(missing)?;
    check_conditions(&old, conditions)?;
    Ok(old)
}

fn check_conditions(old: &Stored, conditions: &Conditions) -> Result<(), Failure> {
    if conditions.if_match.is_none() && conditions.if_none_match.is_none() {
        return Ok(());
    }
    let etag = old.etag();
    let wrong = conditions.if_match.as_ref().is_some_and(|wanted| !etag_matches(wanted, &etag))
        || conditions.if_none_match.as_ref().is_some_and(|unwanted| etag_matches(unwanted, &etag));
    if wrong && !cosmos_wire::mutant!(29) { Err(precondition_failed()) } else { Ok(()) }
}

fn read(stored: Option<&Stored>, conditions: &Conditions) -> Result<Done, Failure> {
    let stored = stored.ok_or_else(missing)?;
    let mut done = shown(200, stored);
    let is = |etag: &String| done.etag.as_ref().is_some_and(|own| etag_matches(etag, own));
    if conditions.if_match.as_ref().is_some_and(|wanted| !is(wanted)) {
        return Err(precondition_failed());
    }
    if conditions.if_none_match.as_ref().is_some_and(is) {
        done.status = 304;
        done.body = Bytes::new();
        done.charge = quota::READ_NOTHING;
    } else {
        done.charge = quota::read(stored.body.len());
    }
    Ok(done)
}

fn shown(status: u16, stored: &Stored) -> Done {
    Done {
        status,
        body: stored.body.clone(),
        etag: Some(stored.etag()),
        charge: 0.0,
        item_lsn: Some(stored.lsn),
    }
}

/// A refusal with the headers of the partition that refused.
pub(crate) fn from_partition(mut failure: Failure, container: &Container, standing: Standing) -> Failure {
    let Standing { range_id, lsn, session_token } = standing;
    let container = container.content_path.clone();
    failure.origin = Some(Box::new(Origin { range_id, lsn, session_token, container }));
    failure
}

fn missing() -> Failure {
    with_charge(Failure::not_found(), quota::READ_NOTHING)
}

fn conflict() -> Failure {
    with_charge(
        Failure::new(409, "Entity with the specified id already exists in the system."),
        quota::REFUSED_WRITE,
    )
}

/// An etag that is no longer the item's.
pub(crate) fn precondition_failed() -> Failure {
    let failure = Failure::new(
        412,
        "Operation cannot be performed because one of the specified precondition is not met.",
    );
    with_charge(failure, quota::REFUSED_WRITE)
}

fn with_charge(mut failure: Failure, charge: f64) -> Failure {
    failure.charge = charge;
    failure
}
