//! Microsoft Entra tokens from any `azure_core` credential, fetched ahead of their expiry.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use azure_core::credentials::{AccessToken, TokenCredential};
use tokio::sync::Mutex;

use crate::driver::Core;
use crate::error::Error;

/// A credential and its current token.
pub(crate) struct Tokens {
    source: Arc<dyn TokenCredential>,
    current: ArcSwapOption<AccessToken>,
    fetching: Mutex<()>,
}

impl Tokens {
    pub(crate) fn new(source: Arc<dyn TokenCredential>) -> Self {
        Self { source, current: ArcSwapOption::empty(), fetching: Mutex::new(()) }
    }

    /// A token that is good for a while; fetched by one caller at a time.
    pub(crate) async fn current(&self, core: &Core) -> Result<String, Error> {
        if let Some(token) = self.fresh(core) {
            return Ok(token);
        }
        let _one = self.fetching.lock().await;
        if let Some(token) = self.fresh(core) {
            return Ok(token);
        }
        let token = match self.source.get_token(&[SCOPE], None).await {
            Ok(token) => token,
            Err(error) => {
                let text = format!("no token for {SCOPE}: {error}");
                tracing::warn!("{text}");
                // The one there is was to be replaced in good time; until it ends it is as good as another.
                return self.good_for(core, 0).ok_or_else(|| Error::unauthorized(text));
            }
        };
        let text = token.token.secret().to_owned();
        self.current.store(Some(Arc::new(token)));
        Ok(text)
    }

    fn fresh(&self, core: &Core) -> Option<String> {
        self.good_for(core, AHEAD_SECS)
    }

    fn good_for(&self, core: &Core, secs: u64) -> Option<String> {
        let token = self.current.load_full()?;
        let expires = u64::try_from(token.expires_on.unix_timestamp()).unwrap_or(0);
        (expires > core.clock.unix_secs() + secs).then(|| token.token.secret().to_owned())
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

const SCOPE: &str = "https://cosmos.azure.com/.default";
const AHEAD_SECS: u64 = 300;
