//! Paths into documents: as the indexing policy writes them, and as the numbers that stand in index keys.

use serde_json::Value;

use crate::Failure;
use crate::sql::source::{Direction, Path, Step};

/// A path as a number, stable over restarts.
///
/// It is a 64-bit hash: a collision (one in billions) makes an index yield rows of two paths, which the filter
/// sorts out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PathId(u64);

impl PathId {
    /// The empty path.
    pub(crate) const ROOT: Self = Self(0xcbf2_9ce4_8422_2325);

    /// Not a path: the order of creation.
    pub(crate) const CREATION: Self = Self(0);

    /// The path of this number.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// One step further.
    pub(crate) fn property(self, name: &str) -> Self {
        Self(mix(name.bytes().fold(eat(self.0, 1), eat)))
    }

    /// Any element of the array here.
    pub(crate) fn each(self) -> Self {
        Self(mix(eat(self.0, 2)))
    }

    /// Of a whole path. An array index counts as any element.
    pub(crate) fn of(path: &[Step]) -> Self {
        path.iter().fold(Self::ROOT, |id, step| match step {
            Step::Property(name) => id.property(name),
            Step::Index(_) | Step::Each => id.each(),
        })
    }

    /// Of a composite index.
    pub(crate) fn of_composite(paths: &[(Path, Direction)]) -> Self {
        Self(mix(paths.iter().fold(eat(Self::ROOT.0, 3), |hash, (path, direction)| {
            let id = Self::of(path).0.to_be_bytes();
            let direction = u8::from(*direction == Direction::Descending);
            id.into_iter().chain([direction]).fold(hash, eat)
        })))
    }

    /// As it stands in keys.
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

fn eat(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
}

fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (hash ^ (hash >> 33)).max(1)
}

/// The value at a path that has no array steps; `None` is undefined.
pub(crate) fn value_at<'a>(document: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(document, |node, step| match step {
        Step::Property(name) => node.as_object()?.get(&**name),
        Step::Index(at) => node.as_array()?.get(*at as usize),
        Step::Each => None,
    })
}

/// A path of an indexing policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Properties and array steps.
    pub(crate) steps: Path,
    /// What it stands for.
    pub(crate) end: PatternEnd,
}

/// What stands at the end of a policy's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatternEnd {
    /// `/?`: the value itself.
    Scalar,
    /// `/*`: the value and everything below.
    Wildcard,
}

impl Pattern {
    /// `/a/"b c"/[]/?`
    ///
    /// # Errors
    /// 400 as the service words it.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut steps = segments(text)?;
        let end = match steps.pop() {
            None => PatternEnd::Wildcard,
            Some(Segment::Any) => PatternEnd::Wildcard,
            Some(Segment::Scalar) => PatternEnd::Scalar,
            Some(Segment::Name(_) | Segment::Each) => return Err(refused(text)),
        };
        Ok(Self { steps: plain(steps, text)?, end })
    }

    /// A path without an end mark, as composite indexes, partition keys and unique keys have them.
    ///
    /// # Errors
    /// 400 as the service words it.
    pub(crate) fn parse_plain(text: &str) -> Result<Path, Failure> {
        let steps = plain(segments(text)?, text)?;
        if steps.is_empty() || steps.contains(&Step::Each) { Err(refused(text)) } else { Ok(steps) }
    }
}

enum Segment {
    Name(Box<str>),
    Each,
    Scalar,
    Any,
}

fn plain(segments: Vec<Segment>, text: &str) -> Result<Path, Failure> {
    segments
        .into_iter()
        .map(|segment| match segment {
            Segment::Name(name) => Ok(Step::Property(name)),
            Segment::Each => Ok(Step::Each),
            Segment::Scalar | Segment::Any => Err(refused(text)),
        })
        .collect()
}

fn segments(text: &str) -> Result<Vec<Segment>, Failure> {
    let mut rest = text.strip_prefix('/').ok_or_else(|| refused(text))?;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let after;
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').ok_or_else(|| refused(text))?;
            out.push(Segment::Name(quoted[..end].into()));
            after = &quoted[end + 1..];
        } else {
            let end = rest.find('/').unwrap_or(rest.len());
            out.push(match &rest[..end] {
                "" => return Err(refused(text)),
                "?" => Segment::Scalar,
                "*" => Segment::Any,
                "[]" => Segment::Each,
                name => Segment::Name(name.into()),
            });
            after = &rest[end..];
        }
        rest = match after.strip_prefix('/') {
            Some("") => return Err(refused(text)),
            Some(next) => next,
            None if after.is_empty() => "",
            None => return Err(refused(text)),
        };
    }
    Ok(out)
}

fn refused(text: &str) -> Failure {
    Failure::bad_request(format!(
        "The indexing path '{text}' could not be accepted. Please ensure that the path is a valid path. Common errors \
         include invalid characters or absence of quotes around labels."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_paths_are_taken_apart() {
        let name = |name: &str| Step::Property(name.into());
        for (text, steps, end) in [
            ("/*", vec![], PatternEnd::Wildcard),
            ("/", vec![], PatternEnd::Wildcard),
            ("/a/?", vec![name("a")], PatternEnd::Scalar),
            ("/\"a/b\"/c/*", vec![name("a/b"), name("c")], PatternEnd::Wildcard),
            ("/a/[]/b/?", vec![name("a"), Step::Each, name("b")], PatternEnd::Scalar),
        ] {
            assert_eq!(Pattern::parse(text), Ok(Pattern { steps, end }), "{text}");
        }
        for text in ["", "a/?", "/a", "/a/", "//?", "/a/*/b/?", "/\"a/?", "/\"a\"b/?"] {
            assert_eq!(Pattern::parse(text).map_err(|f| f.status), Err(400), "{text}");
        }
    }

    #[test]
    fn paths_have_their_own_numbers() {
        let id = |text: &str| PathId::of(&Pattern::parse(text).expect("valid").steps);
        let ids = ["/a/?", "/b/?", "/a/b/?", "/ab/?", "/a/[]/?", "/[]/a/?"].map(id);
        for (i, a) in ids.iter().enumerate() {
            assert!(ids[..i].iter().all(|b| a != b));
        }
        assert_eq!(PathId::of(&[Step::Property("a".into()), Step::Index(3)]), id("/a/[]/?"));
    }
}
