//! Who may ask: the token of the address, exchanged once for a cookie, and signs that a page of ours asks.

use std::net::SocketAddr;

use cosmos_emulator::{Asked, Guard, Refusal};
use http::header::{COOKIE, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::exit::Problem;

/// Shorter tokens could be guessed.
pub(super) const TOKEN_MIN: usize = 16;
/// A form or an image of another page cannot send it, and a script could only after asking, which is refused.
const OWN_HEADER: &str = "x-cdb";

/// Decides who is answered.
#[derive(Clone)]
pub(super) struct Access {
    guard: Guard,
    token: String,
    /// Cookies are sent to every port of a machine: the name says which one this is for.
    cookie_name: String,
    cookie_value: String,
}

impl Access {
    /// With a token of the operator, or a new one of 128 bits.
    pub(super) fn new(address: SocketAddr, token: Option<&str>) -> Result<Self, Problem> {
        let token = match token {
            Some(short) if short.len() < TOKEN_MIN => {
                return Err(Problem::Usage(format!("the token must have at least {TOKEN_MIN} characters")));
            }
            Some(plain)
                if plain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)) =>
            {
                plain.to_owned()
            }
            Some(_) => {
                return Err(Problem::Usage("the token may have letters, digits, - _ . and ~".to_owned()));
            }
            None => {
                digest(&[uuid::Uuid::new_v4().as_bytes(), uuid::Uuid::new_v4().as_bytes()])[..32].to_owned()
            }
        };
        let cookie_value = digest(&[b"cookie", token.as_bytes()]);
        let cookie_name = format!("cdb-{}", address.port());
        Ok(Self { guard: Guard::new(address), token, cookie_name, cookie_value })
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// What keeps web pages of other places out.
    pub(super) fn check_page(&self, parts: &Parts, has_body: bool) -> Result<(), Refusal> {
        self.guard.check(&Asked::new(&parts.method, &parts.uri, &parts.headers, has_body))?;
        if matches!(parts.method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        let is_ours = parts.headers.contains_key(ORIGIN) && parts.headers.contains_key(OWN_HEADER);
        if is_ours {
            return Ok(());
        }
        Err(refusal(StatusCode::FORBIDDEN, "only the pages of this port change something here"))
    }

    /// Whether the one who asks has shown the token.
    pub(super) fn check_cookie(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let has_it =
            pairs.any(|(name, value)| name == self.cookie_name && is_same(value, &self.cookie_value));
        if has_it {
            return Ok(());
        }
        Err(refusal(StatusCode::UNAUTHORIZED, "open the address that `cdb` printed: it has the token in it"))
    }

    /// The cookie for one who shows the token.
    pub(super) fn exchange(&self, token: &str) -> Result<String, Refusal> {
        if !is_same(token, &self.token) {
            return Err(refusal(StatusCode::UNAUTHORIZED, "this is not the token of this dashboard"));
        }
        Ok(format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie_name, self.cookie_value))
    }
}

fn refusal(status: StatusCode, sentence: &str) -> Refusal {
    Refusal { status, sentence: sentence.to_owned() }
}

/// In the same time wherever they differ.
fn is_same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

fn digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(token: Option<&str>) -> Access {
        Access::new("127.0.0.1:8083".parse().unwrap(), token).unwrap()
    }

    #[test]
    fn tokens_are_long_and_each_start_has_its_own() {
        let (one, other) = (access(None), access(None));
        assert_eq!(one.token().len(), 32);
        assert_ne!(one.token(), other.token());
        for wrong in ["short", "0123456789abcde", "0123456789abcdef\r\n", "0123456789abcdef;x", ""] {
            assert!(Access::new("127.0.0.1:1".parse().unwrap(), Some(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_cookie_of_another_port_opens_nothing() {
        let access = access(Some("0123456789abcdef"));
        let cookie = access.exchange("0123456789abcdef").unwrap();
        assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{cookie}");
        assert!(access.exchange("0123456789abcdee").is_err() && access.exchange("").is_err());
        let pair = cookie.split(';').next().unwrap();
        let with = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, text.parse().unwrap());
            access.check_cookie(&headers).is_ok()
        };
        assert!(with(pair) && with(&format!("a=b; {pair}")));
        assert!(!with(&pair.replace("8083", "8084")) && !with("cdb-8083=") && !with(&format!("{pair}0")));
        assert!(access.check_cookie(&HeaderMap::new()).is_err());
    }

    #[test]
    fn what_changes_something_comes_from_a_page_of_ours() {
        let access = access(None);
        let check = |headers: &[(&str, &str)]| {
            let mut request = http::Request::post("/api/act/cancel").header("host", "127.0.0.1:8083");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            access.check_page(&request.body(()).unwrap().into_parts().0, true).is_ok()
        };
        let own = ("origin", "http://127.0.0.1:8083");
        let json = ("content-type", "application/json");
        assert!(check(&[own, json, ("x-cdb", "1")]));
        assert!(!check(&[own, json]) && !check(&[json, ("x-cdb", "1")]) && !check(&[own, ("x-cdb", "1")]));
        assert!(!check(&[("origin", "http://localhost:3000"), json, ("x-cdb", "1")]));
        assert!(!check(&[own, ("content-type", "text/plain"), ("x-cdb", "1")]));
        assert!(!check(&[own, json, ("x-cdb", "1"), ("sec-fetch-site", "cross-site")]));
    }
}
