//! A transport of the caller's own: what takes the place of sockets.
//!
//! The driver keeps everything above the wire: routing, retries, throttling, hedging, deadlines, slots. It hands each
//! attempt to the plugged transport as one complete request with an absolute URI, and takes back one complete answer.
//! A proxy that the driver does not know, a recorder, or a simulated network are such transports.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use tokio::sync::Notify;

use super::{
    Address, Call, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, Progress, Sent,
    check_size,
};

/// What [`CustomTransport::send`] returns: the answer, or why there is none.
pub type Exchange<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, TransportError>> + Send + 'a>>;

/// Carries requests to endpoints and brings the answers back, in place of the driver's own connections.
///
/// The request has an absolute URI (`https://account-westeurope.documents.azure.com:443/dbs/…`) and is signed; it must
/// arrive as it is. The future may be dropped at any time, when a deadline passes or another region was faster. The
/// driver then takes the request for one that may have been executed.
///
/// ```
/// use std::sync::Arc;
///
/// use bytes::Bytes;
/// use cosmos_driver::{Credential, CustomTransport, Driver, Exchange, TransportError};
/// use http::Request;
///
/// /// An account in this process.
/// #[derive(Debug)]
/// struct InProcess(Arc<cosmos_emulator::Emulator>);
///
/// impl CustomTransport for InProcess {
///     fn send(&self, request: Request<Bytes>) -> Exchange<'_> {
///         Box::pin(async move {
///             self.0.handle(request).await.map_err(|_| TransportError::interrupted("the connection was reset"))
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let emulator = Arc::new(cosmos_emulator::Emulator::open(cosmos_emulator::Config::default())?);
/// let driver = Driver::builder("http://account.test/", Credential::emulator())
///     .transport(InProcess(emulator))
///     .build()
///     .await?;
/// driver.create_database("shop", Default::default()).await?;
/// # Ok(())
/// # }
/// ```
pub trait CustomTransport: fmt::Debug + Send + Sync {
    /// Sends one request and waits for the whole answer.
    fn send(&self, request: Request<Bytes>) -> Exchange<'_>;
}

/// Why a [`CustomTransport`] has no answer. What it says about how far the request got decides whether the driver may
/// send it again, so in doubt it must be [`interrupted`](Self::interrupted).
#[derive(Clone, Debug)]
pub struct TransportError(HttpError);

impl TransportError {
    /// No server can be reached at the endpoint: the request was not sent, and for a while others go elsewhere.
    pub fn unreachable(why: impl Into<Arc<str>>) -> Self {
        Self(HttpError::new(HttpErrorKind::Connect, Sent::No, why))
    }

    /// The connection broke before any byte of the request left.
    pub fn not_sent(why: impl Into<Arc<str>>) -> Self {
        Self(HttpError::new(HttpErrorKind::Closed, Sent::No, why))
    }

    /// The connection broke, and the service may have executed the request.
    pub fn interrupted(why: impl Into<Arc<str>>) -> Self {
        Self(HttpError::new(HttpErrorKind::Closed, Sent::Unknown, why))
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for TransportError {}

/// A [`CustomTransport`] as a setting: shared by all drivers that are made with it, equal only to itself.
#[derive(Clone, Debug)]
pub struct TransportPlug(Arc<dyn CustomTransport>);

impl TransportPlug {
    /// Shares the transport.
    pub fn new(transport: impl CustomTransport + 'static) -> Self {
        Self(Arc::new(transport))
    }

    /// "Opens" one connection: a name for some of the requests, so that slots and health are counted as ever.
    pub(super) fn connection(&self, address: &Address, response_bytes_max: usize) -> Plugged {
        Plugged {
            transport: self.0.clone(),
            scheme: address.scheme.clone(),
            authority: address.authority.clone(),
            response_bytes_max,
            closed: AtomicBool::new(false),
            killed: Notify::new(),
        }
    }
}

impl PartialEq for TransportPlug {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// One connection of a plugged transport.
pub(super) struct Plugged {
    transport: Arc<dyn CustomTransport>,
    scheme: Scheme,
    authority: Authority,
    response_bytes_max: usize,
    closed: AtomicBool,
    killed: Notify,
}

impl Plugged {
    async fn exchange(&self, request: HttpRequest, progress: &Progress) -> Result<HttpResponse, HttpError> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(request.path);
        let broken =
            |e: http::uri::InvalidUriParts| HttpError::new(HttpErrorKind::Protocol, Sent::No, e.to_string());
        let mut message = Request::new(request.body);
        *message.uri_mut() = Uri::from_parts(uri).map_err(broken)?;
        *message.method_mut() = request.method;
        *message.headers_mut() = request.headers;
        progress.mark_sent();
        let answered = tokio::select! {
            biased;
            answered = self.transport.send(message) => answered.map_err(|error| error.0)?,
            () = self.killed.notified() => {
                return Err(HttpError::new(HttpErrorKind::Closed, Sent::Unknown, "closed by the health checks"));
            }
        };
        progress.mark_head();
        let (head, body) = answered.into_parts();
        check_size(body.len() as u64, self.response_bytes_max)?;
        Ok(HttpResponse { status: head.status, headers: head.headers, body })
    }
}

impl HttpService for Plugged {
    fn call<'a>(&'a self, request: HttpRequest, progress: &'a Progress) -> Call<'a> {
        Box::pin(self.exchange(request, progress))
    }

    fn capacity(&self) -> u32 {
        u32::MAX
    }

    fn is_suspect(&self) -> bool {
        false
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn kill(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.killed.notify_waiters();
    }
}
