//! Keeps web pages out of ports whose requests are not signed.
//!
//! A browser on this machine reaches the management port for every page it shows, and a port that is open to this
//! machine only does not keep such a page out. Four things of a request tell that a page sent it:
//!
//! * `Host`: a page whose name was made to lead to this machine (DNS rebinding) sends its own name. An address cannot
//!   be made to lead elsewhere, so addresses are let in as far as the port is bound to them.
//! * `Origin` and `Sec-Fetch-Site`: the browser says which page asks. Only pages that came from this port may.
//! * `Content-Type`: without asking first, a page can only send what forms send. JSON is none of it.
//!
//! Programs send none of the middle two, so they notice the guard only where they send a body without its type.

use std::net::{IpAddr, SocketAddr};

use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

use crate::server::head::Head;

/// Decides which requests to a port for this machine are answered.
#[derive(Debug, Clone, Copy)]
pub struct Guard {
    /// Where the port listens.
    bound: SocketAddr,
}

/// Why a request is not answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What to answer.
    pub status: StatusCode,
    /// The reason, for people.
    pub sentence: String,
}

/// What of a request tells who sent it.
#[derive(Debug)]
pub struct Asked<'a> {
    method: &'a Method,
    /// Every host that it names, in its headers and in its target. What is no text is the empty one.
    hosts: Vec<&'a str>,
    origin: Option<&'a [u8]>,
    site: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
    is_secure: bool,
    has_body: bool,
}

impl<'a> Asked<'a> {
    /// Of a request that came without TLS.
    #[must_use]
    pub fn new(method: &'a Method, uri: &'a Uri, headers: &'a HeaderMap, has_body: bool) -> Self {
        let field = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
        let host = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
        Self {
            method,
            hosts: host.chain(uri.authority().map(http::uri::Authority::as_str)).collect(),
            origin: field(ORIGIN),
            site: field(SEC_FETCH_SITE),
            content_type: field(CONTENT_TYPE),
            is_secure: false,
            has_body,
        }
    }

    pub(crate) fn of(head: &'a Head, has_body: bool) -> Self {
        Self {
            method: head.method(),
            hosts: head.hosts().collect(),
            origin: head.fields().get(ORIGIN),
            site: head.fields().get(SEC_FETCH_SITE),
            content_type: head.fields().get(CONTENT_TYPE),
            is_secure: head.is_secure,
            has_body,
        }
    }
}

impl Refusal {
    fn forbidden(sentence: String) -> Self {
        Self { status: StatusCode::FORBIDDEN, sentence }
    }
}

impl Guard {
    /// Of a port that listens there.
    #[must_use]
    pub fn new(bound: SocketAddr) -> Self {
        Self { bound }
    }

    /// Lets a request in, or says why not.
    ///
    /// # Errors
    /// When a web page of another place may have sent it.
    pub fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        let host = self.check_host(asked)?;
        check_page(asked, host)?;
        match *asked.method {
            Method::GET | Method::HEAD => Ok(()),
            _ => check_type(asked),
        }
    }

    /// Every host that the request names must be this machine; says which one it is.
    fn check_host<'a>(&self, asked: &Asked<'a>) -> Result<&'a str, Refusal> {
        for host in &asked.hosts {
            if !self.is_here(host) {
                return Err(Refusal::forbidden(format!(
                    "this port answers requests to localhost or to the address it listens on, and this one is to \
                     {host:?}: a web page could have sent it. Use the address, or the header `Host: localhost`"
                )));
            }
        }
        asked.hosts.first().copied().ok_or_else(|| {
            Refusal::forbidden("this request names no host: send the header `Host: localhost`".to_owned())
        })
    }

    fn is_here(&self, host: &str) -> bool {
        let Some(name) = name_of(host) else { return false };
        let Ok(address) = name.parse::<IpAddr>() else {
            // Browsers and systems send these names to this machine without asking anyone.
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            return name == "localhost" || name.ends_with(".localhost");
        };
        let address = address.to_canonical();
        let bound = self.bound.ip().to_canonical();
        address.is_loopback() || bound.is_unspecified() || address == bound
    }
}

/// The name or address in `name:port`, without brackets.
fn name_of(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_once(':').map_or((host, ""), |(name, _)| (name, &host[name.len()..])),
    };
    let port = port.strip_prefix(':').unwrap_or(port);
    let is_port = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_port && !name.is_empty()).then_some(name)
}

/// A page must have come from this port.
fn check_page(asked: &Asked<'_>, host: &str) -> Result<(), Refusal> {
    if let Some(origin) = asked.origin {
        let own = format!(
            "{}://{}",
            if asked.is_secure { "https" } else { "http" },
            without_default_port(asked, host)
        );
        if !origin.eq_ignore_ascii_case(own.as_bytes()) {
            return Err(Refusal::forbidden(format!(
                "a web page of {:?} asks, and only pages of {own} may",
                String::from_utf8_lossy(origin)
            )));
        }
    }
    match asked.site {
        // None: a person typed the address.
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(site) => Err(Refusal::forbidden(format!(
            "a web page of another place asks (Sec-Fetch-Site: {}), and only pages of this port may",
            String::from_utf8_lossy(site).escape_debug()
        ))),
    }
}

/// Browsers leave the usual port out of `Origin`, whatever the request names.
fn without_default_port<'a>(asked: &Asked<'_>, host: &'a str) -> &'a str {
    host.strip_suffix(if asked.is_secure { ":443" } else { ":80" }).unwrap_or(host)
}

/// What changes something comes as JSON, or without a body.
fn check_type(asked: &Asked<'_>) -> Result<(), Refusal> {
    let told = asked.content_type.map(String::from_utf8_lossy);
    let media_type = told.as_deref().map(|told| told.split(';').next().unwrap_or_default().trim());
    let sentence = match media_type {
        Some(json) if json.eq_ignore_ascii_case("application/json") => return Ok(()),
        None if !asked.has_body => return Ok(()),
        None => "the body comes without its type".to_owned(),
        Some(other) => format!("a request that changes something cannot be of the type {other:?}"),
    };
    Err(Refusal {
        status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
        sentence: format!("{sentence}: send the header `Content-Type: application/json` (curl: --json)"),
    })
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[cfg(test)]
mod tests {
    use super::*;

    fn head(method: &str, uri: &str, headers: &[(&str, &str)]) -> Head {
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        crate::server::received(request.body(bytes::Bytes::new()).unwrap()).head
    }

    fn guard(bound: &str) -> Guard {
        Guard::new(bound.parse().unwrap())
    }

    fn status(bound: &str, method: &str, headers: &[(&str, &str)], has_body: bool) -> u16 {
        let checked = guard(bound).check(&Asked::of(&head(method, "/ledger", headers), has_body));
        checked.map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn this_machine_is_asked_by_its_names_and_addresses() {
        for host in [
            "localhost",
            "LOCALHOST:8082",
            "localhost.:1",
            "shop.localhost:8082",
            "127.0.0.1:8082",
            "127.8.9.1",
            "[::1]:8082",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(status("127.0.0.1:8082", "GET", &[("host", host)], false), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8082",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "notlocalhost",
            "10.0.0.1:8082",
            "[fe80::1]",
            "",
            "[::1",
            "::1",
            "127.0.0.1:8082@evil",
            "localhost:port",
            "user@localhost",
        ] {
            assert_eq!(status("127.0.0.1:8082", "GET", &[("host", host)], false), 403, "{host}");
        }
        assert_eq!(status("127.0.0.1:8082", "GET", &[], false), 403, "no host at all");
    }

    #[test]
    fn the_address_bound_is_this_machine_and_no_name_is() {
        assert_eq!(status("10.0.0.1:8082", "GET", &[("host", "10.0.0.1:8082")], false), 200);
        assert_eq!(status("10.0.0.1:8082", "GET", &[("host", "10.0.0.2:8082")], false), 403);
        assert_eq!(status("0.0.0.0:8082", "GET", &[("host", "10.0.0.2:9000")], false), 200);
        assert_eq!(status("[::]:8082", "GET", &[("host", "[2001:db8::1]:9000")], false), 200);
        assert_eq!(status("0.0.0.0:8082", "GET", &[("host", "evil.example")], false), 403);
    }

    #[test]
    fn a_target_with_another_host_counts_too() {
        let request = head("GET", "http://evil.example/ledger", &[("host", "localhost")]);
        assert_eq!(guard("127.0.0.1:1").check(&Asked::of(&request, false)).unwrap_err().status, 403);
        let request = head("GET", "http://localhost/ledger", &[]);
        assert_eq!(guard("127.0.0.1:1").check(&Asked::of(&request, false)), Ok(()));
    }

    #[test]
    fn only_pages_of_this_port_may_ask() {
        let of = |name: &'static str, value: &'static str, method: &str| {
            status("127.0.0.1:8082", method, &[("host", "localhost:8082"), (name, value)], false)
        };
        for method in ["GET", "POST", "DELETE"] {
            assert_eq!(of("origin", "http://localhost:8082", method), 200);
            for origin in [
                "http://evil.example",
                "null",
                "http://localhost:3000",
                "https://localhost:8082",
                "http://127.0.0.1:8082",
                "http://localhost",
                "",
            ] {
                assert_eq!(of("origin", origin, method), 403, "{method} {origin}");
            }
            for site in ["same-origin", "none"] {
                assert_eq!(of("sec-fetch-site", site, method), 200, "{method} {site}");
            }
            for site in ["cross-site", "same-site", "anything"] {
                assert_eq!(of("sec-fetch-site", site, method), 403, "{method} {site}");
            }
        }
        let usual = [("host", "localhost:80"), ("origin", "http://localhost")];
        assert_eq!(status("127.0.0.1:80", "GET", &usual, false), 200, "browsers leave the usual port out");
    }

    #[test]
    fn what_changes_something_comes_as_json() {
        let of = |media_type: Option<&'static str>, has_body: bool| {
            let mut headers = vec![("host", "localhost")];
            headers.extend(media_type.map(|media_type| ("content-type", media_type)));
            status("127.0.0.1:8082", "POST", &headers, has_body)
        };
        assert_eq!(of(Some("application/json"), true), 200);
        assert_eq!(of(Some("Application/JSON; charset=utf-8"), true), 200);
        assert_eq!(of(None, false), 200);
        assert_eq!(of(None, true), 415);
        for form in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=application/json",
            "",
        ] {
            assert_eq!(of(Some(form), true), 415, "{form}");
            assert_eq!(of(Some(form), false), 415, "{form}");
        }
        assert_eq!(
            status("127.0.0.1:1", "GET", &[("host", "localhost"), ("content-type", "text/plain")], false),
            200
        );
    }
}
