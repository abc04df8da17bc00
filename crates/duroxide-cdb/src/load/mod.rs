//! Reading a partition: one query for a turn, and only what is not known already.

pub(crate) mod backlog;

use std::collections::{BTreeMap, HashMap, HashSet};

use duroxide::Event;
use duroxide::EventKind;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cache::Known;
use crate::core::Core;
use crate::documents::{
    self, Cell, Head, HistoryDocument, LegacyStart, LegacyValue, Manifest, Message, Stored, Tagged,
    ValueDocument, kind, lenient,
};
use crate::error::Fault;
use crate::queries::{self, Query};
use crate::store::{Call, decode};

use self::backlog::{Backlog, Outline, Window};
use crate::staging::{join, publish};

/// What one look at a partition shows.
#[derive(Debug, Default)]
pub(crate) struct Partition {
    pub(crate) head: Option<Tagged<Head>>,
    /// Visible messages in the order they were enqueued.
    pub(crate) messages: Vec<Message>,
    pub(crate) history: Vec<HistoryDocument>,
    pub(crate) values: HashMap<String, String>,
    pub(crate) legacy: LegacyValues,
    /// Why some of the values cannot be read.
    pub(crate) damage: Option<String>,
    /// What was known before and is still right.
    pub(crate) known: Option<Known>,
    /// Messages visible at this time were asked for.
    pub(crate) as_of: u64,
    /// Messages up to this order key were asked for, because many wait.
    pub(crate) upto: Option<u64>,
    /// Messages that were read before the head was, by id: a commit of another process in between may have taken them.
    pub(crate) read_before_head: HashSet<String>,
    /// Messages that are there and have to wait, and until when.
    pub(crate) put_off: Vec<(String, u64)>,
    /// Whether head, messages and unfinished commits were read together: then no message is among them that a commit has
    /// consumed and not removed yet.
    pub(crate) is_of_one_moment: bool,
}

/// Key-values as the public crate kept them.
#[derive(Debug, Default, Clone)]
pub(crate) struct LegacyValues {
    pub(crate) cells: BTreeMap<String, Cell>,
    pub(crate) documents: Vec<String>,
}

/// The history of the current execution.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) events: Result<Vec<Event>, String>,
    pub(crate) legacy_start: LegacyStart,
}

impl History {
    fn lost(why: String) -> Self {
        Self { events: Err(why), legacy_start: LegacyStart::default() }
    }
}

/// Looks at an instance's partition. Unfinished commits are finished first.
pub(crate) async fn look(core: &Core, call: Call, instance: &str) -> Result<Partition, Fault> {
    let mut known = core.cache.get(instance).filter(|known| !known.head.document.is_legacy());
    let remembered = known.as_ref().and_then(|known| known.upto);
    let mut window = remembered.map(|upto| Window { upto, is_remembered: true });
    // Where the beginning of a long queue is put off, what came after it is looked at by itself.
    let (mut least, mut put_off) = (0, Vec::new());
    for _ in 0..LOOKS_MAX {
        let asking = Asking { core, call, instance, known: known.as_ref(), as_of: core.clock.now_ms() };
        let pages = match window {
            None if least == 0 => asking.everything().await?,
            None => None,
            Some(window) => Some(asking.part(window, least).await?),
        };
        let Some(pages) = pages else {
            // More messages wait than the next turns take: only those are read.
            let upto = asking.first_window(least).await?;
            window = Some(Window { upto, is_remembered: false });
            continue;
        };
        let as_of = asking.as_of;
        let (mut partition, manifests) = sort_pages(&pages)?;
        partition.is_of_one_moment = window.is_none() && pages.len() == 1;
        if !manifests.is_empty() {
            for manifest in manifests {
                publish::publish(core.staging(), call, &manifest, None).await?;
            }
            continue;
        }
        let is_other = known.as_ref().is_some_and(|known| !is_continued(known, partition.head.as_ref()));
        if let (true, Some(old)) = (is_other, &known) {
            core.elders.saw_head(partition.head.as_ref().map(|head| &head.document), &old.head.document);
            core.cache.forget(instance);
            (known, window) = (None, None);
            continue;
        }
        backlog::in_order(&mut partition.messages, window);
        // While others hold the instance no turn is taken, so what waits behind the window need not be known.
        let is_held = partition.head.as_ref().is_some_and(|head| is_held(core, &head.document));
        if !is_held && window.is_some_and(|window| window.is_spent(partition.messages.len())) {
            window = None;
            continue;
        }
        partition.set_aside_put_off(as_of);
        partition.put_off.append(&mut put_off);
        let latest = partition.head.as_ref().and_then(|head| head.document.put_off_upto(as_of));
        if let (Some(latest), true, true) =
            (latest, partition.messages.is_empty(), window.is_some() && least == 0)
        {
            (least, put_off, window) = (latest + 1, partition.put_off, None);
            continue;
        }
        partition.known = known;
        partition.as_of = as_of;
        partition.upto = window.map(|window| window.upto);
        return Ok(partition);
    }
    Err(Fault::transient("the instance changed with every look at it"))
}

/// Whether a head is a later one of what is known of the same execution.
fn is_continued(known: &Known, head: Option<&Tagged<Head>>) -> bool {
    let old = &known.head.document;
    head.map(|head| &head.document).is_some_and(|head| {
        head.incarnation == old.incarnation
            && head.current_execution_id == old.current_execution_id
            && head.turn >= old.turn
            && head.event_count >= old.event_count
    })
}

/// Whether nobody but others may take a turn of an instance now.
fn is_held(core: &Core, head: &Head) -> bool {
    let is_ours = core.claims.is_ours(&head.instance_id, &head.id, head.lock_token.as_deref());
    head.kind == kind::DELETING || (head.is_locked(core.clock.now_ms()) && !is_ours)
}

type Pages = Vec<Vec<Box<RawValue>>>;

/// The questions of one look.
struct Asking<'a> {
    core: &'a Core,
    call: Call,
    instance: &'a str,
    known: Option<&'a Known>,
    as_of: u64,
}

impl Asking<'_> {
    /// The execution whose history is asked for, and after which event.
    fn history(&self) -> (i64, u64) {
        self.known.map_or((-1, 0), |known| {
            let head = &known.head.document;
            let exec = i64::try_from(head.current_execution_id).unwrap_or(i64::MAX);
            (exec, head.last_event_in_documents())
        })
    }

    fn turn(&self) -> u64 {
        self.known.map_or(0, |known| known.head.document.turn)
    }

    /// Everything a turn needs, with one question; `None` when more messages wait than the next turns take.
    async fn everything(&self) -> Result<Option<Pages>, Fault> {
        let (exec, after) = self.history();
        let query = Query::new(queries::LOAD)
            .with("@now", self.as_of)
            .with("@turn", self.turn())
            .with("@exec", exec)
            .with("@after", after);
        let look = || async {
            let mut backlog = Backlog::default();
            let goes_on = |rows: &[_]| backlog.goes_on(rows);
            self.core.store.query_while(self.call, self.instance, &query, goes_on).await
        };
        self.core.store.patient(self.call).retrying(|_| look()).await
    }

    /// The same with a part of a long queue. The head is read first: whatever is committed after that changes it, so what
    /// is read later is there when the head has not changed. What cannot be new is not asked for, and while the turn is
    /// somebody else's, no messages are.
    async fn part(&self, window: Window, least: u64) -> Result<Pages, Fault> {
        let mut pages = vec![self.rows(&Query::new(queries::LOAD_HEAD)).await?];
        let (shown, manifests) = sort_pages(&pages)?;
        let head = shown.head.as_ref();
        let is_other = self.known.is_some_and(|known| !is_continued(known, head));
        if !manifests.is_empty() || is_other || head.is_some_and(|head| is_held(self.core, &head.document)) {
            return Ok(pages);
        }
        let is_new = self
            .known
            .is_none_or(|known| head.is_none_or(|head| head.document.turn != known.head.document.turn));
        if is_new {
            let values = Query::new(queries::VALUES_SINCE).with("@turn", self.turn());
            pages.push(self.rows(&values).await?);
        }
        let (exec, after) = self.history();
        if is_new && exec >= 0 {
            let history = Query::new(queries::HISTORY).with("@exec", exec).with("@after", after);
            pages.push(self.rows(&history).await?);
        }
        if !window.is_remembered {
            pages.push(self.oldest_unkeyed().await?);
        }
        let messages = Query::new(queries::MESSAGES_BETWEEN)
            .with("@now", self.as_of)
            .with("@least", least)
            .with("@upto", window.upto);
        pages.push(self.rows_in_order(&messages).await?);
        Ok(pages)
    }

    /// Messages without an order key among those that wait for longest. There are none but in containers of the public
    /// crate, and what waits behind so many others is not for the next turns.
    async fn oldest_unkeyed(&self) -> Result<Vec<Box<RawValue>>, Fault> {
        #[derive(Deserialize)]
        struct Row {
            message: Option<Box<RawValue>>,
        }
        let query =
            Query::new(queries::OLDEST_UNKEYED).with("@now", self.as_of).with("@rows", backlog::WINDOW + 1);
        let look = || self.core.store.query_in_order(self.call, self.instance, &query, "visibleAt");
        let rows = self.core.store.patient(self.call).retrying(|_| look()).await?;
        let messages = rows.iter().map(|row| decode::<Row>(row.get().as_bytes()));
        messages.filter_map(|row| row.map(|row| row.message).transpose()).collect()
    }

    /// The order key up to which the messages of a long queue are read.
    async fn first_window(&self, least: u64) -> Result<u64, Fault> {
        let query = Query::new(queries::FIRST_MESSAGES)
            .with("@now", self.as_of)
            .with("@least", least)
            .with("@rows", backlog::WINDOW + 1);
        let rows = self.rows_in_order(&query).await?;
        let first: Vec<Outline> =
            rows.iter().map(|row| decode(row.get().as_bytes())).collect::<Result<_, Fault>>()?;
        Ok(backlog::window(&first).unwrap_or(ORDER_MAX))
    }

    async fn rows(&self, query: &Query) -> Result<Vec<Box<RawValue>>, Fault> {
        self.core.store.patient(self.call).query(self.instance, query).await
    }

    async fn rows_in_order(&self, query: &Query) -> Result<Vec<Box<RawValue>>, Fault> {
        let look = || self.core.store.query_in_order(self.call, self.instance, query, "seq");
        self.core.store.patient(self.call).retrying(|_| look()).await
    }
}

impl Partition {
    /// Leaves out the messages that have to wait for others that were put off.
    fn set_aside_put_off(&mut self, now: u64) {
        let Some(head) = self.head.as_ref().map(|head| &head.document) else { return };
        let waits = |message: &Message| head.puts_off(message.order(), now);
        let put_off = self.messages.iter().filter_map(|message| Some((message.id.clone(), waits(message)?)));
        self.put_off = put_off.collect();
        self.messages.retain(|message| waits(message).is_none());
    }
}

/// Sorts the pages of a look. Only a page shows one moment: the messages on pages before the one with the head are of an
/// earlier moment than the head. Where there is none, all of them are: the head that is made then may not be the first.
fn sort_pages(pages: &[Vec<Box<RawValue>>]) -> Result<(Partition, Vec<Manifest>), Fault> {
    let mut partition = Partition::default();
    let mut manifests = Vec::new();
    for (number, rows) in pages.iter().enumerate() {
        let had_head = partition.head.is_some();
        let had = partition.messages.len();
        sort_rows(rows, &mut partition, &mut manifests)?;
        let is_before_head = !had_head && partition.head.is_none() && number + 1 < pages.len();
        if is_before_head {
            let before = partition.messages[had..].iter().map(|message| message.id.clone());
            partition.read_before_head.extend(before);
        }
    }
    Ok((partition, manifests))
}

fn sort_rows(
    rows: &[Box<RawValue>],
    partition: &mut Partition,
    manifests: &mut Vec<Manifest>,
) -> Result<(), Fault> {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(rename = "type")]
        kind: String,
        #[serde(rename = "_etag", default)]
        etag: String,
        #[serde(default, deserialize_with = "lenient")]
        committed: Option<bool>,
    }
    for row in rows {
        let text = row.get().as_bytes();
        let envelope: Envelope = decode(text)?;
        match envelope.kind.as_str() {
            kind::INSTANCE | kind::DELETING => {
                partition.head = Some(Tagged { document: decode(text)?, etag: envelope.etag });
            }
            // The mark of what is only being prepared is its maker's business.
            kind::MANIFEST if envelope.committed == Some(false) => {}
            kind::MANIFEST => manifests.push(decode(text)?),
            kind::MESSAGE => partition.messages.push(decode(text)?),
            // Without one that cannot be read the events do not add up, and whoever then reads them all tells why.
            kind::HISTORY => partition.history.extend(decode::<HistoryDocument>(text).ok()),
            kind::VALUE => {
                // One in pieces is put together when somebody asks for it. One that cannot be read is missed only if
                // the head points to it.
                if let Ok(ValueDocument { id, value, chunks: None, .. }) = decode(text) {
                    partition.values.insert(id, value);
                }
            }
            kind::LEGACY_KV | kind::LEGACY_KV_DELTA => match partition.legacy.add(&envelope.kind, text) {
                Ok((id, value)) => partition.values.extend(value.map(|value| (id, value))),
                Err(fault) => {
                    partition.damage = Some(format!("a document of type {} is lost: {fault}", envelope.kind));
                }
            },
            _ => {}
        }
    }
    Ok(())
}

/// Reads rows as a look at a partition reads them.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_rows(rows: &[Box<RawValue>]) {
    let mut partition = Partition::default();
    if sort_rows(rows, &mut partition, &mut Vec::new()).is_err() {
        return;
    }
    for document in partition.history {
        let _ = document.into_texts().and_then(|texts| documents::decode(&texts));
    }
    if let Some(head) = partition.head.map(|head| head.document) {
        let _ = (head.last_event_in_documents(), documents::decode(&head.events));
    }
}

impl LegacyValues {
    /// Adds what a document holds, and returns its id and the value in it.
    fn add(&mut self, kind: &str, text: &[u8]) -> Result<(String, Option<String>), Fault> {
        let row: LegacyValue = decode(text)?;
        let cell = self.cells.entry(row.key).or_default();
        let stored = row.value.as_ref().map(|value| {
            let inline = Stored::inline(value, row.last_updated_at_ms);
            Stored { document: Some(row.id.clone()), ..inline }
        });
        match (kind == kind::LEGACY_KV_DELTA, stored) {
            (false, stored) => cell.stored = stored,
            (true, Some(changed)) => cell.changed = Some(changed),
            (true, None) => cell.cleared = true,
        }
        self.documents.push(row.id.clone());
        Ok((row.id, row.value))
    }

    /// Reads them from the partition of an instance that has no other.
    pub(crate) async fn read(core: &Core, call: Call, instance: &str) -> Result<Self, Fault> {
        let query = Query::new(queries::LEGACY_VALUES);
        let rows = core.store.patient(call).query(instance, &query).await?;
        let (partition, _) = sort_pages(&[rows])?;
        partition.damage.map_or(Ok(partition.legacy), |damage| Err(Fault::damaged(damage)))
    }
}

/// Completes what a look has shown to the whole history of the head's current execution: what is in documents, and after
/// it what is in the head.
///
/// The number of events is checked against the head; a mismatch means the look straddled a commit.
pub(crate) async fn history(
    core: &Core,
    call: Call,
    instance: &str,
    partition: &Partition,
) -> Result<History, Fault> {
    let Some(head) = partition.head.as_ref().map(|head| &head.document) else {
        return Ok(History { events: Ok(Vec::new()), legacy_start: LegacyStart::default() });
    };
    // Events committed after the head was read are not its, and those that were moved out of it since are in it: documents
    // with them are ignored, not missing.
    let upto = if head.is_legacy() { u64::MAX } else { head.last_event_in_documents() };
    if let Some(known) = &partition.known {
        let fresh = partition.history.iter().filter(|document| document.event_id <= upto).cloned().collect();
        let mut fresh = match texts(core, call, instance, fresh).await {
            Err(fault) if fault.is_damage => return Ok(History::lost(fault.to_string())),
            fresh => fresh?,
        };
        fresh.extend(head.events.iter().cloned());
        // What was in the head before is among these, in the head still or in a document.
        let in_documents = known.in_documents();
        let unknown = fresh.get(known.events.len() - in_documents..);
        if let Some(unknown) = unknown.filter(|_| (in_documents + fresh.len()) as u64 == head.event_count) {
            let mut events = Vec::clone(&known.events);
            let decoded = documents::decode(unknown).map(|fresh| {
                events.extend(fresh);
                events
            });
            return Ok(History { events: decoded, legacy_start: LegacyStart::default() });
        }
    }
    if !head.is_legacy() && head.event_count == head.events.len() as u64 {
        return Ok(History { events: documents::decode(&head.events), legacy_start: LegacyStart::default() });
    }
    let mut texts = match read_texts(core, call, instance, head.current_execution_id, upto).await {
        Err(fault) if fault.is_damage => return Ok(History::lost(fault.to_string())),
        texts => texts?,
    };
    texts.extend(head.events.iter().cloned());
    if !head.is_legacy() && texts.len() as u64 != head.event_count {
        let found = texts.len();
        let message = format!("history has {found} events where the head says {}", head.event_count);
        return Ok(History::lost(message));
    }
    let events = documents::decode(&texts);
    let legacy_start = LegacyStart {
        last_event_id: events
            .as_ref()
            .ok()
            .and_then(|events| events.last())
            .map_or(texts.len() as u64, |last| last.event_id),
        event_count: texts.len() as u64,
        event_bytes: texts.iter().map(|text| text.len() as u64).sum(),
        carry_forward: events.as_ref().map_or(0, |events| carried(events)),
    };
    Ok(History { events, legacy_start })
}

/// The texts of the events of an execution, in documents that begin with event `upto` at the latest.
pub(crate) async fn read_texts(
    core: &Core,
    call: Call,
    instance: &str,
    execution: u64,
    upto: u64,
) -> Result<Vec<String>, Fault> {
    let query = Query::new(queries::HISTORY).with("@exec", execution).with("@after", -1);
    let rows = core.store.patient(call).query(instance, &query).await?;
    let mut documents: Vec<HistoryDocument> =
        rows.iter().map(|row| decode(row.get().as_bytes())).collect::<Result<_, Fault>>()?;
    documents.retain(|document| document.event_id <= upto);
    texts(core, call, instance, documents).await
}

/// Puts history documents in order and fetches what is in pieces.
async fn texts(
    core: &Core,
    call: Call,
    instance: &str,
    mut documents: Vec<HistoryDocument>,
) -> Result<Vec<String>, Fault> {
    documents.sort_by_key(|document| document.event_id);
    let mut texts = Vec::new();
    let mut bytes = 0;
    for document in documents {
        let read = texts.len();
        match &document.chunks {
            Some(chunks) => texts.push(join(&core.store, call, instance, chunks).await?),
            None => texts.extend(document.into_texts().map_err(Fault::damaged)?),
        }
        bytes += texts[read..].iter().map(String::len).sum::<usize>();
        if bytes > HISTORY_BYTES_MAX {
            let message =
                format!("the history is longer than the {HISTORY_BYTES_MAX} bytes that are read at once");
            return Err(Fault::damaged(message));
        }
    }
    Ok(texts)
}

/// A value the head points to.
pub(crate) async fn value(
    core: &Core,
    call: Call,
    instance: &str,
    id: &str,
) -> Result<Option<String>, Fault> {
    let Some(found) = core.store.patient(call).read_as::<ValueDocument>(instance, id).await? else {
        return Ok(None);
    };
    match &found.document.chunks {
        Some(chunks) => join(&core.store, call, instance, chunks).await.map(Some),
        None => Ok(Some(found.document.value)),
    }
}

/// How many events an execution was started with.
pub(crate) fn carried(events: &[Event]) -> u64 {
    match events.first().map(|event| &event.kind) {
        Some(EventKind::OrchestrationStarted { carry_forward_events: Some(events), .. }) => {
            events.len() as u64
        }
        _ => 0,
    }
}

const LOOKS_MAX: usize = 6;
/// Beyond all order keys, and a whole number for everybody.
const ORDER_MAX: u64 = u64::MAX >> 11;
/// The longest history: a runtime has all of it in memory for every turn. Each document is read as it was stored, but
/// ten thousand small ones could unpack to gigabytes.
const HISTORY_BYTES_MAX: usize = 512 << 20;
