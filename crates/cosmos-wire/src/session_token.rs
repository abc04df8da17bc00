//! Session tokens: how far a session has read or written, per partition key range.
//!
//! One range's token is `{range id}:{progress}`; a header may carry several, separated by commas.
//! Progress is `{version}#{global lsn}` in accounts of one region (`0:-1#31`), followed by
//! `#{region}={local lsn}` for each satellite region otherwise (`0:1#100#3=45#5=7`). Old accounts
//! have a bare number (`0:31`). The version is -1 where the service has assigned none, and rises
//! whenever the set of regions changes; numbers are comparable only within one version.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Progress of a session in one range.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Progress {
    /// A bare log sequence number.
    Simple(i64),
    /// A version vector.
    Vector(Vector),
}

/// Progress with its region configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Vector {
    /// Version of the region configuration, -1 when none is assigned.
    pub version: i64,
    /// Log sequence number in the hub region.
    pub global_lsn: i64,
    /// Log sequence number per satellite region; -1 for a region without progress.
    pub regions: BTreeMap<u64, i64>,
}

/// Progress per range, in the order the ranges were first named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionToken {
    ranges: Vec<(String, Progress)>,
}

/// The text is not a session token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidToken {
    /// The part that could not be read.
    pub part: String,
}

impl Progress {
    /// Progress in an account of one region: `-1#{lsn}`.
    #[must_use]
    pub const fn single_region(lsn: i64) -> Self {
        Self::Vector(Vector { version: -1, global_lsn: lsn, regions: BTreeMap::new() })
    }

    /// The global log sequence number.
    #[must_use]
    pub const fn lsn(&self) -> i64 {
        match self {
            Self::Simple(lsn) => *lsn,
            Self::Vector(vector) => vector.global_lsn,
        }
    }

    /// Version of the region configuration; -1 where there is none.
    #[must_use]
    pub const fn version(&self) -> i64 {
        match self {
            Self::Simple(_) => -1,
            Self::Vector(vector) => vector.version,
        }
    }

    /// Whether a replica at `self` may answer a session at `other`.
    ///
    /// A higher version is always enough. Within one version every number must have been reached,
    /// and a region `self` does not know counts as not reached. Of a bare number only itself is asked.
    #[must_use]
    pub fn is_at_least(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Simple(own), Self::Simple(asked)) => own >= asked,
            (Self::Vector(own), Self::Simple(asked)) => own.global_lsn >= *asked,
            (Self::Simple(_), Self::Vector(_)) => false,
            (Self::Vector(own), Self::Vector(asked)) if own.version != asked.version => {
                own.version > asked.version
            }
            (Self::Vector(own), Self::Vector(asked)) => {
                own.global_lsn >= asked.global_lsn
                    && asked
                        .regions
                        .iter()
                        .all(|(region, lsn)| own.regions.get(region).is_some_and(|reached| reached >= lsn))
            }
        }
    }

    /// Takes over what `other` has beyond `self`.
    ///
    /// Within one version each number becomes the larger of the two. Across versions the newer one's
    /// global number and regions stand, because the older one's number never existed in the newer
    /// configuration; a region both know keeps the larger local number.
    pub fn merge(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Simple(own), Self::Simple(new)) => *own = (*own).max(*new),
            (Self::Vector(_), Self::Simple(_)) => {}
            (Self::Simple(_), Self::Vector(_)) => *self = other.clone(),
            (Self::Vector(own), Self::Vector(new)) => own.merge(new),
        }
    }
}

impl Vector {
    fn merge(&mut self, other: &Self) {
        if self.version == other.version {
            self.global_lsn = self.global_lsn.max(other.global_lsn);
            for (region, lsn) in &other.regions {
                let own = self.regions.entry(*region).or_insert(*lsn);
                *own = (*own).max(*lsn);
            }
            return;
        }
        let older =
            if other.version > self.version { std::mem::replace(self, other.clone()) } else { other.clone() };
        for (region, lsn) in &mut self.regions {
            if let Some(before) = older.regions.get(region) {
                *lsn = (*lsn).max(*before);
            }
        }
    }
}

impl SessionToken {
    /// No progress at all; sent as no header.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// The token of one range.
    #[must_use]
    pub fn of(range_id: impl Into<String>, progress: Progress) -> Self {
        Self { ranges: vec![(range_id.into(), progress)] }
    }

    /// Whether no range has progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Progress in one range.
    #[must_use]
    pub fn progress(&self, range_id: &str) -> Option<&Progress> {
        self.ranges.iter().find(|(id, _)| id == range_id).map(|(_, progress)| progress)
    }

    /// Ranges with their progress.
    pub fn ranges(&self) -> impl Iterator<Item = (&str, &Progress)> {
        self.ranges.iter().map(|(id, progress)| (id.as_str(), progress))
    }

    /// Notes progress in one range; an older one changes nothing.
    pub fn record(&mut self, range_id: &str, progress: &Progress) {
        match self.ranges.iter_mut().find(|(id, _)| id == range_id) {
            Some((_, known)) => known.merge(progress),
            None => self.ranges.push((range_id.to_owned(), progress.clone())),
        }
    }

    /// Takes over what `other` has beyond `self`.
    pub fn merge(&mut self, other: &Self) {
        for (range_id, progress) in other.ranges() {
            self.record(range_id, progress);
        }
    }

    /// Whether every range `other` names has been reached here.
    #[must_use]
    pub fn is_at_least(&self, other: &Self) -> bool {
        other
            .ranges()
            .all(|(range_id, asked)| self.progress(range_id).is_some_and(|own| own.is_at_least(asked)))
    }
}

impl FromStr for Progress {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let invalid = || InvalidToken { part: text.to_owned() };
        let number = |digits: &str| digits.parse::<i64>().map_err(|_| invalid());
        let Some((version, rest)) = text.split_once('#') else {
            return number(text).map(Self::Simple);
        };
        let mut parts = rest.split('#');
        let global_lsn = number(parts.next().unwrap_or_default())?;
        let mut regions = BTreeMap::new();
        // Some tokens end with `#`.
        for part in parts.filter(|part| !part.is_empty()) {
            let (region, lsn) = part.split_once('=').ok_or_else(invalid)?;
            regions.insert(region.parse().map_err(|_| invalid())?, number(lsn)?);
        }
        Ok(Self::Vector(Vector { version: number(version)?, global_lsn, regions }))
    }
}

impl FromStr for SessionToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let mut token = Self::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (range_id, progress) = part
                .split_once(':')
                .filter(|(id, _)| !id.is_empty())
                .ok_or_else(|| InvalidToken { part: part.to_owned() })?;
            token.record(range_id, &progress.parse()?);
        }
        Ok(token)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(lsn) => write!(f, "{lsn}"),
            Self::Vector(vector) => {
                write!(f, "{}#{}", vector.version, vector.global_lsn)?;
                vector.regions.iter().try_for_each(|(region, lsn)| write!(f, "#{region}={lsn}"))
            }
        }
    }
}

impl fmt::Display for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (range_id, progress)) in self.ranges.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{range_id}:{progress}")?;
        }
        Ok(())
    }
}

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a session token: expected `range:version#lsn#region=lsn...`", self.part)
    }
}

impl std::error::Error for InvalidToken {}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(text: &str) -> Progress {
        text.parse().unwrap()
    }

    fn token(text: &str) -> SessionToken {
        text.parse().unwrap()
    }

    #[test]
    fn tokens_of_the_service_are_read_and_written_unchanged() {
        let cases = [
            "0:-1#31",
            "0:1#100#3=45#5=7",
            "0:31",
            "0:-1#510,1:-1#42",
            "0:1#100#1=20#2=-1",
            "12:5#9",
            "range_0:1#100#1=20#2=5#3=30",
        ];
        for text in cases {
            assert_eq!(token(text).to_string(), text);
        }
        assert_eq!(token("0:-1#31").progress("0"), Some(&Progress::single_region(31)));
        assert_eq!(token("0:1#100#3=45#5=7").progress("0").unwrap().lsn(), 100);
        assert!(token("").is_empty());
        assert_eq!(token(" 0:-1#1 , 1:-1#2 ,").to_string(), "0:-1#1,1:-1#2");
        assert_eq!(token("0:-1#4,0:-1#9,0:-1#2").to_string(), "0:-1#9");
    }

    #[test]
    fn broken_tokens_are_refused() {
        for text in [
            "0",
            ":-1#3",
            "0:",
            "0:#",
            "0:a#1",
            "0:foo#100#1=20#2=5#3=30",
            "0:1#foo#1=20#2=5#3=30",
            "0:1#100#1=20#2=x#3=30",
            "0:1;100#1=20#2=40",
            "0:1#",
            "0:1#x",
            "0:1#2#3",
            "0:1#2#a=1",
            "0:1#2#1=b",
            "0:99999999999999999999",
        ] {
            assert!(text.parse::<SessionToken>().is_err(), "{text}");
        }
    }

    /// Rows with `#102` or `#197` are from the session token tests of the .NET, Java and Python SDKs;
    /// merging across versions follows the Rust and Java SDKs. Where regions differ within one version
    /// most SDKs report an error; here, as in the Rust SDK, both sides' regions are kept.
    #[test]
    fn merging_follows_the_sdks() {
        // own, other, merged
        let cases = [
            ("-1#31", "-1#30", "-1#31"),
            ("-1#31", "-1#40", "-1#40"),
            ("1#100#1=20#2=5#3=30", "1#110#1=15#2=8#3=25", "1#110#1=20#2=8#3=30"),
            ("1#100#1=20#2=5#3=30", "1#102#1=100#2=8#3=30", "1#102#1=100#2=8#3=30"),
            ("1#100#1=20#2=5", "1#197#1=20#2=5", "1#197#1=20#2=5"),
            ("1#100#1=20#2=5", "1#197#1=23#2=15", "1#197#1=23#2=15"),
            ("1#100#1=20", "1#90#2=7", "1#100#1=20#2=7"),
            // the newer version's global number stands, even when lower
            ("-1#510", "2#400#1=7", "2#400#1=7"),
            ("2#400#1=7", "-1#510", "2#400#1=7"),
            ("1#100#1=20#2=5", "2#105#1=10#3=30", "2#105#1=20#3=30"),
            ("31", "40", "40"),
            ("31", "-1#5", "-1#5"),
            ("-1#5", "31", "-1#5"),
        ];
        for (own, other, merged) in cases {
            let mut result = progress(own);
            result.merge(&progress(other));
            assert_eq!(result.to_string(), merged, "{own} with {other}");
        }
    }

    #[test]
    fn a_replica_may_answer_when_it_has_reached_every_number() {
        // replica, session, answer
        let cases = [
            ("-1#31", "-1#31", true),
            ("-1#32", "-1#31", true),
            ("-1#30", "-1#31", false),
            ("1#102#1=100#2=8#3=30", "1#100#1=20#2=5#3=30", true),
            ("1#100#1=20#2=5#3=30", "1#102#1=100#2=8#3=30", false),
            ("1#100#1=20", "1#100#1=20", true),
            ("1#100#1=19", "1#100#1=20", false),
            ("1#100", "1#100#1=20", false),
            ("1#100#1=20", "1#100#1=-1", true),
            ("2#1", "1#100", true),
            ("1#100", "2#1", false),
            ("5", "4", true),
            ("-1#9", "9", true),
            ("-1#1", "9", false),
            ("9", "-1#1", false),
        ];
        for (replica, session, answer) in cases {
            assert_eq!(progress(replica).is_at_least(&progress(session)), answer, "{replica} for {session}");
        }
        assert!(token("0:-1#5,1:-1#6").is_at_least(&token("1:-1#6")));
        assert!(!token("0:-1#5").is_at_least(&token("1:-1#1")));
        assert!(token("0:-1#5").is_at_least(&SessionToken::new()));
    }

    #[test]
    fn ranges_merge_one_by_one() {
        let mut own = token("0:-1#510");
        own.merge(&token("1:-1#42,0:-1#600"));
        assert_eq!(own.to_string(), "0:-1#600,1:-1#42");
    }
}
