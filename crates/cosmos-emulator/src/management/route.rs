//! Which endpoint a request means.

use std::borrow::Cow;

use cosmos_wire::resource::percent_decode;
use http::{Method, StatusCode};
use serde::de::DeserializeOwned;

use super::Context;
use super::answer::{Answer, Outcome};
use super::table::ENDPOINTS;

/// One line of the table.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) method: &'static str,
    /// With parameters in braces, for example `/faults/{id}`.
    pub(super) path: &'static str,
    pub(super) about: &'static str,
    /// A body that would do; empty where none is read.
    pub(super) body: &'static str,
    pub(super) run: fn(&Context, &Request<'_>) -> Outcome,
}

/// A request on its way to its endpoint.
#[derive(Debug)]
pub(super) struct Request<'a> {
    endpoint: &'static Endpoint,
    parameters: &'a [String],
    body: &'a [u8],
}

impl Request<'_> {
    /// The parameter of the path at this place, counted from 0.
    pub(super) fn parameter(&self, index: usize) -> &str {
        self.parameters.get(index).map_or("", String::as_str)
    }

    /// A parameter that is a number.
    pub(super) fn number<T: std::str::FromStr>(&self, index: usize) -> Result<T, Answer> {
        self.parameter(index).parse().map_err(|_| {
            let message = format!(
                "{:?} in {} must be a whole number that is not negative",
                self.parameter(index),
                self.endpoint.path
            );
            Answer::problem(StatusCode::BAD_REQUEST, &message)
        })
    }

    /// The body; an empty one counts as `{}`.
    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T, Answer> {
        let bytes = if self.body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { self.body };
        serde_json::from_slice(bytes)
            .map_err(|error| Answer::bad_body(&format!("the body does not fit: {error}"), self.endpoint.body))
    }

    /// A body that can be read but not meant.
    pub(super) fn bad_body(&self, message: &str) -> Answer {
        Answer::bad_body(message, self.endpoint.body)
    }
}

/// An endpoint and the parameters of its path.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) endpoint: &'static Endpoint,
    parameters: Vec<String>,
}

impl Found {
    pub(super) fn request<'a>(&'a self, body: &'a [u8]) -> Request<'a> {
        Request { endpoint: self.endpoint, parameters: &self.parameters, body }
    }
}

/// Looks a request up in the table.
pub(super) fn find(method: &Method, path: &str) -> Result<Found, Answer> {
    let segments: Option<Vec<Cow<'_, str>>> =
        path.split('/').filter(|segment| !segment.is_empty()).map(percent_decode).collect();
    let Some(segments) = segments else {
        return Err(Answer::problem(StatusCode::BAD_REQUEST, "the path is not percent-encoded UTF-8"));
    };
    let mut allowed = Vec::new();
    for endpoint in ENDPOINTS {
        let Some(parameters) = parameters(endpoint.path, &segments) else { continue };
        if endpoint.method == method.as_str() {
            return Ok(Found { endpoint, parameters });
        }
        allowed.push(endpoint.method);
    }
    if allowed.is_empty() {
        let message = format!("there is nothing at {path}; GET / lists what there is");
        return Err(Answer::problem(StatusCode::NOT_FOUND, &message));
    }
    Err(Answer::wrong_method(&format!("{method} is not possible on {path}"), &allowed))
}

fn parameters(template: &str, segments: &[Cow<'_, str>]) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut segments = segments.iter();
    for part in template.split('/').filter(|part| !part.is_empty()) {
        let segment = segments.next()?;
        if part.starts_with('{') {
            found.push(segment.clone().into_owned());
        } else if part != segment {
            return None;
        }
    }
    segments.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_with_their_parameters() {
        let found = find(&Method::DELETE, "/faults/7").unwrap();
        assert_eq!((found.endpoint.path, found.parameters), ("/faults/{id}", vec!["7".to_owned()]));
        assert!(find(&Method::GET, "/").is_ok());
        assert!(find(&Method::GET, "/nothing").is_err());
        assert!(find(&Method::PUT, "/faults").is_err());
        assert!(find(&Method::GET, "/%zz").is_err());
    }

    #[test]
    fn every_example_in_the_table_is_json_and_no_line_is_there_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for endpoint in ENDPOINTS {
            assert!(seen.insert((endpoint.method, endpoint.path)), "{} {}", endpoint.method, endpoint.path);
            if !endpoint.body.is_empty() {
                serde_json::from_str::<serde_json::Value>(endpoint.body).expect(endpoint.path);
            }
        }
    }
}
