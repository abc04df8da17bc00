//! Every version of every item, for the full-fidelity change feed: kept with the write that made it, shown in order of
//! LSN, and dropped when the container's retention is over.

use std::ops::Bound;

use bytes::Bytes;

use super::container::{Container, Shape};
use super::document::Stored;
use super::feed::{Filling, is_in, position};
use super::key;
use super::partition::Partition;
use super::request::{FeedPage, FeedRequest, FeedStart, storage_failed};
use super::scope::{parts, range_gone};
use super::writer::Writer;
use super::{Engine, json};
use crate::Failure;
use crate::storage::{Batch, Change, Order};

/// Expired items removed before a page, so that their ends are on it.
const EXPIRED_MAX: usize = 1_000;

impl Writer<'_> {
    /// Keeps what a write did, where the container remembers versions.
    pub(super) fn keep_version(
        &mut self,
        place: &[u8],
        old: Option<&Stored>,
        new: Option<&Stored>,
    ) -> Result<(), Failure> {
        if self.shape.retention.is_none() {
            return Ok(());
        }
        let lsn = new.map_or(self.next.lsn, |new| new.lsn);
        let mut text = Vec::with_capacity(256 + new.map_or(0, |new| new.body.len()));
        text.extend_from_slice(b"{\"current\":");
        text.extend_from_slice(new.map_or(b"{}", |new| &new.body));
        let operation = match (old, new) {
            (None, _) => "create",
            (Some(_), Some(_)) => "replace",
            (Some(old), None) => {
                text.extend_from_slice(b",\"previous\":");
                text.extend_from_slice(&old.body);
                "delete"
            }
        };
        let head =
            format!(",\"metadata\":{{\"operationType\":\"{operation}\",\"lsn\":{lsn},\"crts\":{}", self.now);
        text.extend_from_slice(head.as_bytes());
        if let Some(old) = old {
            text.extend_from_slice(format!(",\"previousImageLSN\":{}", old.lsn).as_bytes());
        }
        if let (Some(old), None) = (old, new) {
            if old.is_expired(self.shape.default_ttl, self.now) {
                text.extend_from_slice(b",\"timeToLiveExpired\":true");
            }
            let document = old.value()?;
            text.extend_from_slice(b",\"id\":");
            json::write(&document["id"], &mut text);
            let key = self.container.partition_key().extract(&document);
            text.extend_from_slice(format!(",\"partitionKey\":{key}").as_bytes());
        }
        text.extend_from_slice(b"}}");
        self.versions += 1;
        let rid = new.or(old).map_or(0, |stored| stored.rid);
        let value = version(place, self.now, &text);
        self.changes.push(Change::Put(key::version(self.partition.segment, lsn, self.versions, rid), value));
        Ok(())
    }
}

impl Engine {
    /// One page of all versions and deletes. The feed begins now or behind a page, never earlier.
    ///
    /// # Errors
    /// 400 for another start and for a container that remembers no versions; 410/1002 as for the change feed.
    pub fn all_versions(&self, container: &Container, request: FeedRequest) -> Result<FeedPage, Failure> {
        let FeedRequest { scope, start, page_size, session_token } = request;
        let shape = self.current_shape(container)?;
        let retention = shape.retention.ok_or_else(not_kept)?;
        let parts = parts(container, &shape, &scope)?;
        let [part] = parts.as_slice() else { return Err(range_gone()) };
        let partition = &*part.partition;
        let turns = self.admit_all(container, &shape, &parts)?;
        self.catch_up(container, partition)?;
        let topology = self.topology();
        partition.check_session(&topology, session_token.as_deref())?;
        if shape.default_ttl.is_some() {
            self.sweep_partition(container, partition, EXPIRED_MAX)?;
        }
        // Taken before the scan: whatever it misses has a larger LSN.
        let reached = partition.lsn();
        let start = match start {
            FeedStart::Now => reached,
            FeedStart::After(etag) => position(&etag)?,
            FeedStart::Beginning => return Err(wrong_start("the beginning")),
            FeedStart::Time(_) => return Err(wrong_start("a point in time")),
        };
        let oldest = self.clock().now_seconds().saturating_sub(retention);
        let mut page = Filling::new(page_size.rows_max());
        let (mut last, mut is_full) = (start, false);
        let lower = key::version(partition.segment, start.saturating_add(1), 0, 0);
        let upper = key::beyond(key::versions(partition.segment));
        for row in self.storage().scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward) {
            let (entry, value) = row.map_err(|error| storage_failed(&error))?;
            let Some((place, written, text)) = split_version(&value) else { continue };
            if !is_in(&part.scope, place) || written < oldest {
                continue;
            }
            let lsn = key::change_lsn(&entry).unwrap_or(0);
            if !page.take(text.len()) && lsn != last {
                is_full = true;
                break;
            }
            page.documents.push(value.slice_ref(text));
            last = lsn;
        }
        let reached = if is_full { last } else { last.max(reached) };
        Ok(page.into_changes(reached, turns, partition.standing(&topology, 0)))
    }

    /// Drops versions whose time is over, and all of them where none are kept any more; about `entries_max` per
    /// partition.
    pub(crate) fn sweep_versions(
        &self,
        shape: &Shape,
        partition: &Partition,
        entries_max: usize,
    ) -> Result<usize, Failure> {
        let oldest = shape.retention.map_or(u64::MAX, |kept| self.clock().now_seconds().saturating_sub(kept));
        let lower = key::versions(partition.segment);
        let upper = key::beyond(lower.clone());
        let mut changes = Vec::new();
        for row in self
            .storage()
            .scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward)
            .take(entries_max)
        {
            let (entry, value) = row.map_err(|error| storage_failed(&error))?;
            if split_version(&value).is_some_and(|(_, written, _)| written >= oldest) {
                break;
            }
            changes.push(Change::Delete(entry));
        }
        let removed = changes.len();
        if removed > 0 {
            self.commit(Batch { changes })?;
        }
        Ok(removed)
    }
}

/// A version as it is kept: where its item stands, when it was written, and what the feed shows.
fn version(place: &[u8], seconds: u64, text: &[u8]) -> Bytes {
    let length = u32::try_from(place.len()).unwrap_or(u32::MAX).to_be_bytes();
    Bytes::from([&length[..], place, &seconds.to_be_bytes(), text].concat())
}

fn split_version(value: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let (length, rest) = value.split_first_chunk::<4>()?;
    let (place, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let (seconds, text) = rest.split_first_chunk::<8>()?;
    Some((place, u64::from_be_bytes(*seconds), text))
}

/// Where the item of a kept version stands.
pub(crate) fn place_of_version(value: &[u8]) -> Option<&[u8]> {
    split_version(value).map(|(place, _, _)| place)
}

fn not_kept() -> Failure {
    Failure::bad_request(
        "Full fidelity change feed is not enabled: the account has no continuous backup, and the container no \
         changeFeedPolicy.retentionDuration (minutes).",
    )
}

fn wrong_start(what: &str) -> Failure {
    Failure::bad_request(format!(
        "A change feed of all versions and deletes cannot start from {what}: start from now (If-None-Match: *), or \
         go on behind the etag of a page."
    ))
}
