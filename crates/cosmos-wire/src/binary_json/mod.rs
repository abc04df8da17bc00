//! Cosmos binary JSON, the compact form SDKs may send items in.
//!
//! A buffer begins with byte 0x80, then holds one value. Each value begins with a marker byte that
//! tells its type, and often its length or even the value itself; numbers are little-endian. Frequent
//! property names have one-byte markers, and strings have compressed forms. The format is that of the
//! .NET SDK's `JsonBinaryEncoding`.
//!
//! The decoder knows every form a service or SDK writes without a string dictionary of its own. It is
//! made for hostile input: it checks every length against the buffer, limits nesting and what
//! references may expand to, and returns [`InvalidBinary`] otherwise. The encoder writes the plain
//! forms, which every reader knows.

mod decode;
mod encode;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;

pub use decode::decode;
pub use encode::encode;

/// First byte of every buffer; no JSON text begins with it.
pub const PREAMBLE: u8 = 0x80;

/// Deepest nesting the decoder follows, the service's own limit.
pub const DEPTH_MAX: usize = 128;

/// Whether a body is binary rather than text.
#[must_use]
pub fn is_binary(body: &[u8]) -> bool {
    body.first() == Some(&PREAMBLE)
}

/// Why a buffer is not Cosmos binary JSON, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidBinary {
    /// Offset of the byte that could not be read.
    pub offset: usize,
    /// What is wrong.
    pub reason: Reason,
}

/// What can be wrong with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The first byte is not [`PREAMBLE`].
    NoPreamble,
    /// The buffer ends inside a value.
    Truncated,
    /// Bytes follow the value.
    TrailingBytes,
    /// No value has this marker.
    UnknownMarker,
    /// The string is in a dictionary the wire does not carry.
    UserString,
    /// A property name is not a string.
    NameNotString,
    /// A length or count does not fit what it describes.
    LengthMismatch,
    /// A string is not UTF-8, or a packed one not ASCII.
    InvalidText,
    /// A number is infinite or not a number.
    NotFinite,
    /// A reference does not point back to a string.
    BadReference,
    /// Nesting is deeper than [`DEPTH_MAX`].
    TooDeep,
    /// References or empty elements expand to far more than the buffer holds.
    TooLarge,
}

impl fmt::Display for InvalidBinary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            Reason::NoPreamble => "the first byte is not 0x80",
            Reason::Truncated => "the buffer ends inside a value",
            Reason::TrailingBytes => "bytes follow the value",
            Reason::UnknownMarker => "no value has this marker",
            Reason::UserString => "user string dictionaries are not part of the wire",
            Reason::NameNotString => "a property name is not a string",
            Reason::LengthMismatch => "a length or count does not fit",
            Reason::InvalidText => "a string is not valid text",
            Reason::NotFinite => "a number is not finite",
            Reason::BadReference => "a reference does not point back to a string",
            Reason::TooDeep => "values are nested too deeply",
            Reason::TooLarge => "the value expands beyond its limit",
        };
        write!(f, "invalid binary JSON at byte {}: {reason}", self.offset)
    }
}

impl std::error::Error for InvalidBinary {}

/// Strings with a marker of their own, from 0x20 on.
const SYSTEM_STRINGS: [&str; 32] = [
    "$s",
    "$t",
    "$v",
    "_attachments",
    "_etag",
    "_rid",
    "_self",
    "_ts",
    "attachments/",
    "coordinates",
    "geometry",
    "GeometryCollection",
    "id",
    "url",
    "Value",
    "label",
    "LineString",
    "link",
    "MultiLineString",
    "MultiPoint",
    "MultiPolygon",
    "name",
    "Name",
    "Type",
    "Point",
    "Polygon",
    "properties",
    "type",
    "value",
    "Feature",
    "FeatureCollection",
    "_id",
];

/// Marker of the first system string.
const SYSTEM_STRING_FIRST: u8 = 0x20;
