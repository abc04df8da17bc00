//! The account key, signing with it, and checking what others signed.
//!
//! The authorization header is the URL-encoding of `type=master&ver=1.0&sig=<base64>`, where the
//! signature is an HMAC-SHA256 over five lines; see [`Signable`]. SDKs differ in how much they
//! percent-encode, so reading is lenient and writing follows the strictest of them.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// An account key, ready to sign. Its `Debug` shows nothing of it.
#[derive(Clone)]
pub struct Key {
    /// HMAC state after the key block, so that a signature costs only its message.
    mac: Hmac<Sha256>,
}

/// The key text is not base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidKey;

/// What a signature covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signable<'a> {
    /// HTTP method in any case.
    pub verb: &'a str,
    /// `dbs`, `colls`, `docs`, ...; empty for the account itself.
    pub resource_type: &'a str,
    /// Link without leading or trailing slash and without percent-encoding: the resource itself, or
    /// the parent for feeds and creates. Taken as it is: a caller that signs a resource id passes it
    /// in lower case.
    pub resource_link: &'a str,
    /// Value of `x-ms-date`, empty when absent.
    pub x_ms_date: &'a str,
    /// Value of `date`, which counts only where `x-ms-date` is absent; else empty.
    pub date: &'a str,
}

impl<'a> Signable<'a> {
    /// A request that carries `x-ms-date`, as every SDK does.
    #[must_use]
    pub const fn new(
        verb: &'a str,
        resource_type: &'a str,
        resource_link: &'a str,
        x_ms_date: &'a str,
    ) -> Self {
        Self { verb, resource_type, resource_link, x_ms_date, date: "" }
    }

    /// The five lines that are signed, each with its line feed.
    #[must_use]
    pub fn string_to_sign(&self) -> String {
        let mut text = String::with_capacity(
            self.verb.len() + self.resource_type.len() + self.resource_link.len() + self.x_ms_date.len() + 16,
        );
        push_lower(&mut text, self.verb);
        push_lower(&mut text, self.resource_type);
        text.push_str(self.resource_link);
        text.push('\n');
        push_lower(&mut text, self.x_ms_date);
        push_lower(&mut text, self.date);
        text
    }
}

impl Key {
    /// Reads a key as the portal shows it.
    ///
    /// # Errors
    /// When the text is not base64.
    pub fn from_base64(text: &str) -> Result<Self, InvalidKey> {
        let bytes = STANDARD.decode(text.trim()).map_err(|_| InvalidKey)?;
        Self::from_bytes(&bytes)
    }

    /// A key from its raw bytes.
    ///
    /// # Errors
    /// When there are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidKey> {
        if bytes.is_empty() {
            return Err(InvalidKey);
        }
        let mac = Hmac::<Sha256>::new_from_slice(bytes).map_err(|_| InvalidKey)?;
        Ok(Self { mac })
    }

    /// Base64 signature of a request.
    #[must_use]
    pub fn sign(&self, request: &Signable<'_>) -> String {
        STANDARD.encode(self.digest(request))
    }

    /// Value of the authorization header for a request.
    #[must_use]
    pub fn authorization(&self, request: &Signable<'_>) -> String {
        let mut header = String::with_capacity(96);
        header.push_str("type%3Dmaster%26ver%3D1.0%26sig%3D");
        for character in self.sign(request).chars() {
            match character {
                '+' => header.push_str("%2B"),
                '/' => header.push_str("%2F"),
                '=' => header.push_str("%3D"),
                _ => header.push(character),
            }
        }
        header
    }

    /// Whether a base64 signature belongs to this request, in time that does not tell how nearly.
    #[must_use]
    pub fn verify(&self, request: &Signable<'_>, signature: &str) -> bool {
        STANDARD
            .decode(signature)
            .is_ok_and(|given| bool::from(self.digest(request).as_slice().ct_eq(&given)))
    }

    fn digest(&self, request: &Signable<'_>) -> [u8; 32] {
        let mut mac = self.mac.clone();
        mac.update(request.string_to_sign().as_bytes());
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(redacted)")
    }
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the account key is not base64: copy the whole key, with its trailing `=` signs")
    }
}

impl std::error::Error for InvalidKey {}

/// A parsed authorization header.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization {
    /// What kind of token it is.
    pub kind: TokenKind,
    /// Token version, `1.0` today.
    pub version: String,
    /// Signature, resource token or bearer token.
    pub signature: String,
}

/// Kinds of authorization token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Signed with an account key.
    Master,
    /// A token of a permission resource.
    Resource,
    /// A bearer token of the identity provider.
    Aad,
    /// A shared-access signature.
    Sas,
}

/// The authorization header has no known type, or lacks a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidAuthorization;

impl Authorization {
    /// Reads a header value in any of the SDKs' encodings, or not encoded at all.
    ///
    /// # Errors
    /// When a part is missing or the type is unknown.
    pub fn parse(header: &str) -> Result<Self, InvalidAuthorization> {
        let decoded = crate::resource::percent_decode(header.trim()).ok_or(InvalidAuthorization)?;
        let (mut kind, mut version, mut rest) = (None, None, &*decoded);
        loop {
            if let Some(signature) = strip_prefix_ignore_case(rest, "sig=") {
                // A form-encoded plus reads as a space; base64 has none.
                let signature = signature.replace(' ', "+");
                let (kind, version) =
                    (kind.ok_or(InvalidAuthorization)?, version.ok_or(InvalidAuthorization)?);
                return if signature.is_empty() {
                    Err(InvalidAuthorization)
                } else {
                    Ok(Self { kind, version, signature })
                };
            }
            let (part, after) = rest.split_once('&').ok_or(InvalidAuthorization)?;
            if let Some(name) = strip_prefix_ignore_case(part, "type=") {
                kind = Some(TokenKind::parse(name).ok_or(InvalidAuthorization)?);
            } else if let Some(value) = strip_prefix_ignore_case(part, "ver=") {
                version = Some(value.to_owned());
            }
            rest = after;
        }
    }
}

impl TokenKind {
    fn parse(name: &str) -> Option<Self> {
        [("master", Self::Master), ("resource", Self::Resource), ("aad", Self::Aad), ("sas", Self::Sas)]
            .into_iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, kind)| kind)
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorization({:?}, {}, redacted)", self.kind, self.version)
    }
}

impl fmt::Display for InvalidAuthorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the authorization header must be the URL-encoding of `type=..&ver=..&sig=..`")
    }
}

impl std::error::Error for InvalidAuthorization {}

fn push_lower(text: &mut String, line: &str) {
    let start = text.len();
    text.push_str(line);
    text[start..].make_ascii_lowercase();
    text.push('\n');
}

fn strip_prefix_ignore_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (head, tail) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key, date and signature of the worked example in Microsoft's page "Access control in the
    /// Azure Cosmos DB SQL API".
    const DOCS_KEY: &str =
        "dsZQi3KtZmCv1ljt3VNWNm7sQUF1y5rJfC6kv5JiwvW0EndXdDku/dkKBp8/ufDToSxLzR4y+O/0H/t4bQtVNw==";
    const DOCS_REQUEST: Signable<'static> =
        Signable::new("GET", "dbs", "dbs/ToDoList", "Thu, 27 Apr 2017 00:51:12 GMT");
    const DOCS_SIGNATURE: &str = "c09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu+c+c=";

    #[test]
    fn the_documented_example_gives_the_documented_signature() {
        let key = Key::from_base64(DOCS_KEY).unwrap();
        assert_eq!(
            DOCS_REQUEST.string_to_sign(),
            "get\ndbs\ndbs/ToDoList\nthu, 27 apr 2017 00:51:12 gmt\n\n"
        );
        assert_eq!(key.sign(&DOCS_REQUEST), DOCS_SIGNATURE);
        assert_eq!(
            key.authorization(&DOCS_REQUEST),
            "type%3Dmaster%26ver%3D1.0%26sig%3Dc09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu%2Bc%2Bc%3D"
        );
        assert!(key.verify(&DOCS_REQUEST, DOCS_SIGNATURE));
    }

    #[test]
    fn anything_else_does_not_verify() {
        let key = Key::from_base64(DOCS_KEY).unwrap();
        let other_key = Key::from_base64(crate::EMULATOR_KEY).unwrap();
        let other_request = Signable { resource_link: "dbs/todolist", ..DOCS_REQUEST };
        assert!(!other_key.verify(&DOCS_REQUEST, DOCS_SIGNATURE));
        assert!(!key.verify(&other_request, DOCS_SIGNATURE), "names keep their case");
        for wrong in ["", "c09P", "not base64", "d09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu+c+c="] {
            assert!(!key.verify(&DOCS_REQUEST, wrong), "{wrong}");
        }
    }

    #[test]
    fn headers_of_all_sdks_are_read() {
        let cases = [
            // documentation and Python, hexadecimal in either case
            "type%3dmaster%26ver%3d1.0%26sig%3dc09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu%2bc%2bc%3d",
            // JavaScript and Rust
            "type%3Dmaster%26ver%3D1.0%26sig%3Dc09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu%2Bc%2Bc%3D",
            // not encoded
            "type=master&ver=1.0&sig=c09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu+c+c=",
            // a proxy that decoded plus as space
            "type=master&ver=1.0&sig=c09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu c c=",
            "Type=Master&Ver=1.0&Sig=c09PEVJrgp2uQRkr934kFbTqhByc7TVr3OHyqlu+c+c=",
        ];
        for header in cases {
            let parsed = Authorization::parse(header).unwrap();
            assert_eq!(parsed.kind, TokenKind::Master, "{header}");
            assert_eq!(parsed.version, "1.0", "{header}");
            assert_eq!(parsed.signature, DOCS_SIGNATURE, "{header}");
        }
        let aad = Authorization::parse("type%3Daad%26ver%3D1.0%26sig%3DeyJ0.eyJh.c2ln").unwrap();
        assert_eq!((aad.kind, aad.signature.as_str()), (TokenKind::Aad, "eyJ0.eyJh.c2ln"));
    }

    #[test]
    fn a_broken_header_is_refused() {
        for header in [
            "",
            "Bearer x",
            "type=master",
            "type=master&ver=1.0",
            "type=master&ver=1.0&sig=",
            "ver=1.0&sig=a",
            "type=odd&ver=1.0&sig=a",
            "%zz",
            "%ff%fe",
        ] {
            assert_eq!(Authorization::parse(header), Err(InvalidAuthorization), "{header}");
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let key = Key::from_base64(DOCS_KEY).unwrap();
        assert_eq!(format!("{key:?}"), "Key(redacted)");
        let header = Authorization::parse("type=master&ver=1.0&sig=c2VjcmV0").unwrap();
        assert!(!format!("{header:?}").contains("c2VjcmV0"));
        assert_eq!(Key::from_base64("***").unwrap_err(), InvalidKey);
        assert_eq!(Key::from_base64("").unwrap_err(), InvalidKey);
    }
}
