//! Tokens from an `azure_core` credential.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::time::{Duration, OffsetDateTime};
use cosmos_driver::{Credential, Driver, ItemOptions};
use serde_json::json;

use crate::world::World;

/// An identity endpoint that hands out numbered tokens.
#[derive(Debug)]
struct Identity {
    issued: AtomicU32,
    good_for: Duration,
}

#[async_trait::async_trait]
impl TokenCredential for Identity {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        assert_eq!(scopes, ["https://cosmos.azure.com/.default"]);
        let number = self.issued.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(AccessToken::new(format!("token-{number}"), OffsetDateTime::now_utc() + self.good_for))
    }
}

async fn with_tokens(good_for: Duration) -> (World, Arc<Identity>) {
    let world = World::start(&["East"]).await;
    let identity = Arc::new(Identity { issued: AtomicU32::new(0), good_for });
    let driver =
        Driver::builder(world.endpoint(), Credential::token(identity.clone())).build().await.expect("starts");
    let items = driver.container("db", "items").expect("a valid name");
    items.create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await.expect("created");
    (world, identity)
}

#[tokio::test]
async fn a_token_is_used_until_it_is_about_to_expire() {
    let (world, identity) = with_tokens(Duration::hours(1)).await;
    assert_eq!(world.table().authorization, "type%3Daad%26ver%3D1.0%26sig%3Dtoken-1");
    assert_eq!(identity.issued.load(Ordering::SeqCst), 1);
    let (_, identity) = with_tokens(Duration::minutes(2)).await;
    assert!(identity.issued.load(Ordering::SeqCst) > 1, "two minutes are too short to rely on");
}
