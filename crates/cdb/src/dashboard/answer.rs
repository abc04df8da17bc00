//! Answers: bytes, or events without end, each with the headers that keep a page harmless.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::exit::Problem;

/// The body of an answer.
pub(super) enum Content {
    /// All of it.
    Whole(Option<Bytes>),
    /// Events as they come; it ends when their sender does.
    Events(mpsc::Receiver<Bytes>),
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events(events) => {
                events.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

pub(super) type Answer = Response<Content>;

/// An answer, or why there is none.
pub(super) type Outcome = Result<Value, Failure>;

/// Why a request is not answered as it wished.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) sentence: String,
}

impl Failure {
    pub(super) fn new(status: StatusCode, sentence: impl Into<String>) -> Self {
        Self { status, sentence: sentence.into() }
    }

    pub(super) fn usage(sentence: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, sentence)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let status = match error.downcast_ref::<Problem>() {
            Some(Problem::Missing(_)) => StatusCode::NOT_FOUND,
            Some(Problem::Usage(_)) => StatusCode::BAD_REQUEST,
            Some(Problem::Unreachable(_)) => StatusCode::BAD_GATEWAY,
            Some(Problem::Refused(_)) => StatusCode::FORBIDDEN,
            _ => match error.downcast_ref::<cosmos_driver::Error>().map(cosmos_driver::Error::kind) {
                Some(cosmos_driver::ErrorKind::NotFound) => StatusCode::NOT_FOUND,
                Some(cosmos_driver::ErrorKind::Connection | cosmos_driver::ErrorKind::Deadline) => {
                    StatusCode::BAD_GATEWAY
                }
                _ => StatusCode::CONFLICT,
            },
        };
        Self { status, sentence: format!("{error:#}") }
    }
}

/// Bytes of a type.
pub(super) fn whole(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Content::Whole(Some(body.into())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    harmless(answer)
}

/// JSON.
pub(super) fn json(status: StatusCode, value: &Value) -> Answer {
    whole(status, "application/json", value.to_string())
}

/// JSON that is saved under a name of ours: a name of theirs could be a trap.
pub(super) fn download(name: &'static str, value: &Value) -> Answer {
    let mut answer = json(StatusCode::OK, value);
    if let Ok(disposition) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
        answer.headers_mut().insert(CONTENT_DISPOSITION, disposition);
    }
    answer
}

/// What went wrong.
pub(super) fn problem(status: StatusCode, sentence: &str) -> Answer {
    json(status, &json!({ "error": sentence }))
}

/// Events as they come.
pub(super) fn events(events: mpsc::Receiver<Bytes>) -> Answer {
    let mut answer = Response::new(Content::Events(events));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    harmless(answer)
}

fn harmless(mut answer: Answer) -> Answer {
    for (name, value) in HARMLESS {
        answer.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Nothing from elsewhere, nothing in a frame, no text that becomes a script.
const HARMLESS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];
