//! Session tokens of one container, per range. Reading one takes no lock and no allocation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use cosmos_wire::session_token::{Progress, SessionToken};
use http::HeaderValue;

/// The tokens of one container.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    ranges: ArcSwap<BTreeMap<Box<str>, Arc<ArcSwap<Known>>>>,
    /// Those that no listed range is or comes from: some range was split or merged since the ranges were listed.
    unlisted: ArcSwap<Vec<Arc<ArcSwap<Known>>>>,
    relisting: Mutex<()>,
}

/// Progress in one range, with the header that says so.
#[derive(Clone, Debug)]
struct Known {
    progress: Progress,
    header: HeaderValue,
}

impl Known {
    /// None for what no service would say: a server must not make requests grow.
    fn new(range: &str, progress: Progress) -> Option<Self> {
        let text = SessionToken::of(range, progress.clone()).to_string();
        if text.len() > TOKEN_BYTES_MAX {
            return None;
        }
        Some(Self { progress, header: HeaderValue::try_from(text).ok()? })
    }
}

impl Sessions {
    /// The token to send for a range. While ranges have answered that are not listed, any of them may be the one that
    /// is asked, so their tokens go along; the service looks at the one it needs.
    pub(crate) fn header(&self, range: &str, parents: &[String]) -> Option<HeaderValue> {
        let listed = self.listed_header(range, parents);
        let unlisted = self.unlisted.load();
        if unlisted.is_empty() {
            return listed;
        }
        let unlisted: Vec<_> = unlisted.iter().map(|known| known.load().header.clone()).collect();
        let all: Vec<&[u8]> = listed.iter().chain(&unlisted).map(HeaderValue::as_bytes).collect();
        HeaderValue::from_bytes(&all.join(&b","[..])).ok()
    }

    /// A range born from a split starts from what its parents had.
    fn listed_header(&self, range: &str, parents: &[String]) -> Option<HeaderValue> {
        let ranges = self.ranges.load();
        let own = ranges.get(range).map(|known| known.load());
        // What a parent promised holds in its children, also where a child has answered with less.
        let is_behind = |parent: &String| {
            let promised = ranges.get(parent.as_str());
            promised.is_some_and(|known| {
                own.as_ref().is_none_or(|own| !own.progress.is_at_least(&known.load().progress))
            })
        };
        if let Some(own) = &own
            && !parents.iter().any(is_behind)
        {
            return Some(own.header.clone());
        }
        let mut inherited: Option<Progress> = own.map(|own| own.progress.clone());
        for parent in parents {
            if let Some(known) = ranges.get(parent.as_str()) {
                let progress = &known.load().progress;
                match &mut inherited {
                    Some(merged) => merged.merge(progress),
                    None => inherited = Some(progress.clone()),
                }
            }
        }
        Known::new(range, inherited?).map(|known| known.header)
    }

    /// Learns from an answer; returns whether a range was heard of for the first time. Tokens that are not understood
    /// are ignored: a lost hint, not a failure. So are those of ever more ranges that are not listed: either the ranges
    /// will be listed soon, or the server makes them up.
    pub(crate) fn learn(&self, header: &HeaderValue, is_listed: impl Fn(&str) -> bool) -> bool {
        let Ok(text) = header.to_str() else { return false };
        let mut has_new = false;
        for part in text.split(',') {
            let Some((range, _)) = part.split_once(':') else { continue };
            let range = range.trim();
            if let Some(known) = self.ranges.load().get(range) {
                if known.load().header.as_bytes() != part.trim().as_bytes() {
                    advance(known, range, part);
                }
                continue;
            }
            if self.unlisted.load().len() < UNLISTED_MAX || is_listed(range) {
                self.insert(range, part);
                has_new = true;
            }
        }
        has_new
    }

    /// Finds the ranges that are not listed; to be called when a range was heard of or the list has changed.
    pub(crate) fn relist(&self, is_listed: impl Fn(&str) -> bool) {
        // One at a time: the last one has seen every change before it.
        let one = self.relisting.lock().unwrap_or_else(PoisonError::into_inner);
        let ranges = self.ranges.load();
        let unlisted = ranges.iter().filter(|(range, _)| !is_listed(range)).map(|(_, known)| known.clone());
        self.unlisted.store(Arc::new(unlisted.collect()));
        drop(one);
    }

    /// Whether a range has answered that is not listed.
    pub(crate) fn has_unlisted(&self) -> bool {
        !self.unlisted.load().is_empty()
    }

    fn insert(&self, range: &str, part: &str) {
        let Some(known) = parse(range, part) else { return };
        let fresh = Arc::new(ArcSwap::from_pointee(known));
        self.ranges.rcu(|ranges| {
            let mut ranges = BTreeMap::clone(ranges);
            ranges.entry(range.into()).or_insert_with(|| fresh.clone());
            ranges
        });
        // Another answer may have been quicker with an older token.
        if let Some(known) = self.ranges.load().get(range) {
            advance(known, range, part);
        }
    }

    /// All tokens, as one header value.
    pub(crate) fn combined(&self) -> Option<String> {
        let ranges = self.ranges.load();
        let mut token = SessionToken::new();
        for (range, known) in ranges.iter() {
            token.record(range, &known.load().progress);
        }
        (!token.is_empty()).then(|| token.to_string())
    }
}

/// Tokens of ranges that are not listed, all of which are sent along: a container that grows tenfold at once has fewer.
const UNLISTED_MAX: usize = 128;
/// One range's token: sixty regions with numbers of ten digits have 800 bytes.
const TOKEN_BYTES_MAX: usize = 1024;

fn parse(range: &str, part: &str) -> Option<Known> {
    let token: SessionToken = part.trim().parse().ok()?;
    Known::new(range, token.progress(range)?.clone())
}

fn advance(known: &ArcSwap<Known>, range: &str, part: &str) {
    let Some(new) = parse(range, part) else { return };
    known.rcu(|old| {
        if old.progress.is_at_least(&new.progress) {
            return Arc::clone(old);
        }
        let mut merged = old.progress.clone();
        merged.merge(&new.progress);
        Known::new(range, merged).map_or_else(|| Arc::clone(old), Arc::new)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(tokens: &[&'static str]) -> Sessions {
        let sessions = Sessions::default();
        for token in tokens {
            sessions.learn(&HeaderValue::from_static(token), |_| true);
        }
        sessions
    }

    fn token(sessions: &Sessions, range: &str) -> Option<String> {
        sessions.header(range, &[]).map(|header| header.to_str().expect("ascii").to_owned())
    }

    #[test]
    fn tokens_only_move_forward() {
        let sessions = learned(&["0:-1#5", "0:-1#9", "0:-1#7"]);
        assert_eq!(token(&sessions, "0").as_deref(), Some("0:-1#9"));
    }

    #[test]
    fn each_range_has_its_own() {
        let sessions = learned(&["0:-1#5,1:-1#8"]);
        assert_eq!(token(&sessions, "0").as_deref(), Some("0:-1#5"));
        assert_eq!(token(&sessions, "1").as_deref(), Some("1:-1#8"));
        assert_eq!(token(&sessions, "2"), None);
    }

    #[test]
    fn children_inherit_from_their_parents() {
        let sessions = learned(&["0:-1#5"]);
        let header = sessions.header("3", &["0".to_owned()]).expect("inherited");
        assert_eq!(header, "3:-1#5");
    }

    #[test]
    fn a_child_owes_what_its_parents_promised() {
        let sessions = learned(&["0:-1#9", "3:-1#5"]);
        assert_eq!(sessions.header("3", &["0".to_owned()]).expect("merged"), "3:-1#9");
        let sessions = learned(&["0:-1#9", "3:-1#12"]);
        assert_eq!(sessions.header("3", &["0".to_owned()]).expect("its own"), "3:-1#12");
    }

    #[test]
    fn what_unlisted_ranges_promised_goes_along_until_they_are_listed() {
        let sessions = learned(&["0:-1#9", "3:-1#12"]);
        sessions.relist(|range| range == "0");
        assert!(sessions.has_unlisted());
        assert_eq!(token(&sessions, "0").as_deref(), Some("0:-1#9,3:-1#12"));
        assert_eq!(token(&sessions, "1").as_deref(), Some("3:-1#12"));
        assert!(!sessions.learn(&HeaderValue::from_static("3:-1#14"), |_| true), "heard of before");
        assert_eq!(token(&sessions, "0").as_deref(), Some("0:-1#9,3:-1#14"));
        sessions.relist(|_| true);
        assert!(!sessions.has_unlisted());
        assert_eq!(token(&sessions, "3").as_deref(), Some("3:-1#14"));
    }

    #[test]
    fn a_server_cannot_make_up_ranges_or_regions_without_end() {
        let sessions = learned(&["0:-1#9"]);
        let is_listed = |range: &str| range == "0" || range == "real";
        for made_up in 0..1000 {
            let token = HeaderValue::try_from(format!("x{made_up}:-1#1")).expect("a header");
            sessions.learn(&token, is_listed);
            sessions.relist(is_listed);
        }
        assert_eq!(sessions.unlisted.load().len(), UNLISTED_MAX);
        sessions.learn(&HeaderValue::from_static("real:-1#7"), is_listed);
        assert!(token(&sessions, "real").is_some_and(|sent| sent.starts_with("real:-1#7,")));
        for region in 0..1000 {
            let token = HeaderValue::try_from(format!("0:-1#9#{region}=1")).expect("a header");
            sessions.learn(&token, is_listed);
        }
        let sent = token(&sessions, "0").expect("known");
        let own = sent.split(',').next().expect("the first part");
        assert!((500..=TOKEN_BYTES_MAX).contains(&own.len()), "{} bytes", own.len());
    }

    #[test]
    fn junk_is_ignored() {
        let sessions = learned(&["", "nonsense", "0:abc", ":"]);
        assert_eq!(token(&sessions, "0"), None);
        assert_eq!(sessions.combined(), None);
    }
}
