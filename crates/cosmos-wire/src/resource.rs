//! Kinds of resource and the links that address them.
//!
//! A path alternates kind and id: `/dbs/{db}/colls/{container}/docs/{id}`. A path that ends with a
//! kind addresses a feed. Ids are names or resource ids; which of the two, the database segment tells
//! for the whole link.

use std::borrow::Cow;
use std::fmt;

use crate::rid::{self, Rid};

/// A kind of resource, as a path segment names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourceKind {
    /// The account itself, at `/`.
    Account,
    /// `dbs`
    Database,
    /// `colls`
    Container,
    /// `docs`
    Document,
    /// `pkranges`
    PartitionKeyRange,
    /// `offers`
    Offer,
    /// `users`
    User,
    /// `permissions`
    Permission,
    /// `sprocs`
    StoredProcedure,
    /// `triggers`
    Trigger,
    /// `udfs`
    UserDefinedFunction,
    /// `conflicts`
    Conflict,
    /// `attachments`
    Attachment,
    /// `schemas`
    Schema,
    /// `clientencryptionkeys`
    ClientEncryptionKey,
    /// `operations`, the container-wide operations such as delete by partition key.
    Operation,
}

impl ResourceKind {
    const ALL: [Self; 16] = [
        Self::Account,
        Self::Database,
        Self::Container,
        Self::Document,
        Self::PartitionKeyRange,
        Self::Offer,
        Self::User,
        Self::Permission,
        Self::StoredProcedure,
        Self::Trigger,
        Self::UserDefinedFunction,
        Self::Conflict,
        Self::Attachment,
        Self::Schema,
        Self::ClientEncryptionKey,
        Self::Operation,
    ];

    /// Path segment, which is also the resource type that is signed; empty for the account.
    #[must_use]
    pub const fn segment(self) -> &'static str {
        match self {
            Self::Account => "",
            Self::Database => "dbs",
            Self::Container => "colls",
            Self::Document => "docs",
            Self::PartitionKeyRange => "pkranges",
            Self::Offer => "offers",
            Self::User => "users",
            Self::Permission => "permissions",
            Self::StoredProcedure => "sprocs",
            Self::Trigger => "triggers",
            Self::UserDefinedFunction => "udfs",
            Self::Conflict => "conflicts",
            Self::Attachment => "attachments",
            Self::Schema => "schemas",
            Self::ClientEncryptionKey => "clientencryptionkeys",
            Self::Operation => "operations",
        }
    }

    /// The kind a path segment names, in any letter case.
    #[must_use]
    pub fn from_segment(segment: &str) -> Option<Self> {
        Self::ALL.into_iter().skip(1).find(|kind| kind.segment().eq_ignore_ascii_case(segment))
    }

    /// Property of a feed's body that holds the resources.
    #[must_use]
    pub const fn feed_property(self) -> &'static str {
        match self {
            Self::Account => "DatabaseAccount",
            Self::Database => "Databases",
            Self::Container => "DocumentCollections",
            Self::Document => "Documents",
            Self::PartitionKeyRange => "PartitionKeyRanges",
            Self::Offer => "Offers",
            Self::User => "Users",
            Self::Permission => "Permissions",
            Self::StoredProcedure => "StoredProcedures",
            Self::Trigger => "Triggers",
            Self::UserDefinedFunction => "UserDefinedFunctions",
            Self::Conflict => "Conflicts",
            Self::Attachment => "Attachments",
            Self::Schema => "Schemas",
            Self::ClientEncryptionKey => "ClientEncryptionKeys",
            Self::Operation => "Operations",
        }
    }

    /// Whether a resource of this kind may follow one of `parent` in a path.
    #[must_use]
    pub const fn may_follow(self, parent: Self) -> bool {
        match self {
            Self::Account => false,
            Self::Database | Self::Offer => matches!(parent, Self::Account),
            Self::Container | Self::User | Self::ClientEncryptionKey => matches!(parent, Self::Database),
            Self::Document
            | Self::PartitionKeyRange
            | Self::StoredProcedure
            | Self::Trigger
            | Self::UserDefinedFunction
            | Self::Conflict
            | Self::Schema
            | Self::Operation => matches!(parent, Self::Container),
            Self::Permission => matches!(parent, Self::User),
            Self::Attachment => matches!(parent, Self::Document),
        }
    }
}

/// How the ids of a link are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// By the ids people gave.
    Name,
    /// By resource ids.
    Rid,
}

/// A parsed path: a resource, or the feed of one kind under a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Link {
    steps: Vec<(ResourceKind, String)>,
    feed: Option<ResourceKind>,
}

/// The path is not one the service has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidLink;

impl Link {
    /// The account itself.
    #[must_use]
    pub const fn account() -> Self {
        Self { steps: Vec::new(), feed: None }
    }

    /// A database by name or rid.
    #[must_use]
    pub fn database(id: impl Into<String>) -> Self {
        Self::account().child(ResourceKind::Database, id)
    }

    /// A container by names or rids.
    #[must_use]
    pub fn container(database: impl Into<String>, container: impl Into<String>) -> Self {
        Self::database(database).child(ResourceKind::Container, container)
    }

    /// The resource of a kind under this one.
    #[must_use]
    pub fn child(mut self, kind: ResourceKind, id: impl Into<String>) -> Self {
        self.feed = None;
        self.steps.push((kind, id.into()));
        self
    }

    /// The feed of a kind under this resource.
    #[must_use]
    pub fn feed(mut self, kind: ResourceKind) -> Self {
        self.feed = Some(kind);
        self
    }

    /// Reads a request path, percent-encoded, with or without slashes at its ends.
    ///
    /// # Errors
    /// When a segment is no kind, a kind stands where it cannot, or an encoding is broken.
    pub fn parse(path: &str) -> Result<Self, InvalidLink> {
        let mut link = Self::account();
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.is_empty() {
            return Ok(link);
        }
        let mut segments = path.split('/');
        while let Some(segment) = segments.next() {
            let kind = ResourceKind::from_segment(segment).ok_or(InvalidLink)?;
            if !kind.may_follow(link.last_kind()) {
                return Err(InvalidLink);
            }
            match segments.next() {
                Some("") => return Err(InvalidLink),
                Some(id) => link.steps.push((kind, percent_decode(id).ok_or(InvalidLink)?.into_owned())),
                None => link.feed = Some(kind),
            }
        }
        Ok(link)
    }

    /// Kind the request is about: the feed's, or the resource's own.
    #[must_use]
    pub fn kind(&self) -> ResourceKind {
        self.feed.unwrap_or_else(|| self.last_kind())
    }

    /// Whether this is a feed.
    #[must_use]
    pub fn is_feed(&self) -> bool {
        self.feed.is_some()
    }

    /// Id of the last resource named.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.steps.last().map(|(_, id)| id.as_str())
    }

    /// Id given for a kind along the path.
    #[must_use]
    pub fn id_of(&self, kind: ResourceKind) -> Option<&str> {
        self.steps.iter().find(|(step, _)| *step == kind).map(|(_, id)| id.as_str())
    }

    /// Kinds and ids from the database down.
    pub fn steps(&self) -> impl Iterator<Item = (ResourceKind, &str)> {
        self.steps.iter().map(|(kind, id)| (*kind, id.as_str()))
    }

    /// The resource around this one; the account is around itself.
    #[must_use]
    pub fn parent(&self) -> Self {
        let mut parent = self.clone();
        if parent.feed.take().is_none() {
            parent.steps.pop();
        }
        parent
    }

    /// Whether ids are names or rids. A database id of eight characters that decodes to a database's
    /// rid is read as one, as the service does; offers have rids only.
    #[must_use]
    pub fn addressing(&self) -> Addressing {
        let is_rid = match self.steps.first() {
            Some((ResourceKind::Offer, _)) => true,
            Some((_, id)) => id.parse::<Rid>().is_ok_and(|rid| rid.kind() == rid::Kind::Database),
            None => false,
        };
        if is_rid { Addressing::Rid } else { Addressing::Name }
    }

    /// Resource type that is signed. A container-wide operation is signed as `partitionkey`, after the
    /// one there is: delete by partition key.
    #[must_use]
    pub fn signed_type(&self) -> &'static str {
        match self.kind() {
            ResourceKind::Operation => "partitionkey",
            kind => kind.segment(),
        }
    }

    /// Link that a client signs: names as they are, a resource id alone and in lower case.
    #[must_use]
    pub fn signed_link(&self) -> String {
        if self.last_kind() == ResourceKind::Operation {
            return self.parent().signed_link();
        }
        match self.addressing() {
            Addressing::Name => self.owner_text(),
            Addressing::Rid => self.id().unwrap_or_default().to_ascii_lowercase(),
        }
    }

    /// Request path, percent-encoded, with a leading slash.
    #[must_use]
    pub fn to_path(&self) -> String {
        let mut path = String::with_capacity(64);
        for (kind, id) in self.steps() {
            path.push('/');
            path.push_str(kind.segment());
            path.push('/');
            percent_encode(&mut path, id);
        }
        if let Some(kind) = self.feed {
            path.push('/');
            path.push_str(kind.segment());
        }
        if path.is_empty() {
            path.push('/');
        }
        path
    }

    fn last_kind(&self) -> ResourceKind {
        self.steps.last().map_or(ResourceKind::Account, |(kind, _)| *kind)
    }

    /// The link without its feed and without encoding.
    fn owner_text(&self) -> String {
        let steps: Vec<_> = self.steps().map(|(kind, id)| format!("{}/{id}", kind.segment())).collect();
        steps.join("/")
    }
}

/// The link without encoding and without slashes at its ends: `dbs/db/colls/c/docs`.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner_text();
        f.write_str(&owner)?;
        match self.feed {
            Some(kind) if owner.is_empty() => f.write_str(kind.segment()),
            Some(kind) => write!(f, "/{}", kind.segment()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for InvalidLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Request url is invalid")
    }
}

impl std::error::Error for InvalidLink {}

/// Text behind a percent-encoding. A plus stays a plus. `None` when an escape is broken or the bytes
/// are not UTF-8.
#[must_use]
pub fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        bytes.push(hex_digit(*high)? << 4 | hex_digit(*low)?);
        rest = after;
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Appends a path segment with all but unreserved characters percent-encoded.
pub fn percent_encode(path: &mut String, segment: &str) {
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            path.push('%');
            path.push(char::from(HEX[usize::from(byte >> 4)]));
            path.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_into_kind_and_ids() {
        // path, kind, feed, text
        let cases = [
            ("/", ResourceKind::Account, false, ""),
            ("", ResourceKind::Account, false, ""),
            ("/dbs", ResourceKind::Database, true, "dbs"),
            ("/dbs/", ResourceKind::Database, true, "dbs"),
            ("/dbs/My%20Db", ResourceKind::Database, false, "dbs/My Db"),
            ("/dbs/a/colls/b/docs", ResourceKind::Document, true, "dbs/a/colls/b/docs"),
            ("/dbs/a/colls/b/docs/%E6%97%A5%2F1", ResourceKind::Document, false, "dbs/a/colls/b/docs/日/1"),
            ("/dbs/a/colls/b/pkranges", ResourceKind::PartitionKeyRange, true, "dbs/a/colls/b/pkranges"),
            ("/offers/abcd", ResourceKind::Offer, false, "offers/abcd"),
            ("/dbs/a/users/u/permissions/p", ResourceKind::Permission, false, "dbs/a/users/u/permissions/p"),
            ("//dbs", ResourceKind::Account, false, "invalid"),
            ("/colls", ResourceKind::Account, false, "invalid"),
            ("/dbs/a/docs", ResourceKind::Account, false, "invalid"),
            ("/dbs/a/nothing", ResourceKind::Account, false, "invalid"),
            ("/dbs/%zz", ResourceKind::Account, false, "invalid"),
            ("/dbs/%ff", ResourceKind::Account, false, "invalid"),
        ];
        for (path, kind, is_feed, text) in cases {
            match Link::parse(path) {
                Ok(link) => assert_eq!(
                    (link.kind(), link.is_feed(), link.to_string().as_str()),
                    (kind, is_feed, text),
                    "{path}"
                ),
                Err(InvalidLink) => assert_eq!(text, "invalid", "{path}"),
            }
        }
    }

    #[test]
    fn a_signature_covers_the_owner_of_a_feed_and_the_resource_itself() {
        // path, type, link; as the Python, JavaScript and Rust SDKs sign
        let cases = [
            ("/", "", ""),
            ("/dbs", "dbs", ""),
            ("/dbs/ToDo", "dbs", "dbs/ToDo"),
            ("/dbs/ToDo/colls", "colls", "dbs/ToDo"),
            ("/dbs/ToDo/colls/C/docs", "docs", "dbs/ToDo/colls/C"),
            ("/dbs/ToDo/colls/C/docs/a%20b", "docs", "dbs/ToDo/colls/C/docs/a b"),
            ("/dbs/ToDo/colls/C/pkranges", "pkranges", "dbs/ToDo/colls/C"),
            ("/dbs/ToDo/colls/C/operations/partitionkeydelete", "partitionkey", "dbs/ToDo/colls/C"),
            ("/offers", "offers", ""),
            ("/offers/UFp3", "offers", "ufp3"),
            ("/dbs/DJB7AA==/colls/DJB7AI1lZHo=/docs", "docs", "djb7ai1lzho="),
        ];
        for (path, kind, text) in cases {
            let link = Link::parse(path).unwrap();
            assert_eq!((link.signed_type(), link.signed_link().as_str()), (kind, text), "{path}");
        }
    }

    #[test]
    fn links_are_built_and_encoded() {
        let link = Link::container("My Db", "c/1").child(ResourceKind::Document, "日+%");
        assert_eq!(link.to_path(), "/dbs/My%20Db/colls/c%2F1/docs/%E6%97%A5%2B%25");
        assert_eq!(Link::parse(&link.to_path()), Ok(link.clone()));
        assert_eq!(link.parent().to_string(), "dbs/My Db/colls/c/1");
        assert_eq!(link.parent().feed(ResourceKind::Document).to_path(), "/dbs/My%20Db/colls/c%2F1/docs");
        assert_eq!(link.id_of(ResourceKind::Container), Some("c/1"));
        assert_eq!(Link::account().to_path(), "/");
    }

    #[test]
    fn a_database_rid_makes_the_link_rid_based() {
        assert_eq!(Link::database("DJB7AA==").addressing(), Addressing::Rid);
        for name in ["db", "DJB7AA=", "longer-name", "DJB7AI1lZHo="] {
            assert_eq!(Link::database(name).addressing(), Addressing::Name, "{name}");
        }
    }
}
