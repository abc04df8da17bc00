//! Endpoints as people write them.

use std::borrow::Cow;

/// Whether an endpoint carries a user name or password, as `https://user:password@host` does. Cosmos DB knows neither:
/// requests are signed.
#[must_use]
pub fn has_user(endpoint: &str) -> bool {
    endpoint.contains('@')
}

/// The endpoint for messages: a user name and password in it are left out, also where it is no proper URL.
///
/// ```
/// use cosmos_wire::endpoint::without_user;
///
/// assert_eq!(without_user("https://me:secret@acct.example/"), "https://…@acct.example/");
/// assert_eq!(without_user("https://acct.example/"), "https://acct.example/");
/// ```
#[must_use]
pub fn without_user(endpoint: &str) -> Cow<'_, str> {
    let Some((before, host)) = endpoint.rsplit_once('@') else { return Cow::Borrowed(endpoint) };
    let scheme = before.find("://").map_or("", |end| &before[..end + 3]);
    Cow::Owned(format!("{scheme}…@{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_password_is_left() {
        for endpoint in [
            "https://user:secret@host:8081/",
            "https://secret@host",
            "https://user:sec@ret@host",
            "https://user:sec/secret@host",
            "https://user:sec?secret#secret@host",
            "user:secret@host",
            "https:/secret@host",
            "secret://x@host",
        ] {
            assert!(has_user(endpoint), "{endpoint}");
            let shown = without_user(endpoint);
            let without_scheme = shown.trim_start_matches("secret://");
            assert!(!without_scheme.contains("secret") && shown.contains("host"), "{endpoint}: {shown}");
        }
    }

    #[test]
    fn other_endpoints_stay_as_they_are() {
        for endpoint in ["https://host:8081/", "", "not a url", "http://[::1]:8081"] {
            assert!(!has_user(endpoint));
            assert_eq!(without_user(endpoint), endpoint);
        }
    }
}
