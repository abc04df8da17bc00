//! Clients and containers of the suite. Every test makes the container it needs.

pub mod process;

use std::env;
use std::io::{Read, Write};
use std::net::TcpStream;

use azure_data_cosmos::feed::{ContinuationToken, FeedScope};
use azure_data_cosmos::models::{ContainerProperties, PartitionKeyDefinition};
use azure_data_cosmos::options::{QueryOptions, Region};
use azure_data_cosmos::{
    AccountReference, ContainerClient, CosmosClient, CosmosError, DatabaseClient, Query, RoutingStrategy,
};
use futures::StreamExt;
use serde_json::{Value, json};
use uuid::Uuid;

/// One running emulator.
#[derive(Clone, Copy, Debug)]
pub enum Account {
    /// Its containers have one physical partition.
    OnePartition,
    /// Its containers have four.
    FourPartitions,
}

impl Account {
    /// Both, in the order they are tried.
    pub const ALL: [Account; 2] = [Account::OnePartition, Account::FourPartitions];

    /// A client that has seen nothing yet.
    pub async fn client(self) -> CosmosClient {
        let name = match self {
            Account::OnePartition => "COSMOS_ENDPOINT",
            Account::FourPartitions => "COSMOS_ENDPOINT_PARTITIONED",
        };
        let endpoint = variable(name).parse().expect("the endpoint is a URL");
        let account = AccountReference::with_authentication_key(endpoint, variable("COSMOS_KEY"));
        CosmosClient::builder()
            .build(account, RoutingStrategy::ProximityTo(Region::EAST_US))
            .await
            .expect("the account can be read")
    }

    /// A new database.
    pub async fn database(self) -> DatabaseClient {
        let client = self.client().await;
        let id = format!("conformance-{}", Uuid::new_v4());
        client.create_database(&id, None).await.expect("the database is created");
        client.database_client(id)
    }

    /// A new container keyed by `/pk`, in a database of its own.
    pub async fn container(self) -> ContainerClient {
        self.container_with("/pk".into(), |properties| properties).await
    }

    /// A new container with another key or policies.
    pub async fn container_with(
        self,
        key: PartitionKeyDefinition,
        settings: impl FnOnce(ContainerProperties) -> ContainerProperties,
    ) -> ContainerClient {
        let database = self.database().await;
        let properties = settings(ContainerProperties::new("items", key));
        database.create_container(properties, None).await.expect("the container is created");
        database.container_client("items", None).await.expect("the container is there")
    }

    /// A container of forty people in eight partitions, with what the query tests ask about.
    pub async fn people(self) -> ContainerClient {
        let container = self.container().await;
        for number in 0..40 {
            let city = ["Oslo", "Rome", "Lima", "Cairo"][number % 4];
            let id = format!("p{number:02}");
            let key = format!("key{}", number % 8);
            let tags = [format!("t{}", number % 3), format!("t{}", number % 5)];
            let item = json!({"id": id, "pk": key, "age": 20 + number % 10, "rank": number, "city": city, "tags": tags});
            container.create_item(key, &id, item, None).await.expect("the item is created");
        }
        container
    }
}

/// Asks the management API of the account with one partition.
pub fn manage(method: &str, path: &str, body: &Value) -> Value {
    let endpoint = variable("COSMOS_MANAGEMENT");
    let host = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(host).expect("the management API listens");
    let body = body.to_string();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(body.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    assert!(head.starts_with("HTTP/1.1 2"), "{answer}");
    serde_json::from_str(body).unwrap_or_default()
}

/// Everything a query answers.
pub async fn all(
    container: &ContainerClient,
    query: impl Into<Query>,
    scope: FeedScope,
) -> azure_data_cosmos::Result<Vec<Value>> {
    let mut items = container.query_items::<Value>(query, scope, None).await?;
    let mut found = Vec::new();
    while let Some(item) = items.next().await {
        found.push(item?);
    }
    Ok(found)
}

/// One page of a query, and the token of the next.
pub async fn page(
    container: &ContainerClient,
    query: &str,
    scope: FeedScope,
    options: QueryOptions,
) -> Option<(Vec<Value>, ContinuationToken)> {
    let items =
        container.query_items::<Value>(query, scope, Some(options)).await.expect("the query is planned");
    let mut pages = items.into_pages();
    let page = pages.next().await?.expect("the page comes");
    let token = pages.to_continuation_token().expect("the place can be kept");
    Some((page.into_items(), token))
}

/// The numbers in a list of answers.
pub fn numbers(values: &[Value]) -> Vec<i64> {
    values.iter().map(|value| value.as_i64().expect("a number")).collect()
}

/// The HTTP status an action was refused with.
pub fn status<T>(outcome: azure_data_cosmos::Result<T>) -> u16 {
    match outcome {
        Ok(_) => panic!("it went through"),
        Err(error) => code(&error),
    }
}

/// The HTTP status of an error.
pub fn code(error: &CosmosError) -> u16 {
    error.status().status_code().into()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run this suite through conformance/run"))
}
