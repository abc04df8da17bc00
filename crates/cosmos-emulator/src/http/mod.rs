//! The wire edge. The life of a request:
//!
//! its path and markers are parsed into a [`route::Route`] and an operation; its version and signature are checked; a
//! fault rule may strike it; its command runs against the engine (on a thread of its own when it may take long); the
//! answer waits until what it acknowledges is on disk; the ledger notes it; [`render`] writes it out. [`Account`] is
//! the loop that does so.

mod account;
pub(crate) mod auth;
mod entra;
pub(crate) mod grant;
pub(crate) mod headers;
pub(crate) mod render;
pub(crate) mod route;

use bytes::Bytes;
use http::request::Parts;

pub(crate) use self::account::{Account, Entrance, Place};
use self::headers::Asked;
use self::route::Route;
use crate::engine::RegionId;
use crate::operation::Operation;

/// One request on its way to its command.
#[derive(Debug)]
pub(crate) struct Call {
    /// The region that was asked.
    pub(crate) region: RegionId,
    pub(crate) operation: Operation,
    pub(crate) route: Route,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn asked(&self) -> Asked<'_> {
        Asked::new(&self.parts.headers)
    }
}

/// `http://{host}` as the client wrote it, or `https://{host}` where it came through TLS.
pub(crate) fn origin(parts: &Parts) -> Option<String> {
    host(parts).map(|host| format!("{}://{host}", scheme(parts)))
}

/// The address of the resource that was asked, as the client wrote it.
fn location(parts: &Parts) -> Option<String> {
    host(parts).map(|host| [scheme(parts), "://", host, parts.uri.path()].concat())
}

fn host(parts: &Parts) -> Option<&str> {
    let host = match parts.headers.get(http::header::HOST) {
        Some(host) => host.to_str().ok()?,
        None => parts.uri.authority()?.as_str(),
    };
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    (!host.is_empty() && host.bytes().all(plain)).then_some(host)
}

/// How the client came.
pub(crate) fn scheme(parts: &Parts) -> &'static str {
    if parts.extensions.get::<crate::server::Secure>().is_some() { "https" } else { "http" }
}
