//! The span of an operation, with the names that OpenTelemetry gives to database clients' attributes.

use tracing::Span;
use tracing::field::Empty;

use crate::diagnostics::Diagnostics;
use crate::error::Error;
use crate::request::Operation;
use crate::response::Response;

/// Opens it. Costs nothing while no subscriber listens.
pub(super) fn open(operation: &Operation) -> Span {
    let name = operation.kind.name();
    let span = tracing::debug_span!(
        "cosmos",
        "otel.name" = name,
        "otel.kind" = "client",
        "db.system.name" = "azure.cosmosdb",
        "db.operation.name" = name,
        "db.namespace" = Empty,
        "db.collection.name" = Empty,
        "db.response.status_code" = Empty,
        "azure.resource_provider.namespace" = "Microsoft.DocumentDB",
        "azure.cosmosdb.connection.mode" = "gateway",
        "azure.cosmosdb.request.body.size" = operation.body.len(),
        "azure.cosmosdb.response.sub_status_code" = Empty,
        "azure.cosmosdb.operation.request_charge" = Empty,
        "azure.cosmosdb.operation.contacted_regions" = Empty,
        "error.type" = Empty,
    );
    if span.is_disabled() {
        return span;
    }
    let name = operation.container.as_ref().and_then(|container| container.name.split_once('/'));
    if let Some((database, container)) = name {
        span.record("db.namespace", database);
        span.record("db.collection.name", container);
    }
    span
}

/// Writes down how the operation ended.
pub(super) fn close(span: &Span, result: &Result<Response, Error>) {
    if span.is_disabled() {
        return;
    }
    let (status, sub_status, log) = match result {
        Ok(response) => (Some(response.status()), Some(response.sub_status()), response.diagnostics()),
        Err(error) => (error.status(), error.sub_status(), error.diagnostics()),
    };
    if let Some(status) = status {
        span.record("db.response.status_code", status);
    }
    if let Some(sub_status) = sub_status.filter(|sub_status| *sub_status != 0) {
        span.record("azure.cosmosdb.response.sub_status_code", sub_status);
    }
    span.record("azure.cosmosdb.operation.request_charge", log.charge());
    span.record("azure.cosmosdb.operation.contacted_regions", regions(log));
    if let Err(error) = result {
        span.record("error.type", tracing::field::debug(error.kind()));
        tracing::debug!(parent: span, diagnostics = %log, "failed");
    }
}

/// Every region that was asked, once, in the order of the first time.
fn regions(log: &Diagnostics) -> String {
    let mut names: Vec<&str> = Vec::new();
    for attempt in log.attempts() {
        if !names.contains(&&*attempt.region) {
            names.push(&attempt.region);
        }
    }
    names.join(",")
}
