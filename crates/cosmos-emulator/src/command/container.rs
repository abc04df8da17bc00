//! Containers: create, read, replace, list, query, delete.

use cosmos_wire::header;
use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::resource::{self, feed, reply, throughput};
use super::{Reply, container_path, database, decoded};
use crate::engine::{Container, PageSize, ReadFeedRequest, ResourceReply, Scope, ScriptKind};
use crate::failure::Failure;
use crate::http::headers::name;
use crate::http::{Account, Call};

pub(crate) fn create(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let throughput = throughput(&asked)?;
    let body = decoded(&call.body)?;
    if asked.text(name::VERSION) == Some(cosmos_wire::API_VERSION_2018) && is_hierarchical(&body) {
        return Err(Failure::bad_request(
            "The 'kind' value 'MultiHash' specified in the partition key definition is invalid for x-ms-version \
             2018-12-31; use 2020-07-15 or later.",
        ));
    }
    Ok(with_limits(account.engine.create_container(database::name(call)?, &body, throughput)?))
}

fn is_hierarchical(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|body| body["partitionKey"]["kind"] == "MultiHash")
}

pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let path = container_path(call)?;
    let mut answer = account.engine.read_container(&path.database, &path.container)?;
    let asked = call.asked();
    let wanted = |name| asked.text(name).is_some_and(header::is_true);
    if wanted(name::POPULATE_PARTITION_STATISTICS) || wanted(name::POPULATE_PARTITION_KEY_RANGE_STATISTICS) {
        let container = account.engine.container(&path.database, &path.container)?;
        answer.body["statistics"] = statistics(account, &container)?;
    }
    let mut reply = with_limits(answer);
    if wanted(name::POPULATE_QUOTA_INFO) {
        let container = account.engine.container(&path.database, &path.container)?;
        let partitions = statistics(account, &container)?;
        let count = |kind| account.engine.scripts(&container, kind).map(|scripts| scripts.resources.len());
        let scripts =
            [count(ScriptKind::Function)?, count(ScriptKind::Procedure)?, count(ScriptKind::Trigger)?];
        reply.extra.extend(quota(&partitions, scripts));
    }
    Ok(reply)
}

/// What a container holds, and how much it may.
fn quota(
    partitions: &Value,
    [functions, procedures, triggers]: [usize; 3],
) -> [(HeaderName, HeaderValue); 2] {
    const USAGE: HeaderName = HeaderName::from_static(header::RESOURCE_USAGE);
    const QUOTA: HeaderName = HeaderName::from_static(header::RESOURCE_QUOTA);
    let sum = |field: &str| -> u64 {
        partitions.as_array().into_iter().flatten().filter_map(|partition| partition[field].as_u64()).sum()
    };
    let (count, kilobytes) = (sum("documentCount"), sum("sizeInKB"));
    let usage = format!(
        "functions={functions};storedProcedures={procedures};triggers={triggers};documentSize=0;documentsSize={kilobytes};documentsCount={count};\
         collectionSize={kilobytes};"
    );
    const ALLOWED: HeaderValue = HeaderValue::from_static(
        "functions=50;storedProcedures=100;triggers=25;documentSize=10240;documentsSize=10485760;documentsCount=-1;\
         collectionSize=10485760;",
    );
    [(QUOTA, ALLOWED), (USAGE, HeaderValue::from_str(&usage).unwrap_or(HeaderValue::from_static("")))]
}

/// How much each partition holds, counted item by item: only for those who ask.
fn statistics(account: &Account, container: &Container) -> Result<Value, Failure> {
    let mut list = Vec::new();
    for range in container.range_ids() {
        let (mut count, mut bytes, mut continuation) = (0, 0, None);
        loop {
            let request = ReadFeedRequest {
                scope: Scope::Range(range.to_string()),
                page_size: PageSize::Dynamic,
                continuation: continuation.take(),
                session_token: None,
            };
            let page = account.engine.read_feed(container, request)?;
            count += page.documents.len();
            bytes += page.documents.iter().map(bytes::Bytes::len).sum::<usize>();
            continuation = page.continuation;
            if continuation.is_none() {
                break;
            }
        }
        list.push(json!({
            "id": range.to_string(),
            "sizeInKB": bytes.div_ceil(1024),
            "documentCount": count,
            "partitionKeys": [],
        }));
    }
    Ok(list.into())
}

pub(crate) fn replace(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let path = container_path(call)?;
    let if_match = call.asked().text(name::IF_MATCH);
    let body = decoded(&call.body)?;
    Ok(with_limits(account.engine.replace_container(&path.database, &path.container, &body, if_match)?))
}

pub(crate) fn list(account: &Account, call: &Call) -> Result<Reply, Failure> {
    feed(call, &account.engine.containers(database::name(call)?)?, "DocumentCollections")
}

pub(crate) fn query(account: &Account, call: &Call) -> Result<Reply, Failure> {
    resource::query(account, call, account.engine.containers(database::name(call)?)?, "DocumentCollections")
}

pub(crate) fn delete(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let path = container_path(call)?;
    let if_match = call.asked().text(name::IF_MATCH);
    Ok(reply(account.engine.delete_container(&path.database, &path.container, if_match)?))
}

/// A container's answer says how large its items may be, and that its index is complete.
fn with_limits(answer: ResourceReply) -> Reply {
    const MAX_CONTENT_LENGTH: HeaderName = HeaderName::from_static(header::MAX_CONTENT_LENGTH);
    const INDEX_PROGRESS: HeaderName = HeaderName::from_static(header::INDEX_TRANSFORMATION_PROGRESS);
    let mut reply = reply(answer);
    reply.extra.push((MAX_CONTENT_LENGTH, HeaderValue::from_static("2097152")));
    reply.extra.push((INDEX_PROGRESS, HeaderValue::from_static("100")));
    reply
}
