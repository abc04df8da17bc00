//! Which Microsoft Entra identity of this machine is meant.
//!
//! ```text
//! AZURE_CLIENT_SECRET set          -> environment   (a service principal, in pipelines)
//! AZURE_FEDERATED_TOKEN_FILE set   -> workload      (a pod in Kubernetes)
//! IDENTITY_ENDPOINT set            -> managed       (App Service, Container Apps, Functions)
//! otherwise                        -> developer     (who is signed in with `az` or `azd`)
//! ```
//!
//! A virtual machine has a managed identity and no variable that says so. Asking for one where there is none takes seconds
//! of silence, so that one is named.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use azure_core::credentials::{Secret, TokenCredential};
use azure_core::http::{ClientOptions, Transport};
use azure_identity::{
    ClientAssertionCredentialOptions, ClientSecretCredential, ClientSecretCredentialOptions,
    DeveloperToolsCredential, ManagedIdentityCredential, ManagedIdentityCredentialOptions, UserAssignedId,
    WorkloadIdentityCredential, WorkloadIdentityCredentialOptions,
};

use crate::credential::Credential;
use crate::error::Error;

mod http;

/// Which identity signs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Identity {
    /// The first of the others that the variables of the environment tell of; the developer if none does.
    #[default]
    Auto,
    /// A service principal: `AZURE_TENANT_ID`, `AZURE_CLIENT_ID` and `AZURE_CLIENT_SECRET`.
    Environment,
    /// The identity of a pod: `AZURE_TENANT_ID`, `AZURE_CLIENT_ID` and `AZURE_FEDERATED_TOKEN_FILE`.
    Workload,
    /// The identity of the machine or the app; `AZURE_CLIENT_ID` names one of several.
    Managed,
    /// Who is signed in with the Azure CLI or the Azure Developer CLI.
    Developer,
}

const ALL: [Identity; 5] =
    [Identity::Auto, Identity::Environment, Identity::Workload, Identity::Managed, Identity::Developer];

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Environment => "environment",
            Self::Workload => "workload",
            Self::Managed => "managed",
            Self::Developer => "developer",
        })
    }
}

impl FromStr for Identity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = ALL.into_iter().find(|identity| identity.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            let words = ALL.map(|identity| identity.to_string()).join(", ");
            Error::configuration(format!("{text:?} is no identity: it is one of {words}"))
        })
    }
}

impl Identity {
    /// The identity that is meant on a machine with these variables.
    fn settled(self, is_set: impl Fn(&str) -> bool) -> Self {
        match self {
            Self::Auto if is_set("AZURE_CLIENT_SECRET") => Self::Environment,
            Self::Auto if is_set("AZURE_FEDERATED_TOKEN_FILE") => Self::Workload,
            Self::Auto if is_set("IDENTITY_ENDPOINT") => Self::Managed,
            Self::Auto => Self::Developer,
            named => named,
        }
    }

    /// Where its tokens come from.
    fn source(self) -> Result<Arc<dyn TokenCredential>, Error> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let identity = self.settled(|name| set(name).is_some());
        let need = |name: &str| {
            set(name).ok_or_else(|| {
                Error::configuration(format!("the identity {identity} needs {name}, which is not set"))
            })
        };
        let source: azure_core::Result<Arc<dyn TokenCredential>> = match identity {
            Self::Environment => {
                let secret = Secret::new(need("AZURE_CLIENT_SECRET")?);
                let (tenant, client) = (need("AZURE_TENANT_ID")?, need("AZURE_CLIENT_ID")?);
                let options = ClientSecretCredentialOptions { client_options: client_options() };
                ClientSecretCredential::new(&tenant, client, secret, Some(options)).map(|source| source as _)
            }
            Self::Workload => {
                for name in ["AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"] {
                    need(name)?;
                }
                let options = WorkloadIdentityCredentialOptions {
                    credential_options: ClientAssertionCredentialOptions { client_options: client_options() },
                    ..Default::default()
                };
                WorkloadIdentityCredential::new(Some(options)).map(|source| source as _)
            }
            Self::Managed => {
                let options = ManagedIdentityCredentialOptions {
                    client_options: client_options(),
                    user_assigned_id: set("AZURE_CLIENT_ID").map(UserAssignedId::ClientId),
                };
                ManagedIdentityCredential::new(Some(options)).map(|source| source as _)
            }
            Self::Developer | Self::Auto => DeveloperToolsCredential::new(None).map(|source| source as _),
        };
        source
            .map_err(|error| Error::configuration(format!("the identity {identity} cannot be used: {error}")))
    }
}

fn client_options() -> ClientOptions {
    let transport = Some(Transport::new(Arc::new(http::Client)));
    ClientOptions { transport, ..ClientOptions::default() }
}

impl Credential {
    /// Microsoft Entra tokens of an identity that this machine has. Nothing is fetched yet.
    ///
    /// # Errors
    /// When the variables that the identity needs are not set.
    pub fn identity(identity: Identity) -> Result<Self, Error> {
        identity.source().map(Self::token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_the_first_that_the_machine_tells_of() {
        let with = |names: &'static [&str]| Identity::Auto.settled(|name| names.contains(&name));
        assert_eq!(with(&[]), Identity::Developer);
        assert_eq!(with(&["IDENTITY_ENDPOINT"]), Identity::Managed);
        assert_eq!(with(&["IDENTITY_ENDPOINT", "AZURE_FEDERATED_TOKEN_FILE"]), Identity::Workload);
        assert_eq!(with(&["AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"]), Identity::Environment);
        assert_eq!(Identity::Developer.settled(|_| true), Identity::Developer, "what is named is meant");
    }

    #[test]
    fn identities_are_read_as_they_are_written() {
        for identity in ALL {
            assert_eq!(identity.to_string().to_uppercase().parse().ok(), Some(identity));
        }
        assert!("me".parse::<Identity>().unwrap_err().message().contains("workload"));
    }
}
