//! Payloads that are sealed before they are stored: compressed, encrypted, or whatever a codec does.
//!
//! Worked example. `client.start_orchestration("o-1", "order", "card 4111")` with a codec whose key is `k2`:
//! [`enqueue_for_orchestrator`](duroxide::providers::Provider::enqueue_for_orchestrator) gets the input `card 4111` and stores
//! `$cdb1$k2$jF0…$`. Everything inside the provider sees only that text: caches, plans, pieces, tombstones. When a runtime
//! fetches the turn, the last step before it is handed over opens the text again.
//!
//! So the codec is at the edge of the provider and nowhere else. What is sealed are payloads: inputs, results, errors, data
//! of events, values, custom statuses, reasons. Ids, names, versions, keys of key-values, tags, sessions and times stay as
//! they are: queries, `cdb` and `fsck` need them, and work without the key.

#[cfg(feature = "aes-gcm")]
mod aes_gcm;
mod payload;
mod seal;

use std::fmt;

#[cfg(feature = "aes-gcm")]
pub use aes_gcm::AesGcmCodec;
pub(crate) use seal::Seal;
pub use seal::{open_payload, sealed_with};

/// Turns payloads into what is stored, and back.
///
/// A codec seals with one key and opens with all that it knows, told by their ids: a new key is given to all processes
/// first, then sealed with; an old one is dropped when nothing is stored any more that needs it.
pub trait PayloadCodec: Send + Sync + fmt::Debug {
    /// The id of the key that payloads are sealed with: up to 64 letters, digits, `-`, `_` and `.`.
    fn key_id(&self) -> &str;

    /// Seals a payload with that key.
    ///
    /// # Errors
    /// When it cannot be sealed; the call that wanted to store it fails then.
    fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, OpenError>;

    /// Opens what was sealed with a key.
    ///
    /// # Errors
    /// [`OpenError::UnknownKey`] if this codec does not have the key, [`OpenError::Damaged`] if the key does not fit.
    fn open(&self, key_id: &str, sealed: &[u8]) -> Result<Vec<u8>, OpenError>;
}

/// Why a payload cannot be sealed or opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such key here.
    UnknownKey,
    /// The key is there, and the payload is not what was sealed with it.
    Damaged,
}

/// A payload that cannot be sealed or opened: with which key, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecError {
    key_id: String,
    cause: OpenError,
    has_codec: bool,
}

impl CodecError {
    /// The key that is missing or does not fit.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key_id;
        match (&self.cause, self.has_codec) {
            (OpenError::UnknownKey, true) => {
                write!(
                    f,
                    "A payload is sealed with the key {key:?}, which this process's codec does not have."
                )
            }
            (OpenError::UnknownKey, false) => {
                write!(f, "A payload is sealed with the key {key:?}, and this process has no codec.")
            }
            (OpenError::Damaged, _) => {
                write!(
                    f,
                    "A payload that should fit the key {key:?} does not: it is damaged, or the key is another."
                )
            }
        }
    }
}

impl std::error::Error for CodecError {}
