//! What a query answers.

use std::time::SystemTime;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::diagnostics::Diagnostics;
use crate::error::Error;
use crate::response::Response;

/// One page of results.
#[derive(Debug)]
pub struct Page {
    rows: Rows,
    continuation: Option<String>,
    charge: f64,
    diagnostics: Diagnostics,
    session_token: Option<String>,
    date: Option<SystemTime>,
}

#[derive(Debug)]
enum Rows {
    /// As the service sent it; read once, straight into the caller's type.
    Body(Bytes),
    /// Put together here.
    Values(Vec<Box<RawValue>>),
}

/// The body of a feed answer.
#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(crate) struct Feed<T> {
    #[serde(rename = "Documents")]
    pub(crate) documents: Vec<T>,
}

impl Page {
    pub(super) fn direct(response: Response, continuation: Option<String>) -> Self {
        Self {
            continuation,
            charge: response.charge(),
            session_token: response.session_token().map(str::to_owned),
            date: response.date(),
            rows: Rows::Body(response.body().clone()),
            diagnostics: response.into_diagnostics(),
        }
    }

    pub(super) fn merged(
        rows: Vec<Box<RawValue>>,
        continuation: Option<String>,
        charge: f64,
        diagnostics: Diagnostics,
        date: Option<SystemTime>,
    ) -> Self {
        Self { rows: Rows::Values(rows), continuation, charge, diagnostics, session_token: None, date }
    }

    /// The rows.
    ///
    /// # Errors
    /// When they do not fit the type.
    pub fn items<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let misfit = |e| Error::serialization("a row does not fit the type asked for", e);
        match &self.rows {
            Rows::Body(body) => Ok(serde_json::from_slice::<Feed<T>>(body).map_err(misfit)?.documents),
            Rows::Values(values) => {
                values.iter().map(|value| serde_json::from_str(value.get()).map_err(misfit)).collect()
            }
        }
    }

    /// Where to go on, if there is more. Survives splits and restarts. One exception: a query over one range that groups,
    /// or that has DISTINCT, TOP or LIMIT without an order, is refused once that range has split.
    #[must_use]
    pub fn continuation(&self) -> Option<&str> {
        self.continuation.as_deref()
    }

    /// Request units of this page, over all ranges asked for it.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.charge
    }

    /// The session token after this page, for queries over one partition.
    #[must_use]
    pub fn session_token(&self) -> Option<&str> {
        self.session_token.as_deref()
    }

    /// What the service's clock showed, in whole seconds, in the latest of the answers that were asked for and came
    /// within the call of [`Pager::next`](crate::Pager::next) that gave this page; `None` if there were none because
    /// all of it had been read ahead. So that call is what the date may be compared with.
    #[must_use]
    pub fn date(&self) -> Option<SystemTime> {
        self.date
    }

    /// Everything that was tried for this page.
    #[must_use]
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }
}
