//! Tokens from an `azure_core` credential, let in by the emulator as the service lets them in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::time::{Duration, OffsetDateTime};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cosmos_driver::{Credential, Driver, ErrorKind, ItemOptions};
use cosmos_emulator::{Config, Entra};
use serde_json::json;

use crate::globe::Globe;

/// An identity endpoint that hands out tokens, each good for a while.
#[derive(Debug)]
struct Identity {
    issued: AtomicU32,
    good_for: Duration,
    audience: &'static str,
}

#[async_trait::async_trait]
impl TokenCredential for Identity {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        assert_eq!(scopes, ["https://cosmos.azure.com/.default"]);
        self.issued.fetch_add(1, Ordering::SeqCst);
        let now = OffsetDateTime::now_utc();
        let claims = json!({
            "aud": self.audience,
            "iss": "https://sts.fake-issuer.net/7b1999a1-dfd7-440e-8204-00170979b984",
            "oid": "96313034-4739-43cb-93cd-74193adbe5b6",
            "iat": now.unix_timestamp() - 60,
            "nbf": now.unix_timestamp() - 60,
            "exp": (now + self.good_for).unix_timestamp(),
        });
        let part = |text: String| URL_SAFE_NO_PAD.encode(text);
        let head = part(json!({ "alg": "RS256", "typ": "JWT", "kid": "none" }).to_string());
        let token = format!("{head}.{}.{}", part(claims.to_string()), part("unsigned".to_owned()));
        Ok(AccessToken::new(token, now + self.good_for))
    }
}

const COSMOS: &str = "https://cosmos.azure.com";

async fn with_tokens(good_for: Duration, audience: &'static str) -> (Result<(), cosmos_driver::Error>, u32) {
    let world = Globe::with(Config::default().with_entra(Entra::default())).await;
    let identity = Arc::new(Identity { issued: AtomicU32::new(0), good_for, audience });
    let write = async {
        let driver = Driver::builder(world.endpoint(), Credential::token(identity.clone())).build().await?;
        let items = driver.container("db", "items")?;
        let item = json!({ "id": "1", "pk": "p" });
        items.create_item("p", &item, ItemOptions::default()).await?;
        items.read_item("p", "1", ItemOptions::default()).await.map(|_| ())
    };
    (write.await, identity.issued.load(Ordering::SeqCst))
}

#[tokio::test]
async fn a_token_is_used_until_it_is_about_to_expire() {
    let (result, issued) = with_tokens(Duration::hours(1), COSMOS).await;
    result.expect("let in");
    assert_eq!(issued, 1);
    let (result, issued) = with_tokens(Duration::minutes(2), COSMOS).await;
    result.expect("let in");
    assert!(issued > 1, "two minutes are too short to rely on");
}

#[tokio::test]
async fn a_token_for_something_else_is_refused() {
    let (result, _) = with_tokens(Duration::hours(1), "https://graph.microsoft.com").await;
    let error = result.expect_err("meant for somebody else");
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    assert!(error.to_string().contains("graph.microsoft.com"), "{error}");
}
