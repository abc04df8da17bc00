//! The management API, on a port of its own. `GET /` lists what it offers, from the same table that serves it.
//!
//! The life of a request: the [`Guard`] keeps web pages out; [`route::find`] looks the path up in [`table::ENDPOINTS`]; the function named there reads
//! the body into a type of its own, asks the account, and answers JSON. Requests may take long (a snapshot, a split),
//! so they run on threads that serve no sockets.

mod answer;
mod clock;
mod connections;
mod faults;
mod ledger;
mod metrics;
mod partitions;
mod regions;
mod route;
mod snapshot;
mod table;

use std::sync::Arc;

use http::StatusCode;

use self::answer::Answer;
use crate::guard::{Asked, Guard};
use crate::http::Account;
use crate::server::{self, Gate, Handler, Received, Reset};

/// Answers requests to the management port. They are not signed: bind it where only you can reach it.
#[derive(Debug, Clone)]
pub(crate) struct Management {
    context: Arc<Context>,
    guard: Guard,
}

/// What the endpoints work on.
#[derive(Debug)]
pub(crate) struct Context {
    account: Arc<Account>,
    endpoint: String,
    /// PEM of what clients have to trust.
    certificate: Option<String>,
}

impl Context {
    /// What the connections of all regions listen to.
    fn gates(&self) -> Vec<Arc<Gate>> {
        self.account.regions.gates()
    }
}

impl Management {
    pub(crate) fn new(
        account: Arc<Account>,
        endpoint: String,
        certificate: Option<String>,
        guard: Guard,
    ) -> Self {
        Self { context: Arc::new(Context { account, endpoint, certificate }), guard }
    }
}

impl Handler for Management {
    async fn handle<A: server::answer::Answer>(&self, request: Received) -> Result<A, Reset> {
        let Received { head, body } = request;
        let has_body = body.as_ref().map_or(true, |body| !body.is_empty());
        if let Err(refusal) = self.guard.check(&Asked::of(&head, has_body)) {
            return Ok(Answer::problem(refusal.status, &refusal.sentence).into_response().into());
        }
        let Ok(body) = body else {
            return Ok(Answer::problem(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is too large or did not arrive",
            )
            .into_response()
            .into());
        };
        let context = self.context.clone();
        let answering = tokio::task::spawn_blocking(move || {
            route::find(head.method(), head.path())
                .and_then(|found| (found.endpoint.run)(&context, &found.request(&body)))
                .unwrap_or_else(|problem| problem)
                .into_response()
        });
        // An endpoint that panics is a bug, which was reported when it happened.
        let broken =
            || Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, "the server failed on this request");
        Ok(answering.await.unwrap_or_else(|_| broken().into_response()).into())
    }
}
