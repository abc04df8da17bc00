//! Feeds: all items of a scope in order of creation, and the last change of each in order of LSN.

use std::ops::Bound;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;

use super::container::{Container, Shape};
use super::document::Stored;
use super::index::choice::{self, Choice, KeyScope};
use super::index::cursor::{Reader, split_position};
use super::index::source::invalid_continuation;
use super::key;
use super::partition::Partition;
use super::request::{
    DocumentPage, FeedPage, FeedRequest, FeedStart, ReadFeedRequest, Standing, storage_failed,
};
use super::scope::{self, Part, Piece, decode_pieces, encode_pieces, parts, range_gone};
use super::throughput::{Turn, settle_all};
use super::{Engine, quota};
use crate::Failure;
use crate::sql::source::Access;
use crate::storage::{Order, Scan};

/// The most bytes of documents on one page.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

impl Engine {
    /// One page of all items.
    ///
    /// # Errors
    /// 400 for a foreign token; 404/1002 and 410/1002 as for reads.
    pub fn read_feed(
        &self,
        container: &Container,
        request: ReadFeedRequest,
    ) -> Result<DocumentPage, Failure> {
        let ReadFeedRequest { scope: asked, page_size, continuation, session_token } = request;
        let shape = self.current_shape(container)?;
        let parts = parts(container, &shape, &asked)?;
        let turns = self.admit_all(container, &shape, &parts)?;
        let pieces = continuation.as_deref().map(decode_token).transpose()?.unwrap_or_default();
        let left = scope::left(&parts, &pieces);
        let topology = self.topology();
        let reader = self.reader(container, &shape);
        let mut page = Filling::new(page_size.rows_max());
        let mut continuation = None;
        for (part, _) in &left {
            self.catch_up(container, &part.partition)?;
            part.partition.check_session(&topology, session_token.as_deref())?;
        }
        let mut answered = &parts[0].partition;
        for (at, (part, after)) in left.iter().enumerate() {
            answered = &part.partition;
            let mut entries = all_items(&reader, &shape, part, after.as_deref())?;
            let mut last = after.clone();
            let is_full = loop {
                let Some(row) = entries.scan.next() else { break false };
                let (entry, place) = row.map_err(|error| storage_failed(&error))?;
                if !is_in(&part.scope, &place) {
                    continue;
                }
                let Some(stored) = reader.load(&entry, &place)? else { continue };
                if !page.take(stored.body.len()) {
                    break true;
                }
                page.documents.push(stored.body);
                last = Some(entries.position(&entry));
            };
            if is_full {
                let current = (&part.range, last.as_deref().unwrap_or_default());
                let begun =
                    left[at + 1..].iter().map_while(|(part, after)| Some((&part.range, after.as_deref()?)));
                continuation = Some(encode_token(&encode_pieces(std::iter::once(current).chain(begun))));
                break;
            }
        }
        let charge = quota::feed(page.documents.len(), page.bytes);
        settle_all(turns, charge);
        Ok(DocumentPage {
            charge,
            documents: page.documents,
            continuation,
            standing: answered.standing(&topology, 0),
        })
    }

    /// One page of changes.
    ///
    /// # Errors
    /// 400 for a foreign etag, 410/1002 for a range that is gone or covers several partitions.
    pub fn change_feed(&self, container: &Container, request: FeedRequest) -> Result<FeedPage, Failure> {
        let FeedRequest { scope, start, page_size, session_token } = request;
        let shape = self.current_shape(container)?;
        let parts = parts(container, &shape, &scope)?;
        let [part] = parts.as_slice() else { return Err(range_gone()) };
        let partition = &*part.partition;
        let topology = self.topology();
        let turns = self.admit_all(container, &shape, &parts)?;
        self.catch_up(container, partition)?;
        partition.check_session(&topology, session_token.as_deref())?;
        // Taken before the scan: whatever it misses has a larger LSN.
        let reached = partition.lsn();
        let start = match start {
            FeedStart::Beginning => 0,
            FeedStart::Now => reached,
            FeedStart::After(etag) => position(&etag)?,
            FeedStart::Time(time) => self.lsn_before(container, partition, time)?,
        };
        let reader = self.reader(container, &shape);
        let mut page = Filling::new(page_size.rows_max());
        let (mut last, mut is_full) = (start, false);
        for row in changes_behind(&reader, partition, start) {
            let (entry, place) = row.map_err(|error| storage_failed(&error))?;
            if !is_in(&part.scope, &place) {
                continue;
            }
            let lsn = key::change_lsn(&entry).unwrap_or(0);
            let Some(stored) = reader.load(&entry, &place)? else { continue };
            if stored.lsn != lsn {
                continue;
            }
            if !page.take(stored.body.len()) && lsn != last {
                is_full = true;
                break;
            }
            page.documents.push(with_lsn(&stored));
            last = lsn;
        }
        let reached = if is_full { last } else { last.max(reached) };
        Ok(page.into_changes(reached, turns, partition.standing(&topology, 0)))
    }

    /// The largest LSN whose change is older than a time.
    fn lsn_before(
        &self,
        container: &Container,
        partition: &Partition,
        time: SystemTime,
    ) -> Result<u64, Failure> {
        let since = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let lower = key::changes(partition.segment);
        let upper = key::beyond(lower.clone());
        for row in self.storage().scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Reverse) {
            let (entry, place) = row.map_err(|error| storage_failed(&error))?;
            let item = key::item_at(container.replica, &place);
            let bytes = self.storage().get(&item).map_err(|error| storage_failed(&error))?;
            if bytes.as_ref().and_then(Stored::from_bytes).is_some_and(|stored| stored.timestamp < since) {
                return Ok(key::change_lsn(&entry).unwrap_or(0));
            }
        }
        Ok(0)
    }
}

fn all_items<'a>(
    reader: &'a Reader<'_>,
    shape: &Shape,
    part: &Part,
    after: Option<&[u8]>,
) -> Result<Items<'a>, Failure> {
    let (choice, entry) = match after.filter(|after| !after.is_empty()) {
        None => (Choice::scan_of(&part.scope), None),
        Some(after) => split_position(after)
            .map(|(choice, entry)| (choice, Some(entry)))
            .ok_or_else(invalid_continuation)?,
    };
    let scope = match (choice, &part.scope) {
        (Choice::ScanKeys, KeyScope::Partition) => {
            KeyScope::Range(part.partition.lower(), part.partition.upper())
        }
        (_, scope) => scope.clone(),
    };
    let plan = choice::plan(choice, &Access::default(), &shape.policy, part.partition.segment, &scope)
        .ok_or_else(invalid_continuation)?;
    let (lower, upper) = &plan.intervals[0];
    let resumed = entry.map(|entry| [plan.base.as_slice(), &entry].concat());
    let resumed = resumed.filter(|entry| entry >= lower);
    let scan = match &resumed {
        // A place outside comes from a partition that had more keys than this one.
        Some(entry) if entry >= upper => Box::new(std::iter::empty()),
        Some(entry) => {
            reader.moment().view.scan(Bound::Excluded(entry), Bound::Excluded(upper), Order::Forward)
        }
        None => reader.moment().view.scan(Bound::Included(lower), Bound::Excluded(upper), Order::Forward),
    };
    Ok(Items { choice, base: plan.base.len(), scan })
}

fn changes_behind<'a>(reader: &'a Reader<'_>, partition: &Partition, lsn: u64) -> Scan<'a> {
    let lower = key::change(partition.segment, lsn.saturating_add(1), 0);
    let upper = key::beyond(key::changes(partition.segment));
    reader.moment().view.scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward)
}

/// Whether an item stands in a scope.
pub(crate) fn is_in(scope: &KeyScope, place: &[u8]) -> bool {
    match scope {
        KeyScope::Partition => true,
        KeyScope::Key(epk) => place.starts_with(epk.as_bytes()),
        KeyScope::Range(low, high) => low.as_slice() <= place && place < high.as_slice(),
    }
}

/// All items of a part, in one order or another.
struct Items<'a> {
    choice: Choice,
    base: usize,
    scan: Scan<'a>,
}

impl Items<'_> {
    /// Behind an entry.
    fn position(&self, entry: &[u8]) -> Vec<u8> {
        [&self.choice.to_bytes()[..], entry.get(self.base..).unwrap_or_default()].concat()
    }
}

/// A page being filled.
pub(crate) struct Filling {
    pub(crate) documents: Vec<Bytes>,
    bytes: usize,
    rows_max: usize,
}

impl Filling {
    /// An empty page for this many documents.
    pub(crate) fn new(rows_max: usize) -> Self {
        Self { documents: Vec::new(), bytes: 0, rows_max }
    }

    /// Whether another document of this size has room; the first always has.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let room = self.documents.is_empty()
            || (self.documents.len() < self.rows_max && self.bytes + bytes <= PAGE_BYTES_MAX);
        if room {
            self.bytes += bytes;
        }
        room
    }

    /// The page of a change feed that goes on behind an LSN; its cost is noted.
    pub(crate) fn into_changes(self, reached: u64, turns: Vec<Turn<'_>>, standing: Standing) -> FeedPage {
        let charge = quota::feed(self.documents.len(), self.bytes);
        settle_all(turns, charge);
        let status = if self.documents.is_empty() { 304 } else { 200 };
        FeedPage { status, charge, documents: self.documents, etag: etag(reached), standing }
    }
}

/// The etag of a page that ends with an LSN.
fn etag(lsn: u64) -> String {
    format!("\"{lsn}\"")
}

/// The LSN in an etag of a page.
pub(crate) fn position(etag: &str) -> Result<u64, Failure> {
    etag.trim().trim_matches('"').parse().map_err(|_| {
        Failure::bad_request(format!("The change feed cannot go on behind '{etag}': that is no LSN."))
    })
}

fn with_lsn(stored: &Stored) -> Bytes {
    let body = stored.body.strip_suffix(b"}").unwrap_or(&stored.body);
    Bytes::from([body, format!(",\"_lsn\":{}}}", stored.lsn).as_bytes()].concat())
}

fn encode_token(pieces: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(pieces)
}

fn decode_token(text: &str) -> Result<Vec<Piece>, Failure> {
    let bytes = URL_SAFE_NO_PAD.decode(text.trim()).map_err(|_| invalid_continuation())?;
    decode_pieces(&bytes).ok_or_else(invalid_continuation)
}
