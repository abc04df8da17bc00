//! A container's partition key definition: paths, kind and hash version.

use std::fmt;

use serde_json::{Map, Value, json};

use super::{COMPONENTS_MAX, Component, PartitionKey};

/// How keys of a container are made and hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    paths: Vec<Path>,
    kind: Kind,
    version: Version,
}

/// How a key is hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One path, hashed.
    Hash,
    /// Up to three paths, each hashed on its own, so that a prefix addresses a range.
    MultiHash,
}

/// Version of the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// 32-bit hash, first hundred characters of a string. A definition without version means this.
    V1,
    /// 128-bit hash over the whole value.
    V2,
}

/// A property path, such as `/tenant` or `/address/"zip code"`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path {
    text: String,
    segments: Vec<String>,
}

/// How many of a definition's paths a key has values for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// One value for each path: one logical partition.
    Full,
    /// Fewer values than a hierarchical key has paths: a range of logical partitions.
    Prefix,
    /// No value: the sentinel of containers migrated from having no key.
    Empty,
    /// More values than paths, or fewer than a plain key needs.
    Mismatch,
}

/// The definition cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidDefinition {
    /// What is wrong, in words.
    pub reason: String,
}

impl Definition {
    /// A definition with one path and the current hash.
    ///
    /// # Errors
    /// When the path is not one.
    pub fn hash(path: &str) -> Result<Self, InvalidDefinition> {
        Self::new(&[path], Kind::Hash, Version::V2)
    }

    /// A hierarchical definition.
    ///
    /// # Errors
    /// When a path is not one, or there are none or too many.
    pub fn multi_hash(paths: &[&str]) -> Result<Self, InvalidDefinition> {
        Self::new(paths, Kind::MultiHash, Version::V2)
    }

    /// A definition from its parts.
    ///
    /// # Errors
    /// When the parts do not fit together.
    pub fn new(paths: &[&str], kind: Kind, version: Version) -> Result<Self, InvalidDefinition> {
        let invalid = |reason: &str| Err(InvalidDefinition { reason: reason.to_owned() });
        match (kind, version, paths.len()) {
            (_, _, 0) => return invalid("`paths` must name at least one property"),
            (Kind::Hash, _, 2..) => {
                return invalid(
                    "Too many partition key paths: a `Hash` key has one; use `MultiHash` for more",
                );
            }
            (Kind::MultiHash, Version::V1, _) => return invalid("a `MultiHash` key needs `version` 2"),
            (Kind::MultiHash, _, count) if count > COMPONENTS_MAX => {
                return invalid("Too many partition key paths: a `MultiHash` key has at most three");
            }
            (Kind::Hash | Kind::MultiHash, Version::V1 | Version::V2, _) => {}
        }
        let paths = paths.iter().map(|path| Path::parse(path)).collect::<Result<Vec<_>, _>>()?;
        if (1..paths.len())
            .any(|index| paths[..index].iter().any(|path| path.segments == paths[index].segments))
        {
            return invalid("`paths` names one property twice");
        }
        Ok(Self { paths, kind, version })
    }

    /// Reads the `partitionKey` property of a container.
    ///
    /// An absent kind means `Hash`. An absent version means V1 for `Hash`, where it is how old
    /// containers look, and V2 for `MultiHash`, which never had another.
    ///
    /// # Errors
    /// When a part is missing, has the wrong type, or does not fit the others.
    pub fn from_json(value: &Value) -> Result<Self, InvalidDefinition> {
        let invalid = |reason: String| InvalidDefinition { reason };
        let object = value
            .as_object()
            .ok_or_else(|| invalid("the partition key definition must be an object".to_owned()))?;
        let kind = match property(object, "kind") {
            None => Kind::Hash,
            Some(Value::String(name)) if name.eq_ignore_ascii_case("Hash") => Kind::Hash,
            Some(Value::String(name)) if name.eq_ignore_ascii_case("MultiHash") => Kind::MultiHash,
            Some(other) => {
                return Err(invalid(format!(
                    "the 'kind' value {other} is invalid: use \"Hash\" or \"MultiHash\""
                )));
            }
        };
        let version = match (property(object, "version").map(Value::as_u64), kind) {
            (None, Kind::Hash) | (Some(Some(1)), _) => Version::V1,
            (None, Kind::MultiHash) | (Some(Some(2)), _) => Version::V2,
            (Some(_), _) => return Err(invalid("the 'version' value is invalid: use 1 or 2".to_owned())),
        };
        let paths = object
            .get("paths")
            .and_then(Value::as_array)
            .and_then(|paths| paths.iter().map(Value::as_str).collect::<Option<Vec<_>>>())
            .ok_or_else(|| invalid("'paths' must be an array of strings".to_owned()))?;
        Self::new(&paths, kind, version)
    }

    /// The `partitionKey` property of a container, with its version spelled out.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let paths: Vec<_> = self.paths.iter().map(Path::as_str).collect();
        let kind = match self.kind {
            Kind::Hash => "Hash",
            Kind::MultiHash => "MultiHash",
        };
        json!({ "paths": paths, "kind": kind, "version": self.version.number() })
    }

    /// The paths, in key order.
    #[must_use]
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// How keys are hashed.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Version of the hash.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The key of a document.
    #[must_use]
    pub fn extract(&self, document: &Value) -> PartitionKey {
        self.paths.iter().map(|path| Component::from_document(path.find(document))).collect()
    }

    /// How much of this definition a key covers.
    #[must_use]
    pub fn coverage(&self, key: &PartitionKey) -> Coverage {
        match (key.components().len(), self.paths.len()) {
            (0, _) => Coverage::Empty,
            (given, paths) if given == paths => Coverage::Full,
            (given, paths) if given < paths && self.kind == Kind::MultiHash => Coverage::Prefix,
            (_, _) => Coverage::Mismatch,
        }
    }

    /// Largest key in bytes. Of a V1 key the hash takes the first hundred characters, and the service accepts longer
    /// ones all the same.
    #[must_use]
    pub const fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX
    }
}

impl Version {
    /// The number in the definition.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

impl Path {
    /// Reads a path: segments after slashes, quoted where they hold a slash.
    ///
    /// # Errors
    /// When it does not begin with a slash, has an empty segment, or a quote stays open.
    pub fn parse(text: &str) -> Result<Self, InvalidDefinition> {
        let invalid = || InvalidDefinition {
            reason: format!(
                "The partition key component definition path '{text}' could not be accepted, failed near position '0'. \
                 Partition key paths must contain only valid characters and not contain a trailing slash or wildcard \
                 character"
            ),
        };
        let mut segments = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            rest = rest.strip_prefix('/').ok_or_else(invalid)?;
            let (segment, after) = match rest.chars().next() {
                Some(quote @ ('"' | '\'')) => quoted_segment(&rest[1..], quote).ok_or_else(invalid)?,
                _ => {
                    let end = rest.find('/').unwrap_or(rest.len());
                    let segment = &rest[..end];
                    // What is not quoted is a word; these mean something else in a path.
                    if segment.contains(['*', '?', '[', ']', ' ', '"']) {
                        return Err(invalid());
                    }
                    (segment.to_owned(), &rest[end..])
                }
            };
            if segment.is_empty() {
                return Err(invalid());
            }
            segments.push(segment);
            rest = after;
        }
        if segments.is_empty() { Err(invalid()) } else { Ok(Self { text: text.to_owned(), segments }) }
    }

    /// The path as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Property names from the root down.
    #[must_use]
    pub fn segments(&self) -> &[String] {
        &self.segments
    }

    /// The value at this path of a document. Paths name properties, never array elements.
    #[must_use]
    pub fn find<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        self.segments.iter().try_fold(document, |value, segment| value.as_object()?.get(segment))
    }
}

impl fmt::Display for InvalidDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for InvalidDefinition {}

/// A property that counts as absent when null.
fn property<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

/// The segment up to its closing quote, with `\` taking the next character as it is, and the rest.
fn quoted_segment(text: &str, quote: char) -> Option<(String, &str)> {
    let mut segment = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '\\' => segment.push(characters.next()?.1),
            _ if character == quote => return Some((segment, &text[index + character.len_utf8()..])),
            _ => segment.push(character),
        }
    }
    None
}

/// Largest key, of either version.
const KEY_BYTES_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_read_as_the_service_reads_them() {
        // json, kind, version
        let cases = [
            (json!({"paths": ["/pk"], "kind": "Hash", "version": 2}), Kind::Hash, Version::V2),
            (json!({"paths": ["/pk"], "kind": "Hash"}), Kind::Hash, Version::V1),
            (json!({"paths": ["/pk"]}), Kind::Hash, Version::V1),
            (json!({"paths": ["/pk"], "kind": "Hash", "version": null}), Kind::Hash, Version::V1),
            (
                json!({"paths": ["/a", "/b", "/c"], "kind": "MultiHash", "version": 2}),
                Kind::MultiHash,
                Version::V2,
            ),
            (json!({"paths": ["/a", "/b"], "kind": "MultiHash"}), Kind::MultiHash, Version::V2),
        ];
        for (json, kind, version) in cases {
            let definition = Definition::from_json(&json).unwrap();
            assert_eq!((definition.kind(), definition.version()), (kind, version), "{json}");
            assert_eq!(Definition::from_json(&definition.to_json()), Ok(definition), "{json}");
        }
    }

    #[test]
    fn definitions_that_do_not_fit_are_refused() {
        let cases = [
            json!(null),
            json!({}),
            json!({"paths": []}),
            json!({"paths": "/pk"}),
            json!({"paths": [1]}),
            json!({"paths": ["pk"]}),
            json!({"paths": ["/"]}),
            json!({"paths": ["/a//b"]}),
            json!({"paths": ["/\"a"]}),
            json!({"paths": ["/pk"], "kind": "Range"}),
            json!({"paths": ["/pk"], "version": 3}),
            json!({"paths": ["/pk"], "version": "2"}),
            json!({"paths": ["/a", "/b"], "kind": "Hash"}),
            json!({"paths": ["/a", "/a"], "kind": "MultiHash"}),
            json!({"paths": ["/a"], "kind": "MultiHash", "version": 1}),
            json!({"paths": ["/a", "/b", "/c", "/d"], "kind": "MultiHash", "version": 2}),
        ];
        for json in cases {
            assert!(Definition::from_json(&json).is_err(), "{json}");
        }
    }

    #[test]
    fn keys_are_taken_from_documents_by_path() {
        let document = json!({"id": "1", "n": 5, "a": {"b": {"c": "deep"}, "x/y": true}, "z": null, "list": [1], "obj": {}, "日": -0.0});
        let cases: [(&str, Component); 11] = [
            ("/id", "1".into()),
            ("/n", 5.0.into()),
            ("/a/b/c", "deep".into()),
            (r#"/a/"x/y""#, true.into()),
            ("/a/'x/y'", true.into()),
            ("/z", Component::Null),
            ("/missing", Component::Undefined),
            ("/z/below", Component::Undefined),
            ("/list", Component::Undefined),
            ("/obj", Component::Undefined),
            ("/日", 0.0.into()),
        ];
        for (path, component) in cases {
            let key = Definition::hash(path).unwrap().extract(&document);
            assert_eq!(key, PartitionKey::new(vec![component]), "{path}");
        }
        let key = Definition::multi_hash(&["/id", "/a/b/c", "/no"]).unwrap().extract(&document);
        assert_eq!(key.to_string(), r#"["1","deep",{}]"#);
    }

    #[test]
    fn coverage_tells_points_from_prefixes() {
        let plain = Definition::hash("/pk").unwrap();
        let levels = Definition::multi_hash(&["/a", "/b"]).unwrap();
        let cases = [
            (&plain, "[]", Coverage::Empty),
            (&plain, "[1]", Coverage::Full),
            (&plain, "[1,2]", Coverage::Mismatch),
            (&levels, "[1]", Coverage::Prefix),
            (&levels, "[1,2]", Coverage::Full),
            (&levels, "[1,2,3]", Coverage::Mismatch),
        ];
        for (definition, key, coverage) in cases {
            assert_eq!(definition.coverage(&key.parse().unwrap()), coverage, "{key}");
        }
        assert_eq!(plain.key_bytes_max(), 2048);
        assert_eq!(PartitionKey::from("日本").size_bytes(), 6);
    }
}
