//! Frames of Gateway 2.0, the second kind of gateway that some accounts have.
//!
//! Its endpoints take HTTP/2 POSTs. What elsewhere is a method, a path and headers is a binary frame at the start of the
//! body, and the answer is one, too; numbers are little-endian:
//!
//! ```text
//! request   u32 length of all up to the body's length │ u16 resource │ u16 operation │ 16 bytes activity id │ tokens
//! answer    u32 length of all up to the body's length │ u32 status                   │ 16 bytes activity id │ tokens
//! body      u32 length │ bytes                          only where the token "payload present" says so
//! token     u16 id │ u8 type │ value
//! ```
//!
//! The form is that of the public Rust, Java and .NET SDKs. [`Request`] and [`Response`] hold a frame by what it means:
//! the headers that its tokens stand for, under the names that the other gateway has for them.
//!
//! Decoders are made for hostile input. They check every length against the buffer, visit each byte once, allocate no more
//! than there are known tokens, and return [`InvalidFrame`] otherwise. Tokens they do not know they leave out.

mod fields;
mod request;
mod response;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;

pub use fields::{carries, request_headers, response_headers};
pub use request::{Operation, Place, Request};
pub use response::Response;

/// Where a POST without a body is answered with 200 while the endpoint takes frames, and with 503 while it does not.
pub const PROBE_PATH: &str = "/connectivity-probe";

/// A header of a request or an answer, by the name it has outside of frames, and its text.
pub type Field<'a> = (&'static str, std::borrow::Cow<'a, str>);

/// Bytes of a frame before its tokens.
const HEAD_BYTES: usize = 24;

/// Why bytes are not a frame, or something cannot be written as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidFrame {
    /// Offset of what could not be read; 0 when nothing was read.
    pub offset: usize,
    /// What is wrong.
    pub reason: Reason,
}

/// What can be wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The bytes end inside a value.
    Truncated,
    /// The length of the head is less than it has, or more than there is.
    HeadLength,
    /// The length of the body is not that of the bytes that follow.
    BodyLength,
    /// The token that tells whether there is a body says otherwise.
    BodyPresence,
    /// No token has this type.
    TokenType,
    /// A token that is known has a value of another kind, or one that means nothing.
    TokenValue,
    /// A token is there twice.
    Repeated,
    /// A token may not be there.
    Forbidden,
    /// A token is missing that every request of this kind has.
    Missing,
    /// The operation is none that such an endpoint serves.
    Operation,
    /// The resource is not a document, the only kind that such an endpoint serves.
    Resource,
    /// The status is none of HTTP.
    Status,
    /// A value is longer than its length can say.
    TooLong,
}

impl InvalidFrame {
    const fn new(offset: usize, reason: Reason) -> Self {
        Self { offset, reason }
    }
}

impl fmt::Display for InvalidFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.reason {
            Reason::Truncated => "it ends inside a value",
            Reason::HeadLength => "its head has another length than it says",
            Reason::BodyLength => "its body has another length than it says",
            Reason::BodyPresence => "it does not say truly whether it has a body",
            Reason::TokenType => "a token has an unknown type",
            Reason::TokenValue => "a token has a value that it cannot have",
            Reason::Repeated => "a token is there twice",
            Reason::Forbidden => "a token may not be there",
            Reason::Missing => "a token is missing",
            Reason::Operation => "its operation is not served here",
            Reason::Resource => "its resource is not a document",
            Reason::Status => "its status is none of HTTP",
            Reason::TooLong => "a value is too long for it",
        };
        write!(f, "not a frame of Gateway 2.0 at byte {}: {why}", self.offset)
    }
}

impl std::error::Error for InvalidFrame {}

/// An id in the order of bytes that it is written in, in the order that frames have, and back: the first three groups are
/// little-endian numbers.
const fn swapped(id: [u8; 16]) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = id;
    let [i, j, k, l, m, n, o, p] = rest;
    [d, c, b, a, f, e, h, g, i, j, k, l, m, n, o, p]
}
