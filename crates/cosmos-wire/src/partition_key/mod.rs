//! Partition keys: their values, their header form, and how a document yields one.
//!
//! A key travels in `x-ms-documentdb-partitionkey` as a JSON array with one value per path of the
//! container's definition: `["a"]`, `[1,true]`, `[null]`. A missing property is `{}`. The empty array
//! stands for items of containers that once had no partition key.

mod definition;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde_json::Value;

pub use definition::{Coverage, Definition, InvalidDefinition, Kind, Path, Version};

use crate::number::{self, Style};

/// One value of a partition key.
#[derive(Debug, Clone)]
pub enum Component {
    /// The property is missing.
    Undefined,
    /// JSON null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number; all numbers are doubles here, and negative zero is zero.
    Number(f64),
    /// A string.
    String(String),
}

/// A partition key, whole or a prefix of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PartitionKey {
    components: Vec<Component>,
}

/// The header is not a partition key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidKey {
    /// What is wrong, in words.
    pub reason: &'static str,
}

impl Component {
    /// The component a JSON value stands for; a missing value is undefined.
    ///
    /// Objects and arrays cannot be keys: SDKs and service treat a document that has one at the
    /// key's path as having none.
    #[must_use]
    pub fn from_document(value: Option<&Value>) -> Self {
        match value {
            None | Some(Value::Array(_) | Value::Object(_)) => Self::Undefined,
            Some(Value::Null) => Self::Null,
            Some(Value::Bool(value)) => Self::Bool(*value),
            Some(Value::Number(number)) => Self::from(number.as_f64().unwrap_or(0.0)),
            Some(Value::String(text)) => Self::String(text.clone()),
        }
    }

    /// The JSON value of a component; `{}` for undefined, as the header has it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Undefined => Value::Object(serde_json::Map::new()),
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(number) => {
                serde_json::from_str(&number::render_f64(*number, Style::Query)).unwrap_or(Value::Null)
            }
            Self::String(text) => Value::String(text.clone()),
        }
    }

    /// Bytes that count against the size limit of a key.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Undefined | Self::Null | Self::Bool(_) => 1,
            Self::Number(_) => 8,
            Self::String(text) => text.len(),
        }
    }

    fn from_header(value: Value) -> Result<Self, InvalidKey> {
        match value {
            Value::Object(map) if map.is_empty() => Ok(Self::Undefined),
            Value::Object(_) => {
                Err(InvalidKey { reason: "an object is no partition key value; `{}` alone means undefined" })
            }
            Value::Array(_) => Err(InvalidKey { reason: "an array is no partition key value" }),
            Value::String(text) => Ok(Self::String(text)),
            scalar @ (Value::Null | Value::Bool(_) | Value::Number(_)) => {
                Ok(Self::from_document(Some(&scalar)))
            }
        }
    }

    fn write_header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undefined => f.write_str("{}"),
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => f.write_str(&number::render_f64(*number, Style::Query)),
            Self::String(text) => write_ascii_string(f, text),
        }
    }
}

impl PartitionKey {
    /// The key of items in a container that once had no partition key: `[]`.
    pub const EMPTY: Self = Self { components: Vec::new() };

    /// A key from its components, in the order of the definition's paths.
    #[must_use]
    pub const fn new(components: Vec<Component>) -> Self {
        Self { components }
    }

    /// The key of items without the property: `[{}]`.
    #[must_use]
    pub fn undefined() -> Self {
        Self::new(vec![Component::Undefined])
    }

    /// The components.
    #[must_use]
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// Whether there is no component.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.components.is_empty()
    }

    /// Bytes that count against the size limit.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.components.iter().map(Component::size_bytes).sum()
    }
}

/// Reads the header form.
impl FromStr for PartitionKey {
    type Err = InvalidKey;

    fn from_str(header: &str) -> Result<Self, InvalidKey> {
        // Nearly all keys are one string, and nearly all strings are written as they are.
        let plain = header.strip_prefix("[\"").and_then(|rest| rest.strip_suffix("\"]"));
        if let Some(text) =
            plain.filter(|text| text.bytes().all(|byte| !matches!(byte, ..b' ' | b'"' | b'\\')))
        {
            return Ok(Self { components: vec![Component::from_header(Value::String(text.to_owned()))?] });
        }
        let value: Value =
            serde_json::from_str(header).map_err(|_| InvalidKey { reason: "the header is not JSON" })?;
        let Value::Array(values) = value else {
            return Err(InvalidKey { reason: "the header must be a JSON array with one value per path" });
        };
        if values.len() > COMPONENTS_MAX {
            return Err(InvalidKey { reason: "a key has at most three values" });
        }
        let components = values.into_iter().map(Component::from_header).collect::<Result<_, _>>()?;
        Ok(Self { components })
    }
}

/// Writes the header form, in ASCII.
impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, component) in self.components.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            component.write_header(f)?;
        }
        f.write_str("]")
    }
}

impl From<f64> for Component {
    fn from(number: f64) -> Self {
        // Adding zero turns negative zero into zero and leaves the rest.
        Self::Number(number + 0.0)
    }
}

impl From<&str> for Component {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Component {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<bool> for Component {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl<T: Into<Component>> From<T> for PartitionKey {
    fn from(component: T) -> Self {
        Self::new(vec![component.into()])
    }
}

impl FromIterator<Component> for PartitionKey {
    fn from_iter<I: IntoIterator<Item = Component>>(components: I) -> Self {
        Self::new(components.into_iter().collect())
    }
}

impl PartialEq for Component {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Undefined, Self::Undefined) | (Self::Null, Self::Null) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::Number(left), Self::Number(right)) => identity(*left) == identity(*right),
            (Self::String(left), Self::String(right)) => left == right,
            (Self::Undefined | Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_), _) => false,
        }
    }
}

impl Eq for Component {}

impl Hash for Component {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Self::Undefined | Self::Null => {}
            Self::Bool(value) => value.hash(state),
            Self::Number(number) => identity(*number).hash(state),
            Self::String(text) => text.hash(state),
        }
    }
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid partition key: {}", self.reason)
    }
}

impl std::error::Error for InvalidKey {}

/// Bits that are equal exactly for equal keys.
fn identity(number: f64) -> u64 {
    (number + 0.0).to_bits()
}

fn write_ascii_string(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    let mut units = [0; 2];
    for character in text.chars() {
        match character {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            ' '..='~' => write!(f, "{character}")?,
            _ => {
                for unit in character.encode_utf16(&mut units) {
                    write!(f, "\\u{unit:04x}")?;
                }
            }
        }
    }
    f.write_str("\"")
}

/// Most paths a hierarchical key has.
pub const COMPONENTS_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_forms_of_the_sdks_are_read() {
        let cases: [(&str, Vec<Component>); 10] = [
            (r#"["a"]"#, vec!["a".into()]),
            ("[{}]", vec![Component::Undefined]),
            ("[]", vec![]),
            ("[null]", vec![Component::Null]),
            ("[true]", vec![true.into()]),
            ("[1.0]", vec![1.0.into()]),
            ("[-0.0]", vec![0.0.into()]),
            (r#"["t", 5, false]"#, vec!["t".into(), 5.0.into(), false.into()]),
            (r#"["\u65e5\u672c"]"#, vec!["日本".into()]),
            (r#"["日本"]"#, vec!["日本".into()]),
        ];
        for (header, components) in cases {
            assert_eq!(header.parse(), Ok(PartitionKey::new(components)), "{header}");
        }
    }

    #[test]
    fn other_headers_are_refused() {
        for header in ["", "a", "\"a\"", "{}", "[[]]", r#"[{"a":1}]"#, "[1e400]", "[1,2,3,4]", "[1", "[NaN]"]
        {
            assert!(header.parse::<PartitionKey>().is_err(), "{header}");
        }
    }

    #[test]
    fn the_header_is_written_in_ascii() {
        let cases: [(PartitionKey, &str); 9] = [
            ("a".into(), r#"["a"]"#),
            ("日本".into(), r#"["\u65e5\u672c"]"#),
            ("🚀\n\"\\/".into(), r#"["\ud83d\ude80\u000a\"\\/"]"#),
            (PartitionKey::undefined(), "[{}]"),
            (PartitionKey::EMPTY, "[]"),
            (1.0.into(), "[1]"),
            (1.5.into(), "[1.5]"),
            (1e30.into(), "[1e+30]"),
            (PartitionKey::new(vec!["a".into(), Component::Null, true.into()]), r#"["a",null,true]"#),
        ];
        for (key, header) in cases {
            assert_eq!(key.to_string(), header);
            assert_eq!(header.parse(), Ok(key), "{header}");
        }
    }

    #[test]
    fn zero_is_one_key_whatever_its_sign() {
        assert_eq!(PartitionKey::from(-0.0), PartitionKey::from(0.0));
        assert_eq!(Component::Number(-0.0), Component::Number(0.0));
        assert_ne!(Component::from("1"), Component::from(1.0));
    }
}
