//! Items as they are stored: a small header, then the JSON text that clients get.

use bytes::Bytes;
use cosmos_wire::partition_key::PartitionKey;
use cosmos_wire::status::Status;
use serde_json::{Map, Value};

use super::container::Container;
use super::index::terms::is_system_property;
use super::json::{self, Malformed};
use crate::Failure;

/// What a request or a document may weigh.
pub(crate) const BYTES_MAX: usize = 2 * 1024 * 1024;

const ID_BYTES_MAX: usize = 1_023;

/// A document that a client sent, checked.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) id: String,
    /// Without system properties.
    pub(crate) fields: Map<String, Value>,
    /// Its own time to live.
    pub(crate) ttl: Option<i32>,
}

impl Draft {
    /// Reads a request body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Failure> {
        if body.len() > BYTES_MAX {
            return Err(too_large());
        }
        match json::parse(body) {
            Ok(Value::Object(fields)) => Self::new(fields),
            Ok(_) => Err(Failure::bad_request(INVALID_PAYLOAD)),
            Err(malformed) => Err(refused(malformed)),
        }
    }

    /// Takes a document that was put together here. One that nests deeper than texts may could never be read again.
    pub(crate) fn of(document: Value) -> Result<Self, Failure> {
        if !json::nests_within(&document, json::DEPTH_MAX) {
            return Err(refused(Malformed::TooDeep));
        }
        match document {
            Value::Object(fields) => Self::new(fields),
            _ => Err(Failure::bad_request(INVALID_PAYLOAD)),
        }
    }

    /// Checks what every item must have.
    fn new(mut fields: Map<String, Value>) -> Result<Self, Failure> {
        fields.retain(|name, _| !is_system_property(name));
        let id = match fields.get("id") {
            Some(Value::String(id)) => id.clone(),
            Some(Value::Null) | None => {
                return Err(Failure::bad_request(
                    "The input content is invalid because the required properties - 'id; ' - are missing",
                ));
            }
            Some(_) => return Err(Failure::bad_request("The 'id' of an item must be a string.")),
        };
        check_id(&id)?;
        let ttl = ttl(fields.get("ttl"))?;
        Ok(Self { id, fields, ttl })
    }
}

fn refused(malformed: Malformed) -> Failure {
    Failure::bad_request(match malformed {
        Malformed::Syntax(at) => format!("{INVALID_PAYLOAD} It is not JSON at byte {at}."),
        Malformed::DuplicateKey(name) => format!("{INVALID_PAYLOAD} The property '{name}' is there twice."),
        Malformed::TooDeep => {
            format!("{INVALID_PAYLOAD} It is nested deeper than {} levels.", json::DEPTH_MAX)
        }
        Malformed::NumberRange => "The request payload is invalid".to_owned(),
    })
}

/// Refuses ids the service does not take.
pub(crate) fn check_id(id: &str) -> Result<(), Failure> {
    if id.is_empty() || id.len() > ID_BYTES_MAX || id.contains(['/', '\\']) {
        return Err(Failure::bad_request(format!(
            "The input name '{id}' is invalid. Ensure to provide a unique non-empty string less than '1024' \
             characters. It has no '/' and no '\\'."
        )));
    }
    Ok(())
}

fn ttl(value: Option<&Value>) -> Result<Option<i32>, Failure> {
    let Some(value) = value else { return Ok(None) };
    match value.as_i64().and_then(|seconds| i32::try_from(seconds).ok()) {
        Some(seconds) if seconds == -1 || seconds > 0 => Ok(Some(seconds)),
        Some(_) | None => Err(Failure::bad_request(format!(
            "The input ttl '{value}' is invalid. Ensure to provide a nonzero positive integer less than or equal to \
             '2147483647', or '-1' which means never expire."
        ))),
    }
}

/// The key in the header must be the one in the document.
pub(crate) fn check_key(
    container: &Container,
    document: &Value,
    header: &PartitionKey,
) -> Result<(), Failure> {
    if container.partition_key().extract(document) == *header {
        return Ok(());
    }
    Err(Failure::of(
        Status::PARTITION_KEY_MISMATCH,
        "PartitionKey extracted from document doesn't match the one specified in the header",
    ))
}

/// A stored item.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) lsn: u64,
    pub(crate) rid: u64,
    etag: u32,
    /// Seconds since 1970: `_ts`.
    pub(crate) timestamp: u64,
    /// Its own time to live.
    pub(crate) ttl: Option<i32>,
    /// JSON text with system properties.
    pub(crate) body: Bytes,
}

/// What a write adds to a document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) lsn: u64,
    pub(crate) rid: u64,
    pub(crate) etag: u32,
    pub(crate) timestamp: u64,
}

const HEADER_BYTES: usize = 1 + 8 + 8 + 4 + 8 + 4;
const HEADER_VERSION: u8 = 1;
const NO_TTL: i32 = i32::MIN;

impl Stored {
    /// Reads a value of the store.
    pub(crate) fn from_bytes(bytes: &Bytes) -> Option<Self> {
        let header = bytes.get(..HEADER_BYTES).filter(|header| header[0] == HEADER_VERSION)?;
        let long = |at: usize| header[at..at + 8].try_into().ok().map(u64::from_be_bytes);
        let ttl = i32::from_be_bytes(header[29..33].try_into().ok()?);
        Some(Self {
            lsn: long(1)?,
            rid: long(9)?,
            etag: u32::from_be_bytes(header[17..21].try_into().ok()?),
            timestamp: long(21)?,
            ttl: (ttl != NO_TTL).then_some(ttl),
            body: bytes.slice(HEADER_BYTES..),
        })
    }

    /// Its etag, with quotes.
    pub(crate) fn etag(&self) -> String {
        etag_text(self.etag, self.timestamp)
    }

    /// When it ends to exist, given the container's default.
    pub(crate) fn deadline(&self, default_ttl: Option<i32>) -> Option<u64> {
        deadline(self.timestamp, self.ttl, default_ttl)
    }

    /// Whether it no longer exists.
    pub(crate) fn is_expired(&self, default_ttl: Option<i32>, now: u64) -> bool {
        self.deadline(default_ttl).is_some_and(|deadline| deadline <= now)
    }

    /// The document.
    pub(crate) fn value(&self) -> Result<Value, Failure> {
        json::parse(&self.body)
            .map_err(|error| Failure::new(500, format!("A stored document cannot be read: {error:?}.")))
    }
}

/// When an item written at `timestamp` ends to exist. The container's setting turns expiry on; without it an item's
/// own time to live means nothing.
pub(crate) fn deadline(timestamp: u64, own_ttl: Option<i32>, default_ttl: Option<i32>) -> Option<u64> {
    let seconds = own_ttl.or(default_ttl).filter(|_| default_ttl.is_some())?;
    u64::try_from(seconds).ok().map(|seconds| timestamp + seconds)
}

/// Writes the value of the store for a document, up to what a write adds, with room for that.
pub(crate) fn begin_stored(container: &Container, fields: &Map<String, Value>, ttl: Option<i32>) -> Vec<u8> {
    let mut out = Vec::with_capacity(SCRATCH_BYTES);
    out.push(HEADER_VERSION);
    out.resize(HEADER_BYTES - size_of::<i32>(), 0);
    out.extend_from_slice(&ttl.unwrap_or(NO_TTL).to_be_bytes());
    out.push(b'{');
    for (name, value) in fields {
        json::write_string(name, &mut out);
        out.push(b':');
        json::write(value, &mut out);
        out.push(b',');
    }
    // What stays in memory gets no more room than it needs.
    let mut exact = Vec::with_capacity(out.len() + ADDED_BYTES + container.documents_link.len());
    exact.extend_from_slice(&out);
    exact
}

/// Adds what a write adds.
pub(crate) fn finish_stored(mut out: Vec<u8>, container: &Container, stamp: Stamp) -> Bytes {
    for (place, number) in [(1, stamp.lsn), (9, stamp.rid), (21, stamp.timestamp)] {
        out[place..place + 8].copy_from_slice(&number.to_be_bytes());
    }
    out[17..21].copy_from_slice(&stamp.etag.to_be_bytes());
    let rid = container.rid.document(stamp.rid).to_string();
    out.extend_from_slice(b"\"_rid\":\"");
    out.extend_from_slice(rid.as_bytes());
    out.extend_from_slice(b"\",\"_self\":\"");
    out.extend_from_slice(container.documents_link.as_bytes());
    out.extend_from_slice(rid.as_bytes());
    out.extend_from_slice(b"/\",\"_etag\":\"\\\"");
    out.extend_from_slice(etag_text(stamp.etag, stamp.timestamp).trim_matches('"').as_bytes());
    out.extend_from_slice(b"\\\"\",\"_attachments\":\"attachments/\",\"_ts\":");
    out.extend_from_slice(itoa::Buffer::new().format(stamp.timestamp).as_bytes());
    out.push(b'}');
    Bytes::from(out)
}

/// Room to write a usual document in.
const SCRATCH_BYTES: usize = 4096;
/// What a write adds, besides the link: names and quotes, the resource id twice, the etag and ten digits.
const ADDED_BYTES: usize = 74 + 2 * 24 + 36 + 10;

/// The same value of the store with another LSN.
pub(crate) fn with_lsn(bytes: &Bytes, lsn: u64) -> Bytes {
    let mut out = bytes.to_vec();
    if let Some(place) = out.get_mut(1..9) {
        place.copy_from_slice(&lsn.to_be_bytes());
    }
    Bytes::from(out)
}

/// `"00000001-0000-0100-0000-6ac9ff4d0000"`: a number that moves with every write, the region, and `_ts`.
pub(crate) fn etag_text(number: u32, timestamp: u64) -> String {
    let mut text = String::with_capacity(38);
    text.push('"');
    push_hex(&mut text, number);
    text.push_str("-0000-0100-0000-");
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is what etags have")]
    push_hex(&mut text, timestamp as u32);
    text.push_str("0000\"");
    text
}

/// Eight digits, without the machinery that formats anything: every answer about an item has an etag.
fn push_hex(text: &mut String, number: u32) {
    for shift in (0..u32::BITS).step_by(4).rev() {
        let digit = number >> shift & 0xf;
        text.push(char::from_digit(digit, 16).unwrap_or_default());
    }
}

/// Whether an etag of a header means this one; `*` means any, and quotes may be missing.
pub(crate) fn etag_matches(header: &str, etag: &str) -> bool {
    let header = header.trim();
    header == "*" || header.trim_matches('"') == etag.trim_matches('"')
}

/// Larger than the service takes.
pub(crate) fn too_large() -> Failure {
    Failure::new(413, "Request size is too large")
}

/// What the service says to a body it cannot read.
const INVALID_PAYLOAD: &str = "The request payload is invalid. Ensure to provide a valid request payload.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_lose_system_properties_and_need_an_id() {
        let draft = Draft::parse(br#"{"id":"1","_rid":"x","_ts":3,"_mine":1,"ttl":5}"#).expect("valid");
        assert_eq!(draft.fields.keys().collect::<Vec<_>>(), ["id", "_mine", "ttl"]);
        assert_eq!((draft.id.as_str(), draft.ttl), ("1", Some(5)));
        for body in [
            "[]",
            "{}",
            r#"{"id":1}"#,
            r#"{"id":""}"#,
            r#"{"id":"a/b"}"#,
            r#"{"id":"a\\b"}"#,
            r#"{"id":"1","ttl":0}"#,
            r#"{"id":"1","ttl":-2}"#,
            r#"{"id":"1","ttl":"x"}"#,
            r#"{"id":"1","a":1e999}"#,
            r#"{"id":"1","id":"2"}"#,
        ] {
            assert_eq!(Draft::parse(body.as_bytes()).map(drop).map_err(|f| f.status), Err(400), "{body}");
        }
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(1_023));
        assert!(Draft::parse(long.as_bytes()).is_ok());
        let longer = format!(r#"{{"id":"{}"}}"#, "x".repeat(1_024));
        assert!(Draft::parse(longer.as_bytes()).is_err());
        let large = format!(r#"{{"id":"1","x":"{}"}}"#, "x".repeat(BYTES_MAX));
        assert_eq!(Draft::parse(large.as_bytes()).map(drop).map_err(|f| f.status), Err(413));
    }

    #[test]
    fn items_expire_by_their_own_time_or_the_containers() {
        for (own, default, expected) in [
            (None, None, None),
            (Some(5), None, None),
            (None, Some(-1), None),
            (Some(5), Some(-1), Some(105)),
            (None, Some(10), Some(110)),
            (Some(5), Some(10), Some(105)),
            (Some(-1), Some(10), None),
        ] {
            assert_eq!(deadline(100, own, default), expected, "{own:?} {default:?}");
        }
    }

    #[test]
    fn etags_match_with_and_without_quotes() {
        let etag = etag_text(0x6201_e654, 1_791_622_915);
        assert_eq!(etag, "\"6201e654-0000-0100-0000-6ac9ff030000\"");
        assert!(
            etag_matches(&etag, &etag)
                && etag_matches(etag.trim_matches('"'), &etag)
                && etag_matches("*", &etag)
        );
        assert!(!etag_matches("\"x\"", &etag));
    }
}
