//! What can go wrong at the store, and how it is told to the runtime.

use std::time::Duration;

use cosmos_driver::{Error, ErrorKind};
use duroxide::providers::ProviderError;

use crate::documents::ids;

/// What sort of trouble a request met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No such document.
    Missing,
    /// A document with this id exists.
    Exists,
    /// The document has changed since it was read.
    Changed,
    /// Worth trying again: throttled, unavailable, timed out, no connection.
    Transient,
    /// The request will never succeed as it is.
    Refused,
}

/// A failed request.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) trouble: Trouble,
    /// Whether a write may have taken effect all the same.
    pub(crate) may_have_been_applied: bool,
    /// Whether an earlier try of the same request, after which this one was sent, may have taken effect.
    pub(crate) follows_doubt: bool,
    /// Which operation of a batch was the cause.
    pub(crate) index: Option<usize>,
    pub(crate) retry_after: Option<Duration>,
    /// Whether only a key may do what was asked: tokens read and write items.
    pub(crate) needs_a_key: bool,
    /// Whether what is stored cannot be read: it was the store that answered, and it will answer the same.
    pub(crate) is_damage: bool,
    /// Whether the key or the token was not accepted, or does not allow what was asked.
    pub(crate) is_access_refused: bool,
    /// Whether the key or the token was not accepted.
    is_unauthorized: bool,
    /// Whether the account does not promise what workflows need.
    is_unfit: bool,
    message: String,
}

impl Fault {
    /// A fault of the provider's own making.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(Trouble::Refused, message)
    }

    /// Something stored that cannot be read.
    pub(crate) fn damaged(message: impl Into<String>) -> Self {
        Self { is_damage: true, ..Self::refused(message) }
    }

    /// A lock that turned out to be another's before anything was sent.
    pub(crate) fn of_lost_lock(why: Lost) -> Self {
        Self::new(Trouble::Changed, why.sentence().0)
    }

    pub(crate) fn transient(message: impl Into<String>) -> Self {
        Self::new(Trouble::Transient, message)
    }

    fn new(trouble: Trouble, message: impl Into<String>) -> Self {
        Self {
            trouble,
            may_have_been_applied: false,
            follows_doubt: false,
            index: None,
            retry_after: None,
            needs_a_key: false,
            is_damage: false,
            is_access_refused: false,
            is_unauthorized: false,
            is_unfit: false,
            message: message.into(),
        }
    }

    pub(crate) fn is_transient(&self) -> bool {
        self.trouble == Trouble::Transient
    }

    /// Whether the same request may succeed later, for a process that was allowed to make it a moment ago: keys are
    /// rotated, role assignments and firewall rules change and come back.
    pub(crate) fn may_pass(&self) -> bool {
        self.is_transient() || self.is_access_refused
    }

    /// Whether the request will never succeed, whoever asks and whenever.
    pub(crate) fn is_final_refusal(&self) -> bool {
        self.trouble == Trouble::Refused && !self.may_pass()
    }

    /// Whether an account that is being opened may yet be opened.
    pub(crate) fn may_pass_at_opening(&self) -> bool {
        self.is_transient() && !self.is_unauthorized && !self.is_unfit
    }

    /// The status of one operation that made a whole batch fail.
    pub(crate) fn of_operation(
        index: usize,
        status: u16,
        sub_status: u32,
        activity_id: Option<&str>,
    ) -> Self {
        let trouble = match status {
            404 => Trouble::Missing,
            409 => Trouble::Exists,
            412 => Trouble::Changed,
            408 | 410 | 429 | 449 | 500..=599 => Trouble::Transient,
            _ => Trouble::Refused,
        };
        let activity = activity_id.map(|id| format!(" [activity {id}]")).unwrap_or_default();
        let advice = match (trouble, status) {
            (Trouble::Transient, 429) => RAISE_THROUGHPUT,
            (Trouble::Transient, _) => LOOK_AT_HEALTH,
            (Trouble::Missing | Trouble::Exists | Trouble::Changed | Trouble::Refused, _) => "",
        };
        let message = format!(
            "operation {index} of the batch was answered with {status}/{sub_status}{activity}{advice}"
        );
        Self { index: Some(index), ..Self::new(trouble, message) }
    }

    /// The error the runtime sees.
    pub(crate) fn surface<'a>(self, operation: &str, about: impl Into<About<'a>>) -> ProviderError {
        let advice = if self.is_damage { LOOK_AT_DAMAGE } else { "" };
        let message = format!("{}{}{advice}", self.message, about.into());
        match self.trouble {
            Trouble::Transient | Trouble::Changed => ProviderError::retryable(operation, message),
            Trouble::Missing | Trouble::Exists | Trouble::Refused => {
                ProviderError::permanent(operation, message)
            }
        }
    }
}

/// What an error is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum About<'a> {
    /// The whole container.
    All,
    Instance(&'a str),
    /// A work item, by the partition and the id of its document.
    Work(&'a str, &'a str),
}

impl<'a> From<&'a str> for About<'a> {
    fn from(instance: &'a str) -> Self {
        Self::Instance(instance)
    }
}

impl<'a> From<&'a String> for About<'a> {
    fn from(instance: &'a String) -> Self {
        Self::Instance(instance)
    }
}

impl std::fmt::Display for About<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Instance(instance) => write!(f, " (instance {instance:?})"),
            Self::Work(instance, id) => match ids::activity_of(id) {
                Some((execution, activity)) => {
                    write!(f, " (instance {instance:?}, execution {execution}, activity {activity})")
                }
                None => write!(f, " (instance {instance:?}, work item {id:?})"),
            },
        }
    }
}

impl From<serde_json::Error> for Fault {
    /// What cannot be written as JSON never can be.
    fn from(error: serde_json::Error) -> Self {
        Self::refused(error.to_string())
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let (trouble, advice) = match error.kind() {
            ErrorKind::NotFound => (Trouble::Missing, "; check that database and container are still there"),
            ErrorKind::Conflict => (Trouble::Exists, ""),
            ErrorKind::PreconditionFailed => (Trouble::Changed, "; somebody else was quicker: try again"),
            ErrorKind::Throttled => (Trouble::Transient, RAISE_THROUGHPUT),
            ErrorKind::Deadline => (Trouble::Transient, "; timeout: check the network to the account"),
            ErrorKind::Connection => (Trouble::Transient, "; connection trouble: check endpoint and network"),
            ErrorKind::Unavailable
            | ErrorKind::Service
            | ErrorKind::SessionNotAvailable
            | ErrorKind::Protocol => (Trouble::Transient, LOOK_AT_HEALTH),
            // The account was opened with it, so a key is being rotated or a token could not be renewed: no reason to
            // give a workflow up.
            ErrorKind::Unauthorized => (Trouble::Transient, CHECK_KEY),
            ErrorKind::Forbidden => (Trouble::Refused, CHECK_RIGHTS),
            // Somebody has changed the account while this process ran. Nothing was sent, and workflows go on when the
            // change is taken back.
            ErrorKind::AccountUnfit => (Trouble::Transient, ""),
            // What cannot be sent, or is of a kind this crate does not know, will not get better by itself.
            _ => (Trouble::Refused, ""),
        };
        Self {
            trouble,
            may_have_been_applied: error.may_have_been_applied(),
            follows_doubt: false,
            index: None,
            retry_after: error.retry_after(),
            is_damage: false,
            is_access_refused: matches!(error.kind(), ErrorKind::Unauthorized | ErrorKind::Forbidden),
            is_unauthorized: error.kind() == ErrorKind::Unauthorized,
            is_unfit: error.kind() == ErrorKind::AccountUnfit,
            needs_a_key: (error.status(), error.sub_status()) == (Some(403), Some(NOT_FOR_TOKENS)),
            message: format!("{error}{advice}"),
        }
    }
}

/// Whether the account does not accept the key or credential, or does not let it do what was asked.
///
/// The framework's errors have no kind for this: it is told by the advice that this provider gives then.
#[must_use]
pub fn is_access_refused(error: &ProviderError) -> bool {
    !error.is_retryable() && [CHECK_KEY, CHECK_RIGHTS].iter().any(|advice| error.message.contains(advice))
}

/// Whether something that is stored cannot be read: asking again brings the same, and other instances are not concerned.
///
/// The framework's errors have no kind for this: it is told by the advice that this provider gives then.
#[must_use]
pub fn is_damage(error: &ProviderError) -> bool {
    !error.is_retryable() && error.message.contains(LOOK_AT_DAMAGE)
}

const LOOK_AT_DAMAGE: &str =
    "; `cdb why` and `cdb fsck` tell more about it, and `cdb delete --force` removes it";
const RAISE_THROUGHPUT: &str = "; raise the container's throughput if this goes on";
const LOOK_AT_HEALTH: &str = "; try again, and look at the account's health if this goes on";
const CHECK_KEY: &str = "; check the account key or the credential";
const CHECK_RIGHTS: &str = "; check the rights of the key or credential, and the account's firewall";
/// Sub-status of a 403: the control plane takes no tokens.
const NOT_FOR_TOKENS: u32 = 5300;

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// Why a lock is not, or no longer, the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The token is of another making.
    Unknown,
    /// The lock of a turn was given back, or the turn was committed.
    NotHeld,
    Expired,
    /// An earlier call could not keep the promise of the lock.
    GivenUp,
    /// A message that the turn holds was consumed or removed by another process.
    MessageGone,
    /// Somebody else has the turn.
    TakenOver,
    /// The instance was deleted.
    Deleted,
    /// The work item was completed, cancelled or taken over.
    Finished,
}

impl Lost {
    /// The reason and what to do.
    fn sentence(self) -> (&'static str, &'static str) {
        match self {
            Self::Unknown => ("it is not a token of this provider", "use the token that the fetch returned"),
            Self::NotHeld => {
                ("the lock is not held any more", "what is not committed is fetched again: drop this turn")
            }
            Self::Expired => (
                "the lock has expired",
                "it is fetched again: drop this result, and renew earlier or lock longer if this goes on",
            ),
            Self::GivenUp => (
                "an earlier call with this token failed, and its lock is left to run out",
                "it is fetched again: drop this result",
            ),
            Self::MessageGone => {
                ("a message that the turn holds is gone", "what is left is fetched again: drop this turn")
            }
            Self::TakenOver => {
                ("somebody else has taken the turn over", "drop this turn, and lock longer if this goes on")
            }
            Self::Deleted => ("the instance was deleted", "drop this turn"),
            Self::Finished => ("the work item was completed, cancelled or taken over", "drop its result"),
        }
    }
}

/// The permanent error of a lock that is not, or no longer, the caller's.
pub(crate) fn invalid_token<'a>(operation: &str, about: impl Into<About<'a>>, why: Lost) -> ProviderError {
    let (reason, advice) = why.sentence();
    ProviderError::permanent(operation, format!("Invalid lock token: {reason}{}; {advice}", about.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_operations_status_decides_what_the_batch_is_worth() {
        let cases = [
            (404, Trouble::Missing),
            (409, Trouble::Exists),
            (412, Trouble::Changed),
            (408, Trouble::Transient),
            (410, Trouble::Transient),
            (429, Trouble::Transient),
            (449, Trouble::Transient),
            (503, Trouble::Transient),
            (400, Trouble::Refused),
            (413, Trouble::Refused),
        ];
        for (status, trouble) in cases {
            assert_eq!(Fault::of_operation(3, status, 0, None).trouble, trouble, "{status}");
        }
    }

    #[test]
    fn a_work_item_is_named_by_its_activity_if_it_has_one() {
        let cases = [
            ("work:2:7", " (instance \"a\", execution 2, activity 7)"),
            ("work:2:7:1f", " (instance \"a\", execution 2, activity 7)"),
            ("1f", " (instance \"a\", work item \"1f\")"),
        ];
        for (id, name) in cases {
            assert_eq!(About::Work("a", id).to_string(), name);
        }
        assert_eq!(About::All.to_string(), "");
    }

    #[test]
    fn an_error_names_operation_instance_and_activity() {
        let error =
            Fault::of_operation(0, 429, 3200, Some("abc")).surface("ack_orchestration_item", "order-1");
        assert!(error.retryable);
        for part in ["ack_orchestration_item", "order-1", "abc", "429"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
