//! How an attempt ended.

use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::header;
use cosmos_wire::status::Status;
use http::HeaderMap;

use crate::transport::{HttpError, HttpResponse};

/// Either the service answered, or the exchange broke.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered(Answer),
    Broken(HttpError),
}

/// An answer, of any status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Outcome {
    pub(crate) fn of(result: Result<HttpResponse, HttpError>) -> Self {
        match result {
            Ok(response) => {
                let sub =
                    text(&response.headers, header::SUBSTATUS).and_then(|sub| sub.parse().ok()).unwrap_or(0);
                let status = Status::new(response.status.as_u16(), sub);
                Self::Answered(Answer { status, headers: response.headers, body: response.body })
            }
            Err(error) => Self::Broken(error),
        }
    }
}

impl Answer {
    /// How long the service asks to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let ms = text(&self.headers, header::RETRY_AFTER_MS)?.parse::<f64>().ok()?;
        Duration::try_from_secs_f64(ms / 1000.0).ok()
    }
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
