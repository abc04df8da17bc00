//! How long instances are kept after they have ended.
//!
//! Worked example. The policy is `completed=30d failed=90d order:completed=7d`. An `order` completes on Monday at noon. All
//! of it is in its head, it has no parent and never had anything to do with another instance, so the commit that ends it
//! writes `ttl: 604800` into the head, and the service removes it on the next Monday at noon, at no request of ours. A
//! `report` with two children fails: its head gets no `ttl`, because it would be gone at another moment than its history
//! and its children. After 90 days one member of the fleet finds it, and deletes it with its children as `delete_tree` would, if all
//! of them have ended by then.
//!
//! | file | what it decides |
//! |---|---|
//! | `mod.rs` | the policy: how long, by name and status |
//! | `expiry.rs` | whether the service may remove a head by itself, and when |
//!
//! What a member of the fleet removes, and what it puts right after the policy has changed, is in `keeper.rs`.

pub(crate) mod expiry;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::documents::Status;

pub use expiry::may_expire;

/// How long instances are kept after they have ended, by the name of their orchestration and how they ended.
///
/// A rule with a name goes before one without. What no rule is about is kept for ever.
///
/// ```
/// let policy: duroxide_cdb::Retention = "completed=30d failed=90d order:completed=7d audit:completed=forever".parse()?;
/// let days = |name: &str| policy.keep(name, "Completed").map(|keep| keep.as_secs() / 86_400);
/// assert_eq!([days("order"), days("report"), days("audit")], [Some(7), Some(30), None]);
/// # Ok::<(), duroxide_cdb::RetentionError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<RetentionRule>", into = "Vec<RetentionRule>")]
pub struct Retention {
    /// By name (none for all others) and status; no time means for ever.
    rules: BTreeMap<(Option<String>, Ending), Option<Duration>>,
}

/// How an instance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Ending {
    /// With a result.
    Completed,
    /// With an error; also if it was cancelled.
    Failed,
}

/// One rule, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetentionRule {
    /// The orchestration it is about; none for all that have no rule of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How they ended.
    pub status: Ending,
    /// How many seconds they are kept; none for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_seconds: Option<u64>,
}

/// Why something is not a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionError(String);

impl fmt::Display for RetentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RetentionError {}

impl Ending {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Completed, Self::Failed];

    /// The status that the head of such an instance has.
    #[must_use]
    pub fn status(self) -> &'static str {
        match self {
            Self::Completed => Status::COMPLETED,
            Self::Failed => Status::FAILED,
        }
    }

    /// How an instance with this status ended; `None` if it has not.
    #[must_use]
    pub fn of(status: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ending| ending.status() == status)
    }
}

impl Retention {
    /// Keeps those that ended so for a time, with another rule for the same taken back; `None` keeps them for ever.
    ///
    /// # Errors
    /// When the time is shorter than [`KEEP_MIN`](Self::KEEP_MIN) or longer than the service knows.
    pub fn with(
        mut self,
        name: Option<&str>,
        ending: Ending,
        keep: Option<Duration>,
    ) -> Result<Self, RetentionError> {
        if let Some(keep) = keep {
            check(keep)?;
        }
        self.rules.insert((name.map(ToOwned::to_owned), ending), keep);
        Ok(self)
    }

    /// How long an instance is kept that has ended with this status. `None`: for ever, or it has not ended.
    #[must_use]
    pub fn keep(&self, name: &str, status: &str) -> Option<Duration> {
        let ending = Ending::of(status)?;
        let own = self.rules.get(&(Some(name.to_owned()), ending));
        own.or_else(|| self.rules.get(&(None, ending))).copied().flatten()
    }

    /// Whether everything is kept for ever.
    #[must_use]
    pub fn keeps_everything(&self) -> bool {
        self.rules.values().all(Option::is_none)
    }

    /// The rules, those for all orchestrations first.
    #[must_use]
    pub fn rules(&self) -> Vec<RetentionRule> {
        self.clone().into()
    }

    /// The shortest time that any instance is kept that ended so.
    pub(crate) fn shortest(&self, ending: Ending) -> Option<Duration> {
        self.rules.iter().filter(|((_, of), _)| *of == ending).filter_map(|(_, keep)| *keep).min()
    }

    /// The shortest time anything may be kept. A client that waits for a result looks every few seconds; in this time it
    /// sees the result also if it is held up for a while, and whatever the end of an instance left to do is done.
    pub const KEEP_MIN: Duration = Duration::from_secs(600);
}

fn check(keep: Duration) -> Result<(), RetentionError> {
    if keep < Retention::KEEP_MIN {
        let least = Retention::KEEP_MIN.as_secs() / 60;
        return Err(RetentionError(format!(
            "{keep:?} is too short: who waits for a result must have time to see it. Keep it for {least} minutes or more."
        )));
    }
    if keep > KEEP_MAX {
        return Err(RetentionError(format!("{keep:?} is longer than the service knows: say forever.")));
    }
    Ok(())
}

impl TryFrom<Vec<RetentionRule>> for Retention {
    type Error = RetentionError;

    fn try_from(rules: Vec<RetentionRule>) -> Result<Self, RetentionError> {
        rules.into_iter().try_fold(Self::default(), |policy, rule| {
            policy.with(rule.name.as_deref(), rule.status, rule.keep_seconds.map(Duration::from_secs))
        })
    }
}

impl From<Retention> for Vec<RetentionRule> {
    fn from(policy: Retention) -> Self {
        let rule = |((name, status), keep): ((Option<String>, Ending), Option<Duration>)| RetentionRule {
            name,
            status,
            keep_seconds: keep.map(|keep| keep.as_secs()),
        };
        policy.rules.into_iter().map(rule).collect()
    }
}

/// `completed=30d failed=90d order:completed=7d`: times in `m`inutes, `h`ours, `d`ays, or `forever`.
impl FromStr for Retention {
    type Err = RetentionError;

    fn from_str(text: &str) -> Result<Self, RetentionError> {
        text.split_whitespace().try_fold(Self::default(), |policy, rule| {
            let refuse = || {
                RetentionError(format!(
                    "{rule:?} is not a rule: write completed=30d, failed=90d or NAME:completed=12h."
                ))
            };
            let (what, keep) = rule.rsplit_once('=').ok_or_else(refuse)?;
            let (name, ending) = what.rsplit_once(':').map_or((None, what), |(name, of)| (Some(name), of));
            let ending = match ending.to_ascii_lowercase().as_str() {
                "completed" => Ending::Completed,
                "failed" => Ending::Failed,
                _ => return Err(refuse()),
            };
            if name.is_some_and(str::is_empty) {
                return Err(refuse());
            }
            policy.with(name, ending, time(keep).ok_or_else(refuse)?)
        })
    }
}

/// A time, or none for ever.
fn time(text: &str) -> Option<Option<Duration>> {
    if text.eq_ignore_ascii_case("forever") {
        return Some(None);
    }
    let unit = match text.chars().last()? {
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    Some(Some(Duration::from_secs(number.checked_mul(unit)?)))
}

/// As it is written on the command line.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, ((name, ending), keep)) in self.rules.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            let name = name.as_ref().map_or(String::new(), |name| format!("{name}:"));
            let ending = ending.status().to_ascii_lowercase();
            let keep = keep.map_or("forever".to_owned(), |keep| match keep.as_secs() {
                seconds if seconds % 86_400 == 0 => format!("{}d", seconds / 86_400),
                seconds if seconds % 3_600 == 0 => format!("{}h", seconds / 3_600),
                seconds => format!("{}m", seconds / 60),
            });
            write!(f, "{space}{name}{ending}={keep}")?;
        }
        Ok(())
    }
}

/// The service's limit for the time to live of an item.
const KEEP_MAX: Duration = Duration::from_secs(i32::MAX as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        let text = "completed=30d failed=90m order:completed=36h a:b:failed=forever";
        let policy: Retention = text.parse().unwrap();
        assert_eq!(policy.to_string().parse::<Retention>().unwrap(), policy);
        let stored = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Retention>(&stored).unwrap(), policy);
        let hours =
            |name: &str, status: &str| policy.keep(name, status).map(|keep| keep.as_secs_f64() / 3600.0);
        assert_eq!(hours("order", "Completed"), Some(36.0));
        assert_eq!(hours("order", "Failed"), Some(1.5));
        assert_eq!(hours("a:b", "Failed"), None);
        assert_eq!(hours("report", "Completed"), Some(720.0));
        for going_on in ["Running", "ContinuedAsNew", "", "completed"] {
            assert_eq!(policy.keep("report", going_on), None, "{going_on}");
        }
        assert_eq!(policy.shortest(Ending::Completed), Some(Duration::from_secs(36 * 3600)));
    }

    #[test]
    fn what_is_no_rule_or_too_short_is_refused_in_one_sentence() {
        for text in [
            "completed",
            "completed=",
            "completed=9",
            "completed=-1d",
            "running=1d",
            ":failed=1d",
            "completed=9m",
            "completed=0d",
            "completed=99999999d",
            "completed=99999999999999999d",
            "completed=1é",
        ] {
            let error = text.parse::<Retention>().unwrap_err();
            assert!(error.0.ends_with('.'), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Retention>(r#"[{"status":"Completed","keepSeconds":1}]"#).is_err());
        assert!(serde_json::from_str::<Retention>(r#"[{"status":"Running","keepSeconds":9000}]"#).is_err());
        assert!("".parse::<Retention>().unwrap().keeps_everything());
    }
}
