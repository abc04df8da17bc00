//! Answers of the management API.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::Failure;

/// One answer.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    media_type: &'static str,
    body: Bytes,
    /// Methods that would do, where the one asked for does not.
    allow: Option<String>,
}

/// An answer, or an answer that says what is wrong.
pub(super) type Outcome = Result<Answer, Answer>;

impl Answer {
    /// 200 with a JSON body.
    pub(super) fn ok(body: &impl Serialize) -> Outcome {
        Self::json(StatusCode::OK, body)
    }

    /// A status with a JSON body.
    pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Outcome {
        let body = serde_json::to_vec(body)
            .map_err(|error| Self::problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))?;
        Ok(Self { status, media_type: "application/json", body: body.into(), allow: None })
    }

    /// 204.
    pub(super) fn done() -> Outcome {
        Ok(Self {
            status: StatusCode::NO_CONTENT,
            media_type: "application/json",
            body: Bytes::new(),
            allow: None,
        })
    }

    /// 200 with a body of another kind.
    pub(super) fn text(media_type: &'static str, body: String) -> Outcome {
        Ok(Self { status: StatusCode::OK, media_type, body: body.into(), allow: None })
    }

    /// What is wrong, and where there is more to say, what is allowed.
    pub(super) fn problem(status: StatusCode, message: &str) -> Self {
        Self::problem_with(status, &json!({"error": message}))
    }

    /// A wrong body, and one that would do.
    pub(super) fn bad_body(message: &str, example: &str) -> Self {
        let example: Value = serde_json::from_str(example).unwrap_or_default();
        Self::problem_with(StatusCode::BAD_REQUEST, &json!({"error": message, "example": example}))
    }

    /// A wrong method, and those that would do.
    pub(super) fn wrong_method(message: &str, allowed: &[&str]) -> Self {
        let mut answer = Self::problem_with(
            StatusCode::METHOD_NOT_ALLOWED,
            &json!({"error": message, "allowed": allowed}),
        );
        answer.allow = Some(allowed.join(", "));
        answer
    }

    fn problem_with(status: StatusCode, body: &Value) -> Self {
        Self { status, media_type: "application/json", body: body.to_string().into(), allow: None }
    }

    pub(super) fn into_response(self) -> Response<Bytes> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if self.status != StatusCode::NO_CONTENT {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::try_from(allow).ok()) {
            headers.insert(ALLOW, allow);
        }
        response
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::problem(status, &failure.message)
    }
}
