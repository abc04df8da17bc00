//! How the process ends: what is said, and the code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use cosmos_driver::ErrorKind;
use cosmos_emulator::StartError;
use duroxide::ClientError;
use duroxide::providers::ProviderError;
use duroxide_cdb::is_access_refused;

use crate::output::say;

/// The exit codes, for the end of the help page.
pub(crate) const CODES: &str = "\
Exit codes:
    0  done
    1  failed
    2  wrong usage
    3  the port is taken
    4  the data folder cannot be used
    5  no such instance, container, folder or dead letter
    6  the account cannot be reached
    7  the account refused the key
    8  something was found that needs attention: a stuck instance, a defect, a failed load
  130  stopped by Ctrl-C";

/// What can be wrong in a way that a script wants to tell apart.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The command line cannot be meant.
    Usage(String),
    /// What was asked for is not there.
    Missing(String),
    /// The data folder takes no more writes.
    Folder(String),
    /// Nobody answers at the endpoint.
    Unreachable(String),
    /// The account does not accept the key.
    Refused(String),
    /// The command did its work and found something bad.
    Found(String),
    /// Ctrl-C; the text says how to go on.
    Interrupted(String),
}

impl Problem {
    /// No instance has this id.
    pub(crate) fn no_instance(id: &str) -> Self {
        Self::Missing(format!("there is no instance {id:?}: `cdb instances` lists those there are"))
    }

    fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Folder(_) => 4,
            Self::Missing(_) => 5,
            Self::Unreachable(_) => 6,
            Self::Refused(_) => 7,
            Self::Found(_) => 8,
            Self::Interrupted(_) => 130,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text)
            | Self::Missing(text)
            | Self::Folder(text)
            | Self::Unreachable(text)
            | Self::Refused(text)
            | Self::Found(text)
            | Self::Interrupted(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Problem {}

/// Says what went wrong and picks the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // Whoever read our output has seen enough.
        return ExitCode::SUCCESS;
    }
    match of_account(error) {
        Some(problem) => say(format!("cdb: {problem}")),
        None => say(format!("cdb: {error:#}")),
    }
    ExitCode::from(code(error))
}

fn code(error: &anyhow::Error) -> u8 {
    if let Some(problem) = error.downcast_ref::<Problem>() {
        return problem.code();
    }
    if let Some(problem) = of_account(error) {
        return problem.code();
    }
    match error.downcast_ref::<StartError>() {
        Some(StartError::Listen { .. }) => 3,
        Some(StartError::Store(_)) => 4,
        Some(StartError::Key(_) | StartError::Certificate(_) | StartError::Blueprint(_)) => 2,
        Some(_) | None => 1,
    }
}

/// What the account did to a command that had begun.
fn of_account(error: &anyhow::Error) -> Option<Problem> {
    let unreachable = |said: &str| {
        Problem::Unreachable(format!("the account does not answer any more: {}", first_line(said)))
    };
    let refused = |said: &str| {
        Problem::Refused(format!(
            "the account does not accept the key for this (a read-only key is not enough for commands that write): {}",
            first_line(said)
        ))
    };
    let of_client = error.downcast_ref().and_then(|error| match error {
        ClientError::Provider(error) => Some(error),
        _ => None,
    });
    if let Some(error) = of_client.or_else(|| error.downcast_ref::<ProviderError>()) {
        if is_access_refused(error) {
            return Some(refused(&error.message));
        }
        // The provider has tried for a while before it says that trying again may help.
        return error.is_retryable().then(|| unreachable(&error.message));
    }
    let error = error.downcast_ref::<cosmos_driver::Error>()?;
    match error.kind() {
        ErrorKind::Connection | ErrorKind::Deadline | ErrorKind::Unavailable => {
            Some(unreachable(error.message()))
        }
        ErrorKind::Unauthorized | ErrorKind::Forbidden => Some(refused(error.message())),
        _ => None,
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn problems_keep_their_code_under_a_context() {
        let error = Err::<(), _>(Problem::no_instance("a")).context("while looking").unwrap_err();
        assert_eq!(code(&error), 5);
        assert_eq!(code(&anyhow::anyhow!("anything")), 1);
    }

    #[test]
    fn an_account_that_went_away_is_told_from_one_that_refuses() {
        let of = |error: ProviderError| anyhow::Error::from(ClientError::Provider(error));
        let gone = of(ProviderError::retryable("read", "nobody answers\nActivityId: 1"));
        assert_eq!(code(&gone), 6);
        assert_eq!(
            of_account(&gone).unwrap().to_string(),
            "the account does not answer any more: nobody answers"
        );
        assert_eq!(code(&of(ProviderError::permanent("read", "no such thing"))), 1);
        let bare = anyhow::Error::from(ProviderError::retryable("read", "nobody answers")).context("opening");
        assert_eq!(code(&bare), 6);
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("writing");
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
