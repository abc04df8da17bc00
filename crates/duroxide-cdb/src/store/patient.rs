//! Requests that are sent again while their trouble may pass: the one place where the provider does so.
//!
//! [`Store`] sends one request and tells what came of it. [`Store::patient`] sends the same requests as often as the
//! caller's [`Patience`] allows. A write that is sent again may have arrived the first time: what its refusal then means is
//! [settled](super::settle) by whoever knows the write.

use std::future::Future;

use serde_json::value::RawValue;

use super::settle::{Rests, Settled, settled};
use super::{Backoff, Call, Op, Patience, Read, Store, decode};
use crate::documents::{Head, Lockable, Tagged, ids};
use crate::error::Fault;
use crate::queries::Query;

/// The requests of a caller that sits out what passes.
#[derive(Clone, Copy)]
pub(crate) struct Patient<'a> {
    store: &'a Store,
    patience: Patience<'a>,
}

impl Store {
    /// Requests that are sent again while their trouble may pass and the caller has time.
    pub(crate) fn patient<'a>(&'a self, patience: impl Into<Patience<'a>>) -> Patient<'a> {
        Patient { store: self, patience: patience.into() }
    }
}

impl Patient<'_> {
    /// Tries again while the fault may pass and there is time.
    pub(crate) async fn retrying<T, F, Fut>(&self, mut attempt: F) -> Result<T, Fault>
    where
        F: FnMut(Call) -> Fut,
        Fut: Future<Output = Result<T, Fault>>,
    {
        let mut backoff = Backoff::default();
        let mut is_doubtful = false;
        loop {
            let mut fault = match attempt(self.patience.call()).await {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            fault.follows_doubt = is_doubtful;
            is_doubtful |= fault.may_have_been_applied;
            if !self.patience.sits_out(&fault) || !self.patience.wait(&mut backoff, &fault).await {
                return Err(fault);
            }
        }
    }

    /// Carries out one write and returns the new ETag.
    pub(crate) async fn write(&self, partition: &str, op: &Op) -> Result<String, Fault> {
        self.retrying(|call| self.store.write(call, partition, op)).await
    }

    /// Carries out several writes, all or none, and returns the new ETags.
    pub(crate) async fn batch(&self, partition: &str, ops: &[Op]) -> Result<Vec<String>, Fault> {
        self.retrying(|call| self.store.batch(call, partition, ops)).await
    }

    /// Creates a document whose id nobody else uses: finding it there means that an earlier try arrived. The ETag is
    /// empty then.
    pub(crate) async fn create_own(&self, partition: &str, op: &Op) -> Result<String, Fault> {
        let settled = self.settle_one(partition, op, Rests::OwnId).await?;
        Ok(settled.unless_superseded()?.unwrap_or_default())
    }

    /// Carries out one write, and says what its refusal means.
    pub(crate) async fn settle_one(
        &self,
        partition: &str,
        op: &Op,
        rests: Rests,
    ) -> Result<Settled<String>, Fault> {
        settled(self.write(partition, op).await, rests)
    }

    /// Carries out several writes, all or none, and says what their refusal means.
    pub(crate) async fn settle(
        &self,
        partition: &str,
        ops: &[Op],
        rests: Rests,
    ) -> Result<Settled<Vec<String>>, Fault> {
        settled(self.batch(partition, ops).await, rests)
    }

    /// Deletes a document; one that is not there is fine.
    pub(crate) async fn delete(&self, partition: &str, id: &str) -> Result<(), Fault> {
        self.settle_one(partition, &Op::delete(id, None), Rests::Shared).await.map(drop)
    }

    /// All rows of a query over one partition.
    pub(crate) async fn query(&self, partition: &str, query: &Query) -> Result<Vec<Box<RawValue>>, Fault> {
        self.retrying(|call| self.store.query(call, partition, query)).await
    }

    /// Reads a document, unless it still has the ETag the caller knows.
    pub(crate) async fn read(&self, partition: &str, id: &str, known: Option<&str>) -> Result<Read, Fault> {
        self.retrying(|call| self.store.read(call, partition, id, known)).await
    }

    /// Reads a document of a known type.
    pub(crate) async fn read_as<T: serde::de::DeserializeOwned>(
        &self,
        partition: &str,
        id: &str,
    ) -> Result<Option<Tagged<T>>, Fault> {
        match self.read(partition, id, None).await? {
            Read::Found { body, etag } => Ok(Some(Tagged { document: decode(&body)?, etag })),
            Read::NotModified | Read::Missing => Ok(None),
        }
    }

    /// As [`read_as`](Self::read_as), where the document is written: no other process has changed it before this moment
    /// without being seen.
    pub(crate) async fn read_latest_as<T: serde::de::DeserializeOwned>(
        &self,
        partition: &str,
        id: &str,
    ) -> Result<Option<Tagged<T>>, Fault> {
        match self.retrying(|call| self.store.read_latest(call, partition, id)).await? {
            Read::Found { body, etag } => Ok(Some(Tagged { document: decode(&body)?, etag })),
            Read::NotModified | Read::Missing => Ok(None),
        }
    }

    /// Reads the head of an instance, whatever state it is in.
    pub(crate) async fn head(&self, instance: &str) -> Result<Option<Tagged<Head>>, Fault> {
        self.read_as(instance, &ids::head(instance)).await
    }

    /// Reads a document that can be locked. A tombstone in its place is no such document.
    pub(crate) async fn read_lockable<D: Lockable>(
        &self,
        partition: &str,
        id: &str,
    ) -> Result<Option<Tagged<D>>, Fault> {
        #[derive(serde::Deserialize)]
        struct Envelope {
            #[serde(rename = "type")]
            kind: String,
        }
        match self.read(partition, id, None).await? {
            Read::Found { body, etag } if D::TYPES.contains(&decode::<Envelope>(&body)?.kind.as_str()) => {
                Ok(Some(Tagged { document: decode(&body)?, etag }))
            }
            Read::Found { .. } | Read::NotModified | Read::Missing => Ok(None),
        }
    }
}
