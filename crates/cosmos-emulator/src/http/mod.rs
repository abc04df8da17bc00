//! The wire edge. The life of a request:
//!
//! its path and markers are parsed into a [`route::Route`] and an operation; its version and signature are checked; a
//! fault rule may strike it; its command runs against the engine (on a thread of its own when it may take long); the
//! answer waits until what it acknowledges is on disk; the ledger notes it; [`render`] writes it out. [`Account`] is
//! the loop that does so.

mod account;
pub(crate) mod auth;
mod entra;
mod gateway2;
pub(crate) mod grant;
pub(crate) mod headers;
mod moved;
pub(crate) mod render;
pub(crate) mod route;

use bytes::Bytes;

pub(crate) use self::account::{Account, Entrance, Place};
pub(crate) use self::gateway2::{Gateway2Entrance, RoutedTo};
use self::headers::Asked;
use self::route::Route;
use crate::engine::RegionId;
use crate::operation::Operation;
use crate::server::head::Head;
use crate::sql::Leash;

/// One request on its way to its command.
#[derive(Debug)]
pub(crate) struct Call {
    /// The region that was asked.
    pub(crate) region: RegionId,
    pub(crate) operation: Operation,
    pub(crate) route: Route,
    pub(crate) head: Head,
    pub(crate) body: Bytes,
    /// How long it may take; let go when the client leaves.
    pub(crate) leash: Leash,
}

impl Call {
    pub(crate) fn asked(&self) -> Asked<'_> {
        Asked::of(&self.head)
    }
}

/// `http://{host}` as the client wrote it, or `https://{host}` where it came through TLS.
pub(crate) fn origin(head: &Head) -> Option<String> {
    host(head).map(|host| format!("{}://{host}", scheme(head)))
}

/// The address of the resource that was asked, as the client wrote it.
fn location(head: &Head) -> Option<String> {
    host(head).map(|host| [scheme(head), "://", host, head.path()].concat())
}

fn host(head: &Head) -> Option<&str> {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']');
    head.host().filter(|host| !host.is_empty() && host.bytes().all(plain))
}

/// How the client came.
pub(crate) fn scheme(head: &Head) -> &'static str {
    if head.is_secure { "https" } else { "http" }
}
