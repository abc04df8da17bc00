//! Any container of the account: queries, items, changes.

use bytes::Bytes;
use cosmos_driver::{
    CallOptions, ChangeFeedStart, Container, ItemOptions, PartitionKey, Query, QueryOptions, Scope,
};
use cosmos_wire::resource::Link;
use cosmos_wire::signature::{Key, Signable};
use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use super::super::answer::{Failure, Outcome};
use super::super::route::Asked;
use super::super::{Store, plain};
use super::act::audit;
use crate::context::refuse_user;

/// Databases and their containers.
pub(in super::super) async fn containers(store: &Store) -> Outcome {
    let driver = store.connection.driver();
    let databases = rows(&driver.list_databases(None, CallOptions::default()).await?, "Databases")?;
    let mut found = Vec::new();
    for database in databases.iter().filter_map(|database| database["id"].as_str()) {
        let listed = driver.database(database).list_containers(None, CallOptions::default()).await?;
        let containers = rows(&listed, "DocumentCollections")?;
        let containers: Vec<Value> = containers
            .iter()
            .map(|container| json!({"id": container["id"], "partitionKey": container["partitionKey"]["paths"]}))
            .collect();
        found.push(json!({"id": database, "containers": containers}));
    }
    Ok(json!({"databases": found}))
}

/// A page of a query, with its charge and where the next begins.
pub(in super::super) async fn query(store: &Store, asked: &Asked) -> Outcome {
    let container = container(store, asked.text("database"), asked.text("container"))?;
    let mut query = Query::new(asked.text("sql"));
    for (name, value) in asked.body["parameters"].as_object().into_iter().flatten() {
        query = query.with(name.as_str(), value.clone());
    }
    let scope = match &asked.body["key"] {
        Value::Null => Scope::Container,
        key => Scope::PartitionKey(partition_key(key)?),
    };
    let limit = asked.body["limit"].as_u64().and_then(|limit| u32::try_from(limit).ok()).unwrap_or(100);
    let mut options = QueryOptions::default().with_page_size(limit.clamp(1, 1000));
    if let Some(continuation) = asked.body["continuation"].as_str() {
        options = options.with_continuation(continuation);
    }
    let began = std::time::Instant::now();
    let page = container.query(query, scope, options).next().await.map_err(plainly)?;
    let elapsed = began.elapsed().as_secs_f64() * 1000.0;
    let Some(page) = page else {
        return Ok(json!({"rows": [], "units": 0, "ms": elapsed, "continuation": null}));
    };
    let found: Vec<Value> = page.items()?;
    let spent = store.live.charge(page.charge());
    Ok(json!({"rows": found, "units": page.charge(), "ms": elapsed, "continuation": page.continuation(),
        "requests": page.diagnostics().attempts().len(), "cost": {"units": page.charge(), "spent": spent}}))
}

/// How the service would carry a query out, and what its first page did in each physical partition.
pub(in super::super) async fn explain(store: &Store, asked: &Asked) -> Outcome {
    let endpoint = store.connection.endpoint();
    if !endpoint.starts_with("http://") {
        return Err(Failure::new(
            StatusCode::NOT_IMPLEMENTED,
            "plans and metrics are shown for emulators over plain http; the charge is shown everywhere",
        ));
    }
    refuse_user(endpoint)?;
    let body =
        json!({"query": asked.text("sql"), "parameters": parameters(&asked.body["parameters"])}).to_string();
    let link = format!("dbs/{}/colls/{}", asked.text("database"), asked.text("container"));
    let plan = signed(store, "POST", &format!("{link}/docs"), &body, PLAN).await?;
    let plan_json: Value = serde_json::from_slice(&plan.body).unwrap_or_default();
    if !plan.status.is_success() {
        return Err(Failure::usage(
            plan_json["message"].as_str().unwrap_or("the query has no plan").to_owned(),
        ));
    }
    let rewritten = plan_json["queryInfo"]["rewrittenQuery"].as_str().filter(|text| !text.is_empty());
    let text =
        rewritten.unwrap_or(asked.text("sql")).replace("{documentdb-formattableorderbyquery-filter}", "true");
    let body = json!({"query": text, "parameters": parameters(&asked.body["parameters"])}).to_string();
    let listed = signed(store, "GET", &format!("{link}/pkranges"), "", &[]).await?;
    let listed: Value = serde_json::from_slice(&listed.body).unwrap_or_default();
    let mut partitions = Vec::new();
    for range in listed["PartitionKeyRanges"].as_array().into_iter().flatten().take(PARTITIONS_MAX) {
        let id = range["id"].as_str().unwrap_or_default();
        let mut headers = METRICS.to_vec();
        headers.push(("x-ms-documentdb-partitionkeyrangeid", id));
        let reply = signed(store, "POST", &format!("{link}/docs"), &body, &headers).await?;
        let header =
            |name: &str| reply.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let units: f64 = header("x-ms-request-charge").parse().unwrap_or_default();
        store.live.charge(units);
        partitions.push(json!({"id": id, "status": reply.status.as_u16(), "units": units,
            "metrics": metrics(header("x-ms-documentdb-query-metrics")), "index": index(header("x-ms-cosmos-index-utilization")),
            "rows": header("x-ms-item-count")}));
    }
    Ok(json!({"plan": plan_json, "partitions": partitions}))
}

/// One item.
pub(in super::super) async fn item(store: &Store, asked: &Asked) -> Outcome {
    let parameter = |name: &str| asked.parameter(name).unwrap_or_default();
    let container = container(store, parameter("database"), parameter("container"))?;
    let key: Value = serde_json::from_str(parameter("key")).map_err(|_| Failure::usage("the key is JSON"))?;
    let read = container
        .read_item(partition_key(&key)?, parameter("id"), ItemOptions::default())
        .await
        .map_err(plainly)?;
    store.live.charge(read.charge());
    Ok(json!({"item": read.json::<Value>()?, "etag": read.etag(), "units": read.charge()}))
}

/// Creates an item, or replaces the one that still has the ETag that was seen.
pub(in super::super) async fn write(store: &Store, asked: &Asked) -> Outcome {
    let container = container(store, asked.text("database"), asked.text("container"))?;
    let key = partition_key(&asked.body["key"])?;
    let item = &asked.body["item"];
    let id = item["id"].as_str().ok_or_else(|| Failure::usage("an item has an id"))?;
    let written = match asked.text("etag") {
        "" => container.create_item(key, item, ItemOptions::default()).await,
        etag => container.replace_item(key, id, item, ItemOptions::default().with_if_match(etag)).await,
    };
    let written = written.map_err(plainly)?;
    store.live.charge(written.charge());
    audit(&format!("write item {id:?} of {:?}", asked.text("container")));
    Ok(json!({"etag": written.etag(), "units": written.charge()}))
}

/// Deletes an item that still has the ETag that was seen.
pub(in super::super) async fn delete(store: &Store, asked: &Asked) -> Outcome {
    let container = container(store, asked.text("database"), asked.text("container"))?;
    let id = asked.text("id");
    if asked.text("confirm") != "delete 1" || asked.text("etag").is_empty() {
        return Err(Failure::usage("type \"delete 1\" to confirm"));
    }
    let options = ItemOptions::default().with_if_match(asked.text("etag"));
    let gone =
        container.delete_item(partition_key(&asked.body["key"])?, id, options).await.map_err(plainly)?;
    store.live.charge(gone.charge());
    audit(&format!("delete item {id:?} of {:?}", asked.text("container")));
    Ok(json!({"units": gone.charge()}))
}

/// What has changed since a place in the change feed, or from now on.
pub(in super::super) async fn feed(store: &Store, asked: &Asked) -> Outcome {
    let parameter = |name: &str| asked.parameter(name).unwrap_or_default();
    let container = container(store, parameter("database"), parameter("container"))?;
    let start = match asked.parameter("continuation") {
        Some(continuation) => ChangeFeedStart::Continuation(continuation.to_owned()),
        None if asked.parameter("beginning").is_some() => ChangeFeedStart::Beginning,
        None => ChangeFeedStart::Now,
    };
    let mut feed = container.change_feed(Scope::Container, start, CallOptions::default()).with_page_size(50);
    let page = feed.next().await.map_err(plainly)?;
    let spent = store.live.charge(page.charge());
    let changed: Vec<Value> = page.items()?;
    Ok(json!({"rows": changed, "continuation": page.continuation(), "units": page.charge(),
        "cost": {"units": page.charge(), "spent": spent}}))
}

fn container(store: &Store, database: &str, container: &str) -> Result<Container, Failure> {
    Ok(store.connection.driver().container(database, container)?)
}

/// A key as JSON: a value, or several of a hierarchical key.
fn partition_key(key: &Value) -> Result<PartitionKey, Failure> {
    let values = match key {
        Value::Array(values) => values.clone(),
        one => vec![one.clone()],
    };
    let text = Value::Array(values).to_string();
    text.parse().map_err(|_| Failure::usage("this cannot be a partition key"))
}

/// What the service said, without the story of the attempts.
#[expect(clippy::needless_pass_by_value, reason = "it stands where results are mapped")]
fn plainly(error: cosmos_driver::Error) -> Failure {
    let status = error.status().and_then(|status| StatusCode::from_u16(status).ok());
    // 401 and 403 of the account are not those of these pages.
    let status =
        status.filter(|status| ![401, 403].contains(&status.as_u16())).unwrap_or(StatusCode::BAD_GATEWAY);
    Failure::new(status, error.message().to_owned())
}

/// The first page of a list; nobody looks through more names than it has.
fn rows(response: &cosmos_driver::Response, field: &str) -> Result<Vec<Value>, Failure> {
    let body: Value = response.json()?;
    Ok(body[field].as_array().cloned().unwrap_or_default())
}

fn parameters(named: &Value) -> Value {
    let named = named.as_object().into_iter().flatten();
    named.map(|(name, value)| json!({"name": name, "value": value})).collect()
}

async fn signed(
    store: &Store,
    method: &str,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> anyhow::Result<plain::Reply> {
    let path = format!("/{path}");
    let link = Link::parse(&path).map_err(|_| anyhow::anyhow!("there is no such container"))?;
    let date = cosmos_wire::date::format(std::time::SystemTime::now());
    let key = store.connection.key().ok_or_else(|| anyhow::anyhow!("this needs a key of the account"))?;
    let key = Key::from_base64(key).map_err(|_| anyhow::anyhow!("the key is not base64"))?;
    let authorization =
        key.authorization(&Signable::new(method, link.signed_type(), &link.signed_link(), &date));
    let mut request = Request::builder()
        .method(method)
        .uri(path.replace(' ', "%20"))
        .header("x-ms-version", "2020-07-15")
        .header("x-ms-date", date)
        .header("authorization", authorization);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body.to_owned())))?;
    plain::send(store.connection.endpoint(), request).await
}

/// `a=1.5;b=2` as an object.
fn metrics(header: &str) -> Value {
    let pairs = header.split(';').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| {
            (name.to_owned(), value.parse::<f64>().map_or(json!(value), |number| json!(number)))
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Which indexes were used and which would help: base64 of JSON, or JSON.
fn index(header: &str) -> Value {
    serde_json::from_str(header).unwrap_or_else(|_| json!(header))
}

const PARTITIONS_MAX: usize = 20;
const PLAN: &[(&str, &str)] = &[
    ("content-type", "application/query+json"),
    ("x-ms-documentdb-isquery", "true"),
    ("x-ms-cosmos-is-query-plan-request", "True"),
    (
        "x-ms-cosmos-supported-query-features",
        "Aggregate, CompositeAggregate, MultipleOrderBy, MultipleAggregates, OffsetAndLimit, OrderBy, Top, \
         NonValueAggregate, Distinct, GroupBy",
    ),
];
const METRICS: &[(&str, &str)] = &[
    ("content-type", "application/query+json"),
    ("x-ms-documentdb-isquery", "true"),
    ("x-ms-documentdb-query-enablecrosspartition", "true"),
    ("x-ms-documentdb-populatequerymetrics", "True"),
    ("x-ms-cosmos-populateindexmetrics", "True"),
    ("x-ms-max-item-count", "100"),
];
