//! The authorization header, and the date it covers.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use cosmos_wire::signature::Signable;
use cosmos_wire::{date, header};
use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};

use tokio::time::Instant;

use crate::clock::Clock;
use crate::credential::Kind;
use crate::driver::Core;
use crate::error::Error;
use crate::request::{Operation, Repeat};
use crate::transport::{HttpRequest, Label};

/// The current second as a header, made once per second.
#[derive(Debug, Default)]
pub(crate) struct Dates(ArcSwapOption<Stamp>);

#[derive(Debug)]
struct Stamp {
    secs: u64,
    header: HeaderValue,
}

impl Dates {
    fn now(&self, clock: &Clock) -> HeaderValue {
        let secs = clock.unix_secs();
        if let Some(stamp) = &*self.0.load()
            && stamp.secs == secs
        {
            return stamp.header.clone();
        }
        let text = date::format(UNIX_EPOCH + Duration::from_secs(secs));
        let header = HeaderValue::try_from(text).expect("a date is plain ASCII");
        self.0.store(Some(Arc::new(Stamp { secs, header: header.clone() })));
        header
    }
}

static X_DATE: HeaderName = HeaderName::from_static(header::X_DATE);

/// Puts date and authorization on a request; the last step before it is sent.
pub(crate) async fn sign(
    core: &Core,
    operation: &Operation,
    mut headers: HeaderMap,
    label: Label,
    deadline: Instant,
) -> Result<HttpRequest, Error> {
    let date = core.dates.now(&core.clock);
    let method = operation.kind.method();
    #[cfg(not(feature = "entra"))]
    let _ = deadline;
    let authorization = match &core.credential.0 {
        Kind::Key(key) => {
            let stamp = date.to_str().expect("a date is plain ASCII");
            key.authorization(&Signable::new(
                method.as_str(),
                operation.resource.segment(),
                &operation.link,
                stamp,
            ))
        }
        Kind::Resource(token) => encode(token),
        #[cfg(feature = "entra")]
        Kind::Token(tokens) => {
            let late = || Error::deadline("the operation's deadline passed while a token was fetched");
            let token =
                tokio::time::timeout_at(deadline, tokens.current(core)).await.map_err(|_| late())??;
            encode(&format!("type=aad&ver=1.0&sig={token}"))
        }
    };
    let mut authorization = HeaderValue::try_from(authorization)
        .map_err(|_| Error::configuration("the credential contains characters that no header can carry"))?;
    authorization.set_sensitive(true);
    headers.insert(&X_DATE, date);
    headers.insert(AUTHORIZATION, authorization);
    Ok(HttpRequest {
        method,
        path: operation.path.clone(),
        headers,
        before_body: Bytes::new(),
        body: operation.body.clone(),
        may_leave: operation.repeat() == Repeat::Safe,
        is_metadata: operation.kind.is_metadata(),
        label,
    })
}

fn encode(token: &str) -> String {
    let mut encoded = String::with_capacity(token.len() + 32);
    cosmos_wire::resource::percent_encode(&mut encoded, token);
    encoded
}
