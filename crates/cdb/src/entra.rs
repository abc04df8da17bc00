//! Signing in with Microsoft Entra, in place of a key.

use cosmos_driver::Credential;

use crate::exit::Problem;

/// What signs the requests of the identity of this name. Nothing is fetched yet.
#[cfg(feature = "entra")]
pub(crate) fn credential(identity: &str) -> Result<Credential, Problem> {
    let identity = identity.parse().map_err(told)?;
    Credential::identity(identity).map_err(told)
}

#[cfg(feature = "entra")]
#[allow(clippy::needless_pass_by_value, reason = "map_err hands it over")]
fn told(error: cosmos_driver::Error) -> Problem {
    Problem::Usage(format!("--entra: {}", error.message()))
}

/// What signs the requests of the identity of this name.
#[cfg(not(feature = "entra"))]
pub(crate) fn credential(_: &str) -> Result<Credential, Problem> {
    Err(Problem::Usage("this cdb was built without the feature `entra`: use a key".to_owned()))
}
