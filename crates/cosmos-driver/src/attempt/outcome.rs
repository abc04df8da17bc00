//! How an attempt ended.

use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::batch::OperationResult;
use cosmos_wire::header;
use cosmos_wire::status::Status;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

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

    /// The outcome of an atomic batch. One whose operation was refused for a while did nothing at all, so it is what
    /// a single operation with that answer would be: throttled, in conflict, or at the wrong place.
    pub(crate) fn of_batch(self) -> Self {
        match self {
            Self::Answered(answer) if answer.status.code == 207 => Self::Answered(answer.of_batch()),
            Self::Answered(_) | Self::Broken(_) => self,
        }
    }
}

impl Answer {
    fn of_batch(mut self) -> Self {
        let Ok(results) = serde_json::from_slice::<Vec<OperationResult>>(&self.body) else { return self };
        let cause = results
            .iter()
            .find(|result| result.status_code >= 400 && result.status() != Status::FAILED_DEPENDENCY);
        let Some(cause) = cause.filter(|cause| matches!(cause.status_code, 410 | 429 | 449 | 503)) else {
            return self;
        };
        self.status = cause.status();
        if let Some(ms) = cause.retry_after_milliseconds {
            self.headers.insert(HeaderName::from_static(header::RETRY_AFTER_MS), HeaderValue::from(ms));
        }
        self
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

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(body: &'static str) -> Answer {
        let answer = Answer {
            status: Status::new(207, 0),
            headers: HeaderMap::new(),
            body: Bytes::from_static(body.as_bytes()),
        };
        match Outcome::Answered(answer).of_batch() {
            Outcome::Answered(answer) => answer,
            Outcome::Broken(_) => panic!("an answer stays one"),
        }
    }

    #[test]
    fn a_batch_with_a_throttled_operation_is_throttled() {
        let answer = batch(
            r#"[{"statusCode":424},{"statusCode":429,"subStatusCode":3200,"retryAfterMilliseconds":7}]"#,
        );
        assert_eq!(answer.status, Status::new(429, 3200));
        assert_eq!(answer.retry_after(), Some(Duration::from_millis(7)));
        assert_eq!(batch(r#"[{"statusCode":449},{"statusCode":424}]"#).status, Status::new(449, 0));
    }

    #[test]
    fn a_batch_that_was_refused_for_good_stays_an_answer() {
        for body in [r#"[{"statusCode":424},{"statusCode":409}]"#, r#"[{"statusCode":412}]"#, "nonsense"] {
            assert_eq!(batch(body).status, Status::new(207, 0), "{body}");
        }
    }
}
