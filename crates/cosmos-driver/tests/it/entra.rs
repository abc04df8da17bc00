//! Tokens from an `azure_core` credential, let in by the emulator as the service lets them in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind;
use azure_core::time::{Duration, OffsetDateTime};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cosmos_driver::{Container, Credential, Driver, ItemOptions};
use cosmos_emulator::{Config, Entra, FaultRule, Operation, Verdict};
use serde_json::json;

use crate::globe::Globe;

/// An identity endpoint that hands out tokens, each good for a while.
#[derive(Debug)]
struct Identity {
    issued: AtomicU32,
    /// How many more there are.
    left: AtomicU32,
    good_for: Duration,
    /// How long they are said to be good for.
    said: Duration,
    audience: &'static str,
}

impl Identity {
    fn new(good_for: Duration, audience: &'static str) -> Arc<Self> {
        Arc::new(Self {
            issued: AtomicU32::new(0),
            left: AtomicU32::new(u32::MAX),
            good_for,
            said: good_for,
            audience,
        })
    }

    /// One whose tokens are no longer used once they were.
    fn of_one_use() -> Arc<Self> {
        let identity = Arc::into_inner(Self::new(Duration::hours(1), COSMOS)).expect("not shared");
        Arc::new(Self { said: Duration::ZERO, ..identity })
    }
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
        self.left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .map_err(|_| azure_core::Error::with_message(ErrorKind::Credential, "no more tokens"))?;
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
        Ok(AccessToken::new(token, now + self.said))
    }
}

const COSMOS: &str = "https://cosmos.azure.com";

async fn with_tokens(good_for: Duration, audience: &'static str) -> (Result<(), cosmos_driver::Error>, u32) {
    let world = Globe::with(Config::default().with_entra(Entra::default())).await;
    let identity = Identity::new(good_for, audience);
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
    assert_eq!(error.kind(), cosmos_driver::ErrorKind::Unauthorized, "{error}");
    assert!(error.to_string().contains("graph.microsoft.com"), "{error}");
}

/// A container with one item, and its ETag.
async fn seeded(world: &Globe, identity: &Arc<Identity>) -> (Container, String) {
    let builder = Driver::builder(world.endpoint(), Credential::token(identity.clone()));
    let items = builder.build().await.expect("let in").container("db", "items").expect("a name");
    let item = json!({ "id": "1", "pk": "p" });
    let created = items.create_item("p", &item, ItemOptions::default()).await.expect("created");
    let etag = created.etag().expect("an etag").to_owned();
    (items, etag)
}

#[tokio::test]
async fn a_write_that_cannot_be_repeated_for_want_of_a_token_may_have_been_applied() {
    let world = Globe::with(Config::default().with_entra(Entra::default())).await;
    let identity = Identity::of_one_use();
    let (items, etag) = seeded(&world, &identity).await;
    let lost = FaultRule::new(Verdict::ResetAfterCommit).on(Operation::ReplaceItem);
    let _lost = world.emulator.faults().add(lost);
    identity.left.store(1, Ordering::SeqCst);
    let item = json!({ "id": "1", "pk": "p", "n": 1 });
    let options = ItemOptions::default().with_if_match(&etag);
    let error = items.replace_item("p", "1", &item, options).await.expect_err("no token for the second try");
    assert_eq!(error.kind(), cosmos_driver::ErrorKind::Unauthorized, "{error}");
    assert!(error.may_have_been_applied(), "{error}");
    assert_eq!(error.diagnostics().attempts().len(), 1);
}

#[tokio::test]
async fn a_token_that_is_still_good_is_used_when_no_other_comes() {
    let world = Globe::with(Config::default().with_entra(Entra::default())).await;
    let identity = Identity::new(Duration::minutes(2), COSMOS);
    let (items, _) = seeded(&world, &identity).await;
    identity.left.store(0, Ordering::SeqCst);
    items.read_item("p", "1", ItemOptions::default()).await.expect("let in for two minutes more");
}
