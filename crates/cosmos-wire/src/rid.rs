//! Resource ids (`_rid`): how the service numbers resources.
//!
//! A rid holds the rids of all owners: a database has 4 bytes, a container 4 more with the top bit
//! set, a child of a container 8 more. Those last 8 are a little-endian counter whose top four bits
//! tell the kind. The text form is base64 with `/` written as `-`.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::alphabet::Alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// A resource id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rid {
    bytes: [u8; ATTACHMENT_BYTES],
    length: u8,
}

/// What a rid names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 3 bytes.
    Offer,
    /// 4 bytes.
    Database,
    /// 8 bytes, top bit of the fifth clear.
    User,
    /// 16 bytes under a user.
    Permission,
    /// 8 bytes, top bit of the fifth set.
    Container,
    /// 16 bytes, nibble 0.
    Document,
    /// 16 bytes, nibble 4.
    Conflict,
    /// 16 bytes, nibble 5.
    PartitionKeyRange,
    /// 16 bytes, nibble 6.
    UserDefinedFunction,
    /// 16 bytes, nibble 7.
    Trigger,
    /// 16 bytes, nibble 8.
    StoredProcedure,
    /// 16 bytes, nibble 9.
    Schema,
    /// 20 bytes, under a document.
    Attachment,
}

/// The text is not a resource id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidRid;

impl Rid {
    /// A database by its number.
    #[must_use]
    pub fn database(number: u32) -> Self {
        Self::from_slice(&number.to_be_bytes())
    }

    /// An offer by its number, of which three bytes count.
    #[must_use]
    pub fn offer(number: u32) -> Self {
        Self::from_slice(&number.to_be_bytes()[1..])
    }

    /// A container of this database by its number, of which 31 bits count.
    #[must_use]
    pub fn container(self, number: u32) -> Self {
        self.owner(DATABASE_BYTES).with_tail(&(number | CONTAINER_BIT).to_be_bytes())
    }

    /// A user of this database by its number, of which 31 bits count.
    #[must_use]
    pub fn user(self, number: u32) -> Self {
        self.owner(DATABASE_BYTES).with_tail(&(number & !CONTAINER_BIT).to_be_bytes())
    }

    /// A document of this container. Rids of growing counters order as the counters do in
    /// [`Rid::counter`], which is creation order.
    #[must_use]
    pub fn document(self, counter: u64) -> Self {
        self.child(0x0, counter)
    }

    /// A partition key range of this container.
    #[must_use]
    pub fn partition_key_range(self, counter: u64) -> Self {
        self.child(0x5, counter)
    }

    /// A conflict of this container.
    #[must_use]
    pub fn conflict(self, counter: u64) -> Self {
        self.child(0x4, counter)
    }

    /// A user-defined function of this container.
    #[must_use]
    pub fn user_defined_function(self, counter: u64) -> Self {
        self.child(0x6, counter)
    }

    /// A trigger of this container.
    #[must_use]
    pub fn trigger(self, counter: u64) -> Self {
        self.child(0x7, counter)
    }

    /// A stored procedure of this container.
    #[must_use]
    pub fn stored_procedure(self, counter: u64) -> Self {
        self.child(0x8, counter)
    }

    /// A permission of this user.
    #[must_use]
    pub fn permission(self, counter: u64) -> Self {
        self.child(0x0, counter)
    }

    /// A rid from its bytes.
    ///
    /// # Errors
    /// When no kind has this length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidRid> {
        let known = matches!(
            bytes.len(),
            OFFER_BYTES | DATABASE_BYTES | CONTAINER_BYTES | CHILD_BYTES | ATTACHMENT_BYTES
        );
        let nibble_known = bytes.len() < CHILD_BYTES || matches!(bytes[CHILD_BYTES - 1] >> 4, 0 | 4..=9);
        if known && nibble_known { Ok(Self::from_slice(bytes)) } else { Err(InvalidRid) }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// What this rid names.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let is_container = self.bytes[DATABASE_BYTES] & 0x80 != 0;
        match usize::from(self.length) {
            OFFER_BYTES => Kind::Offer,
            DATABASE_BYTES => Kind::Database,
            CONTAINER_BYTES if is_container => Kind::Container,
            CONTAINER_BYTES => Kind::User,
            CHILD_BYTES if !is_container => Kind::Permission,
            CHILD_BYTES => match self.bytes[CHILD_BYTES - 1] >> 4 {
                0x4 => Kind::Conflict,
                0x5 => Kind::PartitionKeyRange,
                0x6 => Kind::UserDefinedFunction,
                0x7 => Kind::Trigger,
                0x8 => Kind::StoredProcedure,
                0x9 => Kind::Schema,
                _ => Kind::Document,
            },
            _ => Kind::Attachment,
        }
    }

    /// Rid of the database this one is in, itself for a database; `None` for an offer.
    #[must_use]
    pub fn database_rid(&self) -> Option<Self> {
        (usize::from(self.length) >= DATABASE_BYTES).then(|| self.owner(DATABASE_BYTES))
    }

    /// Rid of the container this one is in, itself for a container.
    #[must_use]
    pub fn container_rid(&self) -> Option<Self> {
        let inside = usize::from(self.length) >= CONTAINER_BYTES && self.bytes[DATABASE_BYTES] & 0x80 != 0;
        inside.then(|| self.owner(CONTAINER_BYTES))
    }

    /// Counter of a child of a container, without its kind.
    #[must_use]
    pub fn counter(&self) -> Option<u64> {
        let bytes: [u8; 8] = self.as_bytes().get(CONTAINER_BYTES..CHILD_BYTES)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes) & COUNTER_MASK)
    }

    fn child(self, nibble: u8, counter: u64) -> Self {
        let tail = (counter & COUNTER_MASK) | u64::from(nibble) << 60;
        self.owner(CONTAINER_BYTES).with_tail(&tail.to_le_bytes())
    }

    fn owner(&self, length: usize) -> Self {
        Self::from_slice(&self.bytes[..length])
    }

    fn with_tail(mut self, tail: &[u8]) -> Self {
        let start = usize::from(self.length);
        self.bytes[start..start + tail.len()].copy_from_slice(tail);
        self.length += tail.len() as u8;
        self
    }

    /// The slice is at most an attachment long: all callers pass a length of the list below.
    fn from_slice(slice: &[u8]) -> Self {
        let mut bytes = [0; ATTACHMENT_BYTES];
        bytes[..slice.len()].copy_from_slice(slice);
        Self { bytes, length: slice.len() as u8 }
    }
}

impl fmt::Display for Rid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&TEXT.encode(self.as_bytes()))
    }
}

impl fmt::Debug for Rid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rid({self})")
    }
}

impl FromStr for Rid {
    type Err = InvalidRid;

    fn from_str(text: &str) -> Result<Self, InvalidRid> {
        // Longer text cannot be a rid; this bounds the work.
        if text.len() > TEXT_BYTES_MAX {
            return Err(InvalidRid);
        }
        let bytes = TEXT.decode(text.replace('/', "-")).map_err(|_| InvalidRid)?;
        Self::from_bytes(&bytes)
    }
}

impl fmt::Display for InvalidRid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a resource id: expected base64 of 3, 4, 8, 16 or 20 bytes")
    }
}

impl std::error::Error for InvalidRid {}

const OFFER_BYTES: usize = 3;
const DATABASE_BYTES: usize = 4;
const CONTAINER_BYTES: usize = 8;
const CHILD_BYTES: usize = 16;
const ATTACHMENT_BYTES: usize = 20;
const TEXT_BYTES_MAX: usize = 28;
const CONTAINER_BIT: u32 = 0x8000_0000;
const COUNTER_MASK: u64 = (1 << 60) - 1;

/// Standard base64 but for the slash, which would split a path.
const TEXT: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

const ALPHABET: Alphabet =
    match Alphabet::new("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-") {
        Ok(alphabet) => alphabet,
        Err(_) => panic!("64 distinct printable characters are an alphabet"),
    };

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids recorded from the service.
    #[test]
    fn recorded_ids_decode_to_their_kinds_and_owners() {
        let database: Rid = "DJB7AA==".parse().unwrap();
        assert_eq!(
            (database.kind(), database.as_bytes()),
            (Kind::Database, [0x0C, 0x90, 0x7B, 0x00].as_slice())
        );
        let container: Rid = "DJB7AI1lZHo=".parse().unwrap();
        assert_eq!(container.kind(), Kind::Container);
        let document: Rid = "DJB7AI1lZHoBAAAAAAAAAA==".parse().unwrap();
        assert_eq!((document.kind(), document.counter()), (Kind::Document, Some(1)));
        assert_eq!(document.container_rid(), Some(container));
        assert_eq!(document.database_rid(), Some(database));
        let range: Rid = "DJB7AI1lZHoCAAAAAAAAUA==".parse().unwrap();
        assert_eq!((range.kind(), range.counter()), (Kind::PartitionKeyRange, Some(2)));
        assert_eq!(container.document(1).to_string(), "DJB7AI1lZHoBAAAAAAAAAA==");
        assert_eq!(container.partition_key_range(2).to_string(), "DJB7AI1lZHoCAAAAAAAAUA==");
    }

    #[test]
    fn rids_are_built_from_numbers() {
        let database = Rid::database(0x0C90_7B00);
        assert_eq!(database.to_string(), "DJB7AA==");
        let container = database.container(0x0D65_647A);
        assert_eq!(container.to_string(), "DJB7AI1lZHo=");
        let kinds = [
            (Rid::offer(7), Kind::Offer, 4),
            (database, Kind::Database, 8),
            (database.user(0x8000_0001), Kind::User, 12),
            (database.user(1).permission(1), Kind::Permission, 24),
            (container, Kind::Container, 12),
            (container.document(u64::MAX), Kind::Document, 24),
            (container.conflict(1), Kind::Conflict, 24),
            (container.user_defined_function(1), Kind::UserDefinedFunction, 24),
            (container.trigger(1), Kind::Trigger, 24),
            (container.stored_procedure(1), Kind::StoredProcedure, 24),
        ];
        for (rid, kind, characters) in kinds {
            assert_eq!(rid.kind(), kind);
            assert_eq!(rid.to_string().len(), characters, "{kind:?}");
            assert_eq!(rid.to_string().parse(), Ok(rid), "{kind:?}");
        }
    }

    #[test]
    fn a_slash_is_written_as_a_dash() {
        let rid = Rid::database(0xFFFF_FFFF);
        assert_eq!(rid.to_string(), "-----w==");
        assert_eq!("/////w==".parse(), Ok(rid));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "db",
            "DJB7AA",
            "DJB7AA=",
            "AAAAAAA=",
            "not base64!",
            "DJB7AI1lZHoBAAAAAAAAEA==",
            &"A".repeat(400),
        ] {
            assert!(text.parse::<Rid>().is_err(), "{text}");
        }
    }
}
