//! Entra tokens: their structure, issuer, audience and times.
//!
//! The signature is not checked, because only Entra's own keys could; this is for trying a program that signs in with
//! Entra, not for keeping anybody out. Tokens open the data plane only, as in the service: databases, containers,
//! throughput, users and permissions are changed through Azure's own management, so here with the account key.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use serde_json::{Map, Value};

use crate::config::Entra;
use crate::failure::Failure;
use crate::http::headers::Asked;
use crate::http::route::{Route, Target};
use crate::operation::Operation;

/// How far clocks may be apart.
const SKEW_MAX: Duration = Duration::from_secs(5 * 60);
/// Longest token that is looked at. Entra's own stay below 16 KiB.
const TOKEN_BYTES_MAX: usize = 32 * 1024;
/// Hosts whose tokens are trusted unless told otherwise: Entra's two, and the one test tokens for emulators name.
const ISSUER_HOSTS: [&str; 3] = ["sts.windows.net", "login.microsoftonline.com", "sts.fake-issuer.net"];
/// What tokens for Cosmos DB are for, whichever account is meant; the last two are in test tokens.
const AUDIENCES: [&str; 4] = [
    "https://cosmos.azure.com",
    "a232010e-820c-4083-83bb-3ace5fc29d0b",
    "https://localhost",
    "https://localhost.localhost",
];

// The sub-statuses of the service.
const DISABLED: u32 = 5002;
const MALFORMED: u32 = 5003;
const NOT_YET: u32 = 5005;
const EXPIRED: u32 = 5006;
const WRONG_ISSUER: u32 = 5007;
const WRONG_AUDIENCE: u32 = 5008;
const NOBODY: u32 = 5011;
const NOT_DATA_PLANE: u32 = 5300;

/// Decides about requests that carry an Entra token.
#[derive(Debug)]
pub(crate) struct Verifier {
    issuers: Vec<String>,
    audiences: Vec<String>,
    account: String,
}

impl Verifier {
    pub(crate) fn new(entra: &Entra, account: &str) -> Self {
        let plain = |text: &String| text.trim_end_matches('/').to_owned();
        let mut audiences: Vec<String> = AUDIENCES.iter().map(|name| (*name).to_owned()).collect();
        audiences.push(format!("https://{account}.documents.azure.com"));
        audiences.extend(entra.audiences.iter().map(plain));
        Self { issuers: entra.issuers.iter().map(plain).collect(), audiences, account: account.to_owned() }
    }

    /// Refuses a token that the service would refuse, and what no token may ask for.
    pub(crate) fn check(
        &self,
        token: &str,
        method: &Method,
        route: &Route,
        operation: Operation,
        asked: &Asked<'_>,
        now: SystemTime,
    ) -> Result<(), Failure> {
        let claims = claims(token).map_err(|reason| self.unauthorized(MALFORMED, reason))?;
        self.check_issuer(&claims)?;
        self.check_audience(&claims, asked)?;
        self.check_times(&claims, now)?;
        if claims.get("oid").and_then(Value::as_str).is_none_or(str::is_empty) {
            let reason = "Provided AAD token names nobody: it has no object identifier (the claim `oid`).";
            return Err(self.unauthorized(NOBODY, reason));
        }
        if is_data_plane(operation) {
            return Ok(());
        }
        let reason = format!(
            "The given request [{method} /{}] cannot be authorized by AAD token in data plane. Sign it with the \
             account key. Learn more: https://aka.ms/cosmos-native-rbac.",
            path(route)
        );
        Err(self.blocked(403, NOT_DATA_PLANE, &reason))
    }

    fn check_issuer(&self, claims: &Map<String, Value>) -> Result<(), Failure> {
        let issuer = claims.get("iss").and_then(Value::as_str).unwrap_or_default();
        let is_trusted = if self.issuers.is_empty() {
            let host = issuer.strip_prefix("https://").and_then(|rest| rest.split('/').next());
            host.is_some_and(|host| ISSUER_HOSTS.contains(&host))
        } else {
            self.issuers.iter().any(|known| known == issuer.trim_end_matches('/'))
        };
        if is_trusted {
            return Ok(());
        }
        let trusted = if self.issuers.is_empty() { ISSUER_HOSTS.join(", ") } else { self.issuers.join(", ") };
        let reason = format!(
            "Provided AAD token was issued by the authority [{issuer}] which is not trusted by this database account. \
             Please ensure the token has been issued by [{trusted}]."
        );
        Err(self.unauthorized(WRONG_ISSUER, &reason))
    }

    fn check_audience(&self, claims: &Map<String, Value>, asked: &Asked<'_>) -> Result<(), Failure> {
        let audience = claims.get("aud").and_then(Value::as_str).unwrap_or_default();
        let here = asked.text(http::header::HOST).map(|host| format!("https://{}", without_port(host)));
        let is_meant = |known: &str| known == audience.trim_end_matches('/');
        if self.audiences.iter().any(|known| is_meant(known)) || here.as_deref().is_some_and(is_meant) {
            return Ok(());
        }
        let reason = format!(
            "Provided AAD token is intended for [{audience}]. This database account accepts tokens intended for [{}].",
            self.audiences.join(", ")
        );
        Err(self.unauthorized(WRONG_AUDIENCE, &reason))
    }

    fn check_times(&self, claims: &Map<String, Value>, now: SystemTime) -> Result<(), Failure> {
        let time = |name: &str| {
            let seconds =
                claims.get(name).and_then(Value::as_f64).filter(|seconds| (0.0..1e12).contains(seconds));
            seconds.map(|seconds| UNIX_EPOCH + Duration::from_secs_f64(seconds))
        };
        let Some(end) = time("exp") else {
            return Err(self.unauthorized(MALFORMED, "Provided AAD token has no expiry (the claim `exp`)."));
        };
        let show = cosmos_wire::date::format;
        if now > end {
            let reason = format!(
                "Provided AAD token has been expired since [{}]. Current server time is [{}]. Please refresh the AAD \
                 token.",
                show(end),
                show(now)
            );
            return Err(self.unauthorized(EXPIRED, &reason));
        }
        if let Some(start) = time("nbf")
            && now + SKEW_MAX < start
        {
            let reason = format!(
                "Provided AAD token is not valid before [{}]. Current server time is [{}].",
                show(start),
                show(now)
            );
            return Err(self.unauthorized(NOT_YET, &reason));
        }
        Ok(())
    }

    fn unauthorized(&self, sub_status: u32, reason: &str) -> Failure {
        self.blocked(401, sub_status, reason)
    }

    fn blocked(&self, status: u16, sub_status: u32, reason: &str) -> Failure {
        Failure::new(status, format!("Request blocked by Auth {} : {reason}", self.account))
            .with_sub_status(sub_status)
    }
}

/// The refusal of an account that takes no Entra tokens.
pub(crate) fn disabled() -> Failure {
    Failure::new(
        401,
        "AAD authentication is disabled for this account. Start the emulator with `--entra`, or sign the request with \
         the account key.",
    )
    .with_sub_status(DISABLED)
}

/// The claims of a token that has the three parts of one.
fn claims(token: &str) -> Result<Map<String, Value>, &'static str> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err("Provided AAD token is too long.");
    }
    let parts: Vec<&str> = token.split('.').collect();
    let [header, claims, signature] = parts.as_slice() else {
        return Err("Provided AAD token is malformed: it must be header.claims.signature.");
    };
    let header = object(header).ok_or("Provided AAD token has a header that is not JSON in base64url.")?;
    let algorithm = header.get("alg").and_then(Value::as_str).unwrap_or_default();
    if algorithm.is_empty() || algorithm.eq_ignore_ascii_case("none") {
        return Err("Provided AAD token is not signed: its header names no algorithm.");
    }
    if signature.is_empty() {
        return Err("Provided AAD token is not signed: its third part is empty.");
    }
    object(claims).ok_or("Provided AAD token has claims that are not JSON in base64url.")
}

fn object(part: &str) -> Option<Map<String, Value>> {
    let bytes = URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) | None => host,
    }
}

/// The path as messages show it: signatures cover the parent of a feed, people want the feed.
fn path(route: &Route) -> String {
    match (route.link.as_str(), is_feed(&route.target)) {
        ("", _) => route.kind.to_owned(),
        (link, true) => format!("{link}/{}", route.kind),
        (link, false) => link.to_owned(),
    }
}

fn is_feed(target: &Target) -> bool {
    matches!(
        target,
        Target::Databases
            | Target::Containers(_)
            | Target::Items(_)
            | Target::Ranges(_)
            | Target::Offers
            | Target::Users(_)
            | Target::EncryptionKeys(_)
            | Target::Permissions(..)
            | Target::Conflicts(_)
            | Target::Scripts(..)
    )
}

/// Whether a token may ask for it: items, and reading what leads to them.
fn is_data_plane(operation: Operation) -> bool {
    match operation {
        Operation::ReadAccount
        | Operation::ReadDatabase
        | Operation::ListDatabases
        | Operation::QueryDatabases
        | Operation::ReadContainer
        | Operation::ListContainers
        | Operation::QueryContainers
        | Operation::ReadRanges
        | Operation::CreateItem
        | Operation::UpsertItem
        | Operation::ReadItem
        | Operation::ReplaceItem
        | Operation::PatchItem
        | Operation::DeleteItem
        | Operation::DeletePartition
        | Operation::Batch
        | Operation::Bulk
        | Operation::Query
        | Operation::QueryPlan
        | Operation::ReadFeed
        | Operation::ChangeFeed
        | Operation::ListConflicts
        | Operation::ReadConflict
        | Operation::DeleteConflict
        | Operation::ReadScript
        | Operation::ListScripts
        | Operation::QueryScripts
        | Operation::ExecuteScript
        | Operation::ReadEncryptionKey
        | Operation::ListEncryptionKeys
        | Operation::QueryEncryptionKeys => true,
        Operation::CreateDatabase
        | Operation::CreateScript
        | Operation::ReplaceScript
        | Operation::DeleteScript
        | Operation::DeleteDatabase
        | Operation::CreateContainer
        | Operation::ReplaceContainer
        | Operation::DeleteContainer
        | Operation::ReadOffer
        | Operation::ListOffers
        | Operation::QueryOffers
        | Operation::ReplaceOffer
        | Operation::CreateEncryptionKey
        | Operation::ReplaceEncryptionKey
        | Operation::CreateUser
        | Operation::ReadUser
        | Operation::ReplaceUser
        | Operation::ListUsers
        | Operation::QueryUsers
        | Operation::DeleteUser
        | Operation::CreatePermission
        | Operation::ReadPermission
        | Operation::ReplacePermission
        | Operation::ListPermissions
        | Operation::QueryPermissions
        | Operation::DeletePermission => false,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use serde_json::json;

    use super::*;
    use crate::http::route::route;

    const NOW: u64 = 1_800_000_000;

    fn token(claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.c2ln", part(&json!({"typ": "JWT", "alg": "RS256"})), part(claims))
    }

    fn good() -> Value {
        json!({
            "iss": "https://sts.windows.net/7b1999a1-dfd7-440e-8204-00170979b984/",
            "aud": "https://cosmos.azure.com",
            "nbf": NOW - 60,
            "exp": NOW + 3600,
            "oid": "96313034-4739-43cb-93cd-74193adbe5b6",
        })
    }

    fn with(name: &str, value: impl Into<Value>) -> Value {
        let mut claims = good();
        claims[name] = value.into();
        claims
    }

    fn ask(entra: &Entra, token: &str, path: &str, operation: Operation) -> (u16, u32, String) {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("cosmos.local:8081"));
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let verdict = Verifier::new(entra, "shop").check(
            token,
            &Method::POST,
            &route(path).unwrap(),
            operation,
            &Asked::new(&headers),
            now,
        );
        match verdict {
            Ok(()) => (200, 0, String::new()),
            Err(failure) => (failure.status, failure.sub_status, failure.message),
        }
    }

    fn read(claims: &Value) -> (u16, u32) {
        let (status, sub_status, _) =
            ask(&Entra::default(), &token(claims), "/dbs/d/colls/c/docs/i", Operation::ReadItem);
        (status, sub_status)
    }

    #[test]
    fn issuer_audience_and_times_are_checked() {
        assert_eq!(read(&good()), (200, 0));
        assert_eq!(read(&with("iss", "https://evil.example/x")), (401, WRONG_ISSUER));
        assert_eq!(read(&with("iss", "https://sts.windows.net.evil.example/x")), (401, WRONG_ISSUER));
        assert_eq!(read(&with("iss", Value::Null)), (401, WRONG_ISSUER));
        assert_eq!(read(&with("aud", "https://graph.microsoft.com")), (401, WRONG_AUDIENCE));
        assert_eq!(read(&with("exp", NOW - 1)), (401, EXPIRED));
        assert_eq!(read(&with("exp", "soon")), (401, MALFORMED));
        assert_eq!(read(&with("oid", Value::Null)), (401, NOBODY));
        assert_eq!(read(&with("nbf", NOW + 301)), (401, NOT_YET));
        assert_eq!(read(&with("nbf", NOW + 299)), (200, 0), "clocks differ a little");
    }

    #[test]
    fn tokens_for_this_account_and_this_host_are_meant() {
        for audience in [
            "https://shop.documents.azure.com",
            "https://cosmos.local",
            "https://localhost.localhost",
            "https://cosmos.azure.com/",
        ] {
            assert_eq!(read(&with("aud", audience)), (200, 0), "{audience}");
        }
    }

    #[test]
    fn given_issuers_and_audiences_are_the_ones_that_count() {
        let entra =
            Entra { issuers: vec!["https://idp.example/".into()], audiences: vec!["api://shop".into()] };
        let mut claims = with("iss", "https://idp.example");
        claims["aud"] = "api://shop".into();
        let path = "/dbs/d/colls/c/docs/i";
        assert_eq!(ask(&entra, &token(&claims), path, Operation::ReadItem).0, 200);
        assert_eq!(ask(&entra, &token(&good()), path, Operation::ReadItem).1, WRONG_ISSUER);
    }

    #[test]
    fn what_is_not_a_token_is_told_why() {
        let claims = URL_SAFE_NO_PAD.encode(good().to_string());
        let unsigned = URL_SAFE_NO_PAD.encode(json!({"alg": "none"}).to_string());
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        for (text, reason) in [
            ("abc", "header.claims.signature"),
            ("a.b.c", "header that is not JSON"),
            (&format!("{unsigned}.{claims}.c2ln"), "names no algorithm"),
            (&format!("{}.", token(&good()).rsplit_once('.').unwrap().0), "third part is empty"),
            (&long, "too long"),
        ] {
            let (status, sub_status, message) =
                ask(&Entra::default(), text, "/dbs/d/colls/c/docs/i", Operation::ReadItem);
            assert_eq!((status, sub_status), (401, MALFORMED));
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn the_control_plane_is_closed_to_tokens() {
        let ask = |path: &str, operation| ask(&Entra::default(), &token(&good()), path, operation);
        assert_eq!(ask("/dbs/d/colls", Operation::ListContainers).0, 200);
        assert_eq!(ask("/dbs/d/colls/c/conflicts", Operation::ListConflicts).0, 200);
        for (path, operation) in [
            ("/dbs", Operation::CreateDatabase),
            ("/dbs/d", Operation::DeleteDatabase),
            ("/dbs/d/colls", Operation::CreateContainer),
            ("/dbs/d/colls/c/sprocs", Operation::CreateScript),
            ("/offers", Operation::ListOffers),
            ("/dbs/d/users", Operation::CreateUser),
        ] {
            let (status, sub_status, message) = ask(path, operation);
            assert_eq!((status, sub_status), (403, NOT_DATA_PLANE), "{path}");
            assert!(message.contains(&format!("[POST {path}]")), "{message}");
        }
    }
}
