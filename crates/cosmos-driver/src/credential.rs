//! Who the caller is.

use std::fmt;

use cosmos_wire::signature::Key;

use crate::error::Error;

/// What requests are authorized with.
#[derive(Clone)]
pub struct Credential(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Key(Key),
    Resource(String),
    #[cfg(feature = "entra")]
    Token(std::sync::Arc<crate::entra::Tokens>),
}

impl Credential {
    /// The account's primary, secondary or read-only key, as the portal shows it.
    ///
    /// # Errors
    /// When the text is not base64.
    pub fn key(base64: &str) -> Result<Self, Error> {
        Key::from_base64(base64)
            .map(|key| Self(Kind::Key(key)))
            .map_err(|e| Error::configuration(e.to_string()))
    }

    /// The well-known key every emulator accepts.
    #[must_use]
    pub fn emulator() -> Self {
        Self(Kind::Key(Key::from_base64(cosmos_wire::EMULATOR_KEY).expect("the well-known key is base64")))
    }

    /// A resource token, as handed out with a permission.
    #[must_use]
    pub fn resource_token(token: impl Into<String>) -> Self {
        Self(Kind::Resource(token.into()))
    }

    /// Microsoft Entra tokens from any `azure_core` credential.
    #[cfg(feature = "entra")]
    #[must_use]
    pub fn token(source: std::sync::Arc<dyn azure_core::credentials::TokenCredential>) -> Self {
        Self(Kind::Token(std::sync::Arc::new(crate::entra::Tokens::new(source))))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Key(_) => "Credential(key)",
            Kind::Resource(_) => "Credential(resource token)",
            #[cfg(feature = "entra")]
            Kind::Token(_) => "Credential(token)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        let text = format!("{:?} {:?}", Credential::emulator(), Credential::resource_token("secret"));
        assert!(!text.contains("secret") && !text.contains("C2y6"), "{text}");
    }

    #[test]
    fn a_key_that_is_not_base64_is_refused() {
        assert!(Credential::key("not a key!").is_err());
    }
}
