//! One file per noun: what a request asks, put to the engine, and its reply.

pub(crate) mod account;
mod batch;
mod conflict;
mod container;
mod database;
mod encryption;
mod feed;
mod index_metrics;
mod item;
mod offer;
mod partition;
mod query;
mod ranges;
mod resource;
mod script;
mod user;

#[cfg(test)]
pub(crate) use self::batch::batch_operations;

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use cosmos_wire::binary_json;
use cosmos_wire::epk::Epk;
use cosmos_wire::number::{self, Style};
use cosmos_wire::partition_key::PartitionKey;
use cosmos_wire::status::Status;
use http::{HeaderName, HeaderValue};
use serde_json::Value;

use crate::config::Consistency;
use crate::engine::{Container, ContentPath, PageSize, Scope, Standing, range_gone};
use crate::failure::Failure;
use crate::http::headers::{Asked, name};
use crate::http::route::{ContainerPath, Target};
use crate::http::{Account, Call, RoutedTo};
use crate::operation::Operation;
use crate::storage::Ticket;

/// What a command answers, before it is written out.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    pub(crate) charge: f64,
    pub(crate) etag: Option<String>,
    pub(crate) session_token: Option<String>,
    pub(crate) continuation: Option<String>,
    pub(crate) item_count: Option<usize>,
    /// Of the partition that answered.
    pub(crate) range_id: Option<u32>,
    pub(crate) position: Option<Position>,
    pub(crate) container: Option<ContentPath>,
    pub(crate) extra: Vec<(HeaderName, HeaderValue)>,
    /// Wait for it before answering.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) documents_visited: u64,
}

/// How far a partition is.
#[derive(Debug)]
pub(crate) struct Position {
    pub(crate) lsn: u64,
    pub(crate) item_lsn: u64,
}

impl Reply {
    /// A JSON body and nothing else.
    fn json(status: u16, body: &Value) -> Self {
        let body = if status == 204 { Bytes::new() } else { number::to_json(body, Style::Point).into() };
        Self { status, body, ..Self::default() }
    }

    /// An answer of a partition, with the headers that say where it stands.
    fn standing(container: &Container, standing: Standing, item_lsn: Option<u64>) -> Self {
        Self {
            status: 200,
            session_token: Some(standing.session_token),
            range_id: Some(standing.range_id),
            position: Some(Position { lsn: standing.lsn, item_lsn: item_lsn.unwrap_or(standing.lsn) }),
            container: Some(container.content_path.clone()),
            ..Self::default()
        }
    }
}

/// Runs the command of a call.
pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let mut reply = dispatch(account, call)?;
    let is_about_items =
        call.operation.reads_items() || matches!(call.route.target, Target::Item(..) | Target::Items(_));
    let is_other = matches!(call.operation, Operation::Batch | Operation::Bulk | Operation::QueryPlan);
    if is_about_items && !is_other && call.asked().takes_binary_only() {
        // An empty body, of a deletion, stays one.
        if let Ok(items) = serde_json::from_slice(&reply.body) {
            reply.body = binary_json::encode(&items).into();
        }
    }
    Ok(reply)
}

fn dispatch(account: &Account, call: &Call) -> Result<Reply, Failure> {
    match call.operation {
        Operation::ReadAccount => account::read(account, call),
        Operation::CreateDatabase => database::create(account, call),
        Operation::ReadDatabase => database::read(account, call),
        Operation::ListDatabases => database::list(account, call),
        Operation::QueryDatabases => database::query(account, call),
        Operation::DeleteDatabase => database::delete(account, call),
        Operation::CreateContainer => container::create(account, call),
        Operation::ReadContainer => container::read(account, call),
        Operation::ReplaceContainer => container::replace(account, call),
        Operation::ListContainers => container::list(account, call),
        Operation::QueryContainers => container::query(account, call),
        Operation::DeleteContainer => container::delete(account, call),
        Operation::ReadRanges => ranges::read(account, call),
        Operation::ReadOffer => offer::read(account, call),
        Operation::ListOffers => offer::list(account, call),
        Operation::QueryOffers => offer::query(account, call),
        Operation::ReplaceOffer => offer::replace(account, call),
        Operation::CreateItem
        | Operation::UpsertItem
        | Operation::ReadItem
        | Operation::ReplaceItem
        | Operation::PatchItem
        | Operation::DeleteItem => item::run(account, call),
        Operation::DeletePartition => partition::delete(account, call),
        Operation::Batch | Operation::Bulk => batch::run(account, call),
        Operation::Query => query::run(account, call),
        Operation::QueryPlan => query::plan(account, call),
        Operation::ReadFeed => feed::read(account, call),
        Operation::ChangeFeed => feed::changes(account, call),
        Operation::CreateScript
        | Operation::ReadScript
        | Operation::ReplaceScript
        | Operation::ListScripts
        | Operation::QueryScripts
        | Operation::DeleteScript
        | Operation::ExecuteScript => script::run(account, call),
        Operation::ListConflicts => conflict::list(account, call),
        Operation::ReadConflict => conflict::read(account, call),
        Operation::DeleteConflict => conflict::delete(account, call),
        Operation::CreateEncryptionKey
        | Operation::ReadEncryptionKey
        | Operation::ReplaceEncryptionKey
        | Operation::ListEncryptionKeys
        | Operation::QueryEncryptionKeys => encryption::run(account, call),
        Operation::CreateUser
        | Operation::ReadUser
        | Operation::ReplaceUser
        | Operation::ListUsers
        | Operation::QueryUsers
        | Operation::DeleteUser
        | Operation::CreatePermission
        | Operation::ReadPermission
        | Operation::ReplacePermission
        | Operation::ListPermissions
        | Operation::QueryPermissions
        | Operation::DeletePermission => user::run(account, call),
    }
}

/// The container a call is about.
fn container(account: &Account, call: &Call) -> Result<Arc<Container>, Failure> {
    let path = container_path(call)?;
    let container = account.engine.container_in(call.region, &path.database, &path.container)?;
    if let Some(intended) = call.asked().text(name::INTENDED_COLLECTION_RID)
        && intended != container.rid()
    {
        let message = format!(
            "The intended collection rid '{intended}' does not match the container's, '{}'.",
            container.rid()
        );
        return Err(Failure::of(Status::COLLECTION_RID_MISMATCH, message));
    }
    check_routing(call, &container)?;
    Ok(container)
}

/// A frame of Gateway 2.0 says where its partition key lies. One that says otherwise would reach another partition.
fn check_routing(call: &Call, container: &Container) -> Result<(), Failure> {
    let Some(RoutedTo(told)) = call.head.note() else { return Ok(()) };
    let Some(key) = partition_key(&call.asked())? else { return Ok(()) };
    if Epk::of(&key, container.partition_key()) == *told {
        return Ok(());
    }
    let message = "The effective partition key of the request is not that of its partition key.";
    Err(Failure::of(Status::PARTITION_KEY_MISMATCH, message))
}

fn container_path(call: &Call) -> Result<&ContainerPath, Failure> {
    match &call.route.target {
        Target::Container(path)
        | Target::Items(path)
        | Target::Item(path, _)
        | Target::Ranges(path)
        | Target::Conflicts(path)
        | Target::Conflict(path, _)
        | Target::Scripts(path, _)
        | Target::Script(path, ..)
        | Target::PartitionDelete(path) => Ok(path),
        _ => Err(Failure::bad_request("Request url is invalid.")),
    }
}

/// The text of a header as the engine takes it.
fn text(asked: &Asked<'_>, name: HeaderName) -> Option<String> {
    asked.text(name).map(str::to_owned)
}

/// The partition key a request is for.
fn partition_key(asked: &Asked<'_>) -> Result<Option<PartitionKey>, Failure> {
    asked.utf8(name::PARTITION_KEY).map(parse_key).transpose()
}

fn parse_key(text: &str) -> Result<PartitionKey, Failure> {
    text.parse().map_err(|_| {
        Failure::bad_request(format!("Partition key {text} is invalid: it must be a JSON array of scalars."))
    })
}

/// The session token counts where the read is a session read.
fn session_token(account: &Account, asked: &Asked<'_>) -> Option<String> {
    let is_session = match asked.text(name::READ_CONSISTENCY_STRATEGY) {
        Some(strategy) => strategy == "Session",
        None => {
            let asked = asked.text(name::CONSISTENCY_LEVEL).and_then(Consistency::parse);
            asked.unwrap_or(account.consistency) == Consistency::Session
        }
    };
    is_session.then(|| text(asked, name::SESSION_TOKEN)).flatten()
}

fn page_size(asked: &Asked<'_>) -> Result<PageSize, Failure> {
    asked.page_size()
}

/// The physical partition that a request names.
fn range_id(asked: &Asked<'_>) -> Option<String> {
    // SDKs may write `{container rid},{range}`.
    let range = asked.text(name::PARTITION_KEY_RANGE_ID)?;
    Some(range.rsplit(',').next().unwrap_or(range).trim().to_owned())
}

/// Which part of a container a request looks at.
fn scope(asked: &Asked<'_>, container: &Container) -> Result<Scope, Failure> {
    let range = range_id(asked);
    if let Some((min, max)) = asked.epk_range()? {
        // The keys may still be served, but by other partitions than the client thinks.
        if range.is_some_and(|range| !container.has_range(&range)) {
            return Err(range_gone());
        }
        return Ok(Scope::EpkRange(min.to_owned(), max.to_owned()));
    }
    if let Some(key) = partition_key(asked)? {
        return Ok(Scope::PartitionKey(key));
    }
    Ok(range.map_or(Scope::All, Scope::Range))
}

/// A body as JSON text: Cosmos binary is turned into it.
fn decoded(body: &Bytes) -> Result<Bytes, Failure> {
    if binary_json::is_binary(body) {
        let value = binary_json::decode(body).map_err(|_| invalid_payload())?;
        return Ok(value.to_string().into());
    }
    if body.is_empty() {
        return Err(invalid_payload());
    }
    Ok(body.clone())
}

fn invalid_payload() -> Failure {
    Failure::bad_request("The request payload is invalid. Ensure to provide a valid request payload.")
}

/// The body of a feed: `{"_rid":..,"Documents":[..],"_count":..}`.
struct Envelope {
    out: BytesMut,
}

impl Envelope {
    fn new(rid: &str, member: &'static str) -> Self {
        let mut out = BytesMut::with_capacity(4096);
        out.put_slice(b"{\"_rid\":");
        out.put_slice(Value::from(rid).to_string().as_bytes());
        out.put_slice(b",\"");
        out.put_slice(member.as_bytes());
        out.put_slice(b"\":[");
        Self { out }
    }

    /// Rows that are JSON text already.
    fn texts(mut self, rows: &[Bytes]) -> Bytes {
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                self.out.put_u8(b',');
            }
            self.out.put_slice(row);
        }
        self.close(rows.len())
    }

    fn values(mut self, rows: &[Value], style: Style) -> Bytes {
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                self.out.put_u8(b',');
            }
            let text = number::to_json(row, style);
            self.out.put_slice(&text);
        }
        self.close(rows.len())
    }

    fn close(mut self, count: usize) -> Bytes {
        self.out.put_slice(b"],\"_count\":");
        self.out.put_slice(count.to_string().as_bytes());
        self.out.put_u8(b'}');
        self.out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn feeds_are_json_with_their_count() {
        let texts =
            Envelope::new("r==", "Documents").texts(&[Bytes::from_static(b"{}"), Bytes::from_static(b"1")]);
        assert_eq!(texts, r#"{"_rid":"r==","Documents":[{},1],"_count":2}"#);
        let values = Envelope::new("", "Offers").values(&[json!({"a": 1})], Style::Query);
        assert_eq!(values, r#"{"_rid":"","Offers":[{"a":1}],"_count":1}"#);
        assert_eq!(Envelope::new("", "Offers").texts(&[]), r#"{"_rid":"","Offers":[],"_count":0}"#);
    }
}
