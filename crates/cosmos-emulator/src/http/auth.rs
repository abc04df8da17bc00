//! Who may ask: master-key signatures, their age, the key that only reads, and the way to other kinds of tokens.

use std::time::{Duration, SystemTime};

use cosmos_wire::signature::{Authorization, InvalidKey, Key, Signable, TokenKind};
use http::Method;

use crate::config::{Auth, Config};
use crate::failure::Failure;
use crate::http::entra::{self, Verifier};
use crate::http::grant::Grant;
use crate::http::headers::{Asked, name};
use crate::http::route::Route;
use crate::operation::Operation;

/// How far the date of a signature may be from the server's clock.
const SKEW_MAX: Duration = Duration::from_secs(15 * 60);

/// Decides whether a request may be served.
#[derive(Debug)]
pub(crate) struct Guard {
    master: Key,
    read_only: Option<Key>,
    auth: Auth,
    entra: Option<Verifier>,
}

impl Guard {
    pub(crate) fn new(config: &Config) -> Result<Self, InvalidKey> {
        Ok(Self {
            master: Key::from_base64(&config.key)?,
            read_only: config.read_only_key.as_deref().map(Key::from_base64).transpose()?,
            auth: config.auth,
            entra: config.entra.as_ref().map(|entra| Verifier::new(entra, &config.account_id)),
        })
    }

    /// The resource token of a grant.
    pub(crate) fn sign(&self, grant: &Grant) -> String {
        grant.to_token(&self.master)
    }

    /// Refuses requests that say nothing of who sends them, before anything else is found wrong with them: what a
    /// browser or a bare `curl` sends.
    pub(crate) fn check_presence(&self, asked: &Asked<'_>) -> Result<(), Failure> {
        let is_named = self.auth == Auth::Open || asked.text(name::AUTHORIZATION).is_some();
        if is_named { Ok(()) } else { Err(missing_authorization()) }
    }

    /// Refuses requests that are not signed with a key that allows them.
    pub(crate) fn check(
        &self,
        method: &Method,
        route: &Route,
        operation: Operation,
        asked: &Asked<'_>,
        now: SystemTime,
    ) -> Result<(), Failure> {
        if self.auth == Auth::Open {
            return Ok(());
        }
        let text = asked.text(name::AUTHORIZATION).ok_or_else(missing_authorization)?;
        let token = Authorization::parse(text).map_err(|_| malformed())?;
        match token.kind {
            TokenKind::Master => {}
            TokenKind::Resource => {
                let grant = Grant::from_signature(&token.signature, &self.master).ok_or_else(malformed)?;
                return grant.check(route, operation, asked, now);
            }
            TokenKind::Aad => {
                let verifier = self.entra.as_ref().ok_or_else(entra::disabled)?;
                return verifier.check(&token.signature, method, route, operation, asked, now);
            }
            TokenKind::Sas => return Err(unsupported_token()),
        }
        let (x_ms_date, date) = match asked.text(name::X_DATE) {
            Some(x_ms_date) => (x_ms_date, ""),
            None => ("", asked.text(name::DATE).ok_or_else(missing_date)?),
        };
        let signed = |link: &str, key: &Key| {
            let verb = method.as_str();
            key.verify(
                &Signable { verb, resource_type: route.kind, resource_link: link, x_ms_date, date },
                &token.signature,
            )
        };
        if signed_links(route).any(|link| signed(link, &self.master)) {
            return fresh(x_ms_date, date, now);
        }
        if let Some(key) = &self.read_only
            && signed_links(route).any(|link| signed(link, key))
        {
            fresh(x_ms_date, date, now)?;
            let is_closed = operation.is_write() || operation.shows_tokens();
            return if is_closed { Err(read_only()) } else { Ok(()) };
        }
        let expected = Signable {
            verb: method.as_str(),
            resource_type: route.kind,
            resource_link: &route.link,
            x_ms_date,
            date,
        };
        Err(wrong_signature(&expected))
    }
}

/// The links that a signature may cover: of names the whole link as it is, of resource ids the last one alone in lower
/// case. A part of a link of names would let one signature open what has the same name elsewhere.
fn signed_links(route: &Route) -> impl Iterator<Item = &str> {
    std::iter::once(route.link.as_str()).chain(route.signed_rid.as_deref())
}

fn fresh(x_ms_date: &str, date: &str, now: SystemTime) -> Result<(), Failure> {
    let text = if x_ms_date.is_empty() { date } else { x_ms_date };
    let then = cosmos_wire::date::parse(text).ok_or_else(malformed_date)?;
    // A clock that was put forward must not lock everybody out: the machine's own time counts as well.
    if distance(then, now) > SKEW_MAX && distance(then, SystemTime::now()) > SKEW_MAX {
        return Err(Failure::new(
            403,
            format!(
                "The authorization token is not valid at the current time. Please create another token and retry \
                 (token start time: {text}, token expiry time: {}, current server time: {}).",
                cosmos_wire::date::format(then + SKEW_MAX),
                cosmos_wire::date::format(now),
            ),
        ));
    }
    Ok(())
}

fn distance(one: SystemTime, other: SystemTime) -> Duration {
    other.duration_since(one).unwrap_or_else(|ahead| ahead.duration())
}

fn missing_authorization() -> Failure {
    Failure::new(
        401,
        "Required Header authorization is missing. Ensure a valid Authorization token is passed.",
    )
}

fn missing_date() -> Failure {
    Failure::new(
        401,
        "Required Header x-ms-date or date is missing. Ensure a valid date is passed and signed.",
    )
}

fn malformed_date() -> Failure {
    Failure::new(401, "The date header is not an RFC 1123 date such as `Tue, 08 Sep 2026 07:00:00 GMT`.")
}

fn malformed() -> Failure {
    Failure::new(
        401,
        "Authorization header doesn't confirm to the required format. Please verify and try again: it must be the \
         URL-encoding of `type=master&ver=1.0&sig=<signature>`.",
    )
}

fn unsupported_token() -> Failure {
    Failure::new(
        401,
        "This server accepts tokens of type master, resource and aad only; sign the request with the account key.",
    )
}

fn read_only() -> Failure {
    Failure::new(
        403,
        "The given request cannot be authorized by a read-only key, which neither writes nor reads permissions; sign \
         it with the account key.",
    )
}

fn wrong_signature(expected: &Signable<'_>) -> Failure {
    let payload = expected.string_to_sign().replace('\n', "\\n");
    Failure::new(
        401,
        format!(
            "The input authorization token can't serve the request. The wrong key is being used or the expected \
             payload is not built as per the protocol. For more info: https://aka.ms/cosmosdb-tsg-unauthorized. \
             Server used the following payload to sign: '{payload}'"
        ),
    )
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::http::route::route;

    const DATE: &str = "Tue, 10 Nov 2015 09:00:00 GMT";
    const READ_ONLY: &str = "cmVhZC1vbmx5LWtleS1mb3ItdGVzdHM=";

    fn guard() -> Guard {
        Guard::new(&Config { read_only_key: Some(READ_ONLY.into()), ..Config::default() }).unwrap()
    }

    struct Case<'a> {
        path: &'a str,
        signed_link: &'a str,
        key: &'a str,
        method: Method,
        operation: Operation,
        age: i64,
    }

    impl Default for Case<'_> {
        fn default() -> Self {
            Self {
                path: "/dbs/MyDb/colls/c/docs/i",
                signed_link: "dbs/MyDb/colls/c/docs/i",
                key: cosmos_wire::EMULATOR_KEY,
                method: Method::GET,
                operation: Operation::ReadItem,
                age: 0,
            }
        }
    }

    fn ask(case: &Case<'_>) -> Result<(), u16> {
        let route = route(case.path).unwrap();
        let key = Key::from_base64(case.key).unwrap();
        let token =
            key.authorization(&Signable::new(case.method.as_str(), route.kind, case.signed_link, DATE));
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&token).unwrap());
        headers.insert("x-ms-date", HeaderValue::from_static(DATE));
        let then = cosmos_wire::date::parse(DATE).unwrap();
        let age = Duration::from_secs(case.age.unsigned_abs());
        let now = if case.age < 0 { then - age } else { then + age };
        guard()
            .check(&case.method, &route, case.operation, &Asked::new(&headers), now)
            .map_err(|failure| failure.status)
    }

    #[test]
    fn names_are_signed_as_they_are_and_rids_in_lower_case() {
        assert_eq!(ask(&Case::default()), Ok(()));
        assert_eq!(ask(&Case { signed_link: "dbs/mydb/colls/c/docs/i", ..Case::default() }), Err(401));
        let by_rid = Case { path: "/dbs/DJB7AA==/colls/DJB7AI1lZHo=", ..Case::default() };
        assert_eq!(ask(&Case { signed_link: "djb7ai1lzho=", ..by_rid }), Ok(()));
        assert_eq!(ask(&Case { path: "/offers/AbCd", signed_link: "abcd", ..Case::default() }), Ok(()));
    }

    #[test]
    fn a_part_of_a_link_is_no_signature_for_it() {
        let cases = [
            ("/dbs/MyDb", "mydb"),
            ("/dbs/MyDb", "MyDb"),
            ("/dbs/MyDb", "dbs/mydb"),
            ("/dbs/MyDb/colls/c/docs/item", "item"),
            // A name with the rid of a container, and rids that do not belong together.
            ("/dbs/MyDb/colls/DJB7AI1lZHo=", "djb7ai1lzho="),
            ("/dbs/DJB8AA==/colls/DJB7AI1lZHo=", "djb7ai1lzho="),
            ("/dbs/DJB7AA==/colls/DJB7AI1lZHo=/docs/item", "item"),
            ("/dbs/DJB7AA==/colls/x/docs/a%2FDJB7AI1lZHo=", "djb7ai1lzho="),
            ("/dbs/DJB7AA==/colls/DJB7AI1lZHo=", "djb7aa=="),
            ("/offers/AbCd", ""),
        ];
        for (path, signed_link) in cases {
            assert_eq!(ask(&Case { path, signed_link, ..Case::default() }), Err(401), "{path} {signed_link}");
        }
    }

    #[test]
    fn a_date_may_be_fifteen_minutes_off() {
        for (age, expected) in [(899, Ok(())), (-899, Ok(())), (901, Err(403)), (-901, Err(403))] {
            assert_eq!(ask(&Case { age, ..Case::default() }), expected, "{age} s");
        }
    }

    #[test]
    fn the_read_only_key_reads() {
        let read = Case { key: READ_ONLY, ..Case::default() };
        assert_eq!(ask(&read), Ok(()));
        let write = Case { method: Method::PUT, operation: Operation::ReplaceItem, ..read };
        assert_eq!(ask(&write), Err(403));
    }

    #[test]
    fn another_key_is_refused() {
        assert_eq!(ask(&Case { key: "b3RoZXI=", ..Case::default() }), Err(401));
    }
}
