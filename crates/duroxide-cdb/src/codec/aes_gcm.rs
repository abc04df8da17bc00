//! AES-256-GCM: each payload under a nonce of its own, authenticated together with the id of its key.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::seal::is_key_id;
use super::{OpenError, PayloadCodec};

/// Encrypts payloads with AES-256-GCM, under keys that are told apart by their ids.
///
/// Payloads over half a kilobyte are compressed first, unless that is switched off: how well something can be compressed
/// shows in its length, which matters where somebody can choose a part of a payload and see the length of the whole. Nonces
/// are random: use a key for some billions of payloads at most, then take the next one.
///
/// ```
/// use duroxide_cdb::{AesGcmCodec, PayloadCodec as _};
///
/// let codec: AesGcmCodec = "2026-11=BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=".parse()?;
/// let sealed = codec.seal(b"card 4111").unwrap();
/// assert_eq!(codec.open("2026-11", &sealed).unwrap(), b"card 4111");
/// # Ok::<(), String>(())
/// ```
pub struct AesGcmCodec {
    keys: BTreeMap<String, RandomizedNonceKey>,
    current: String,
    compresses: bool,
}

impl AesGcmCodec {
    /// A codec that seals with a key and opens what was sealed with it.
    ///
    /// # Errors
    /// When the id is not one that can be stored.
    pub fn new(id: &str, key: &[u8; KEY_BYTES]) -> Result<Self, String> {
        let none = Self { keys: BTreeMap::new(), current: id.to_owned(), compresses: true };
        none.with_key(id, key)
    }

    /// The same, opening also what was sealed with another key.
    ///
    /// # Errors
    /// When the id is not one that can be stored, or has a key already.
    pub fn with_key(mut self, id: &str, key: &[u8; KEY_BYTES]) -> Result<Self, String> {
        if !is_key_id(id) {
            return Err(format!(
                "{id:?} cannot be the id of a key: use up to 64 letters, digits, - _ and a dot."
            ));
        }
        let key =
            RandomizedNonceKey::new(&AES_256_GCM, key).map_err(|_| "The key cannot be used.".to_owned())?;
        if self.keys.insert(id.to_owned(), key).is_some() {
            return Err(format!("There are two keys {id:?}."));
        }
        Ok(self)
    }

    /// The same, without compressing anything.
    #[must_use]
    pub fn without_compression(mut self) -> Self {
        self.compresses = false;
        self
    }
}

/// `id=base64`, several with commas between them: it seals with the first. A key has 32 bytes.
impl std::str::FromStr for AesGcmCodec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut codec: Option<Self> = None;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            // What is between the commas may be a key: it is not repeated in an error.
            let parts = part.split_once('=').filter(|(_, key)| !key.is_empty());
            let (id, key) = parts.ok_or("A key is written ID=BASE64.")?;
            let wrong = || format!("The key {id:?} is not {KEY_BYTES} bytes in base64.");
            let bytes = STANDARD.decode(key).or_else(|_| STANDARD_NO_PAD.decode(key)).map_err(|_| wrong())?;
            let bytes: [u8; KEY_BYTES] = bytes.try_into().map_err(|_| wrong())?;
            codec = Some(match codec {
                None => Self::new(id, &bytes)?,
                Some(codec) => codec.with_key(id, &bytes)?,
            });
        }
        codec.ok_or_else(|| "There is no key.".to_owned())
    }
}

impl fmt::Debug for AesGcmCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<&String> = self.keys.keys().collect();
        f.debug_struct("AesGcmCodec")
            .field("current", &self.current)
            .field("keys", &ids)
            .finish_non_exhaustive()
    }
}

impl PayloadCodec for AesGcmCodec {
    fn key_id(&self) -> &str {
        &self.current
    }

    fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, OpenError> {
        let key = self.keys.get(&self.current).ok_or(OpenError::UnknownKey)?;
        let mut text = Vec::with_capacity(payload.len() + 1 + AES_256_GCM.tag_len() + NONCE_LEN);
        let packed = (self.compresses && payload.len() > PACKED_FROM)
            .then(|| zstd::bulk::compress(payload, PACKING_LEVEL).ok())
            .flatten()
            .filter(|packed| packed.len() < payload.len());
        match packed {
            Some(packed) => {
                text.push(PACKED);
                text.extend_from_slice(&packed);
            }
            None => {
                text.push(PLAIN);
                text.extend_from_slice(payload);
            }
        }
        let aad = Aad::from(self.current.as_bytes());
        let nonce = key.seal_in_place_append_tag(aad, &mut text).map_err(|_| OpenError::Damaged)?;
        text.extend_from_slice(nonce.as_ref());
        Ok(text)
    }

    fn open(&self, key_id: &str, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        let key = self.keys.get(key_id).ok_or(OpenError::UnknownKey)?;
        let at = sealed.len().checked_sub(NONCE_LEN).ok_or(OpenError::Damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(&sealed[at..]).map_err(|_| OpenError::Damaged)?;
        let mut text = sealed[..at].to_vec();
        let opened = key.open_in_place(nonce, Aad::from(key_id.as_bytes()), &mut text);
        match opened.map_err(|_| OpenError::Damaged)?.split_first() {
            Some((&PLAIN, payload)) => Ok(payload.to_vec()),
            Some((&PACKED, packed)) => {
                // It is authentic, so it is as large as its writer made it.
                zstd::stream::decode_all(packed).map_err(|_| OpenError::Damaged)
            }
            _ => Err(OpenError::Damaged),
        }
    }
}

const KEY_BYTES: usize = 32;
const PLAIN: u8 = 0;
const PACKED: u8 = 1;
const PACKED_FROM: usize = 512;
const PACKING_LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN_ANSWER: &[u8] = &[206, 4, 103, 165, 39, 72, 102, 12, 172, 69, 181, 86, 214, 92, 95, 220, 107];

    fn codec(text: &str) -> AesGcmCodec {
        text.parse().unwrap()
    }

    fn key(byte: u8) -> String {
        STANDARD.encode([byte; KEY_BYTES])
    }

    #[test]
    fn it_opens_what_it_sealed_and_nothing_that_was_changed() {
        let codec = codec(&format!("a={}", key(7)));
        for payload in [Vec::new(), b"x".to_vec(), vec![b'y'; 100_000]] {
            let sealed = codec.seal(&payload).unwrap();
            assert_eq!(codec.open("a", &sealed).unwrap(), payload);
            assert_ne!(codec.seal(&payload).unwrap(), sealed, "a nonce is used once");
            for at in [0, sealed.len() / 2, sealed.len() - 1] {
                let mut other = sealed.clone();
                other[at] ^= 1;
                assert_eq!(codec.open("a", &other), Err(OpenError::Damaged));
            }
        }
        assert!(codec.seal(&vec![b'y'; 100_000]).unwrap().len() < 1_000, "it is packed first");
        let plain = codec.without_compression();
        assert!(plain.seal(&vec![b'y'; 100_000]).unwrap().len() > 100_000);
        for short in [&[][..], &[0; 11], &[0; 12], &[0; 28]] {
            assert_eq!(plain.open("a", short), Err(OpenError::Damaged));
        }
    }

    #[test]
    fn a_known_answer_of_aes_gcm_is_opened() {
        // Key and nonce all zero, one zero byte, and the id of the key as what is authenticated beside it: made with
        // another library, so that a mistake in this file does not cancel out.
        let codec = codec(&format!("k={}", key(0)));
        let sealed = [KNOWN_ANSWER, &[0; NONCE_LEN]].concat();
        assert_eq!(codec.open("k", &sealed).unwrap(), b"");
    }

    #[test]
    fn keys_are_told_apart_by_their_ids() {
        let (old, new) = (format!("a={}", key(1)), format!("b={}", key(2)));
        let sealed = codec(&old).seal(b"x").unwrap();
        let both = codec(&format!("{new},{old}"));
        assert_eq!(both.key_id(), "b");
        assert_eq!(both.open("a", &sealed).unwrap(), b"x");
        assert_eq!(codec(&new).open("a", &sealed), Err(OpenError::UnknownKey));
        let swapped = codec(&format!("a={}", key(2)));
        assert_eq!(swapped.open("a", &sealed), Err(OpenError::Damaged));
        let renamed = codec(&format!("c={}", key(1)));
        assert_eq!(renamed.open("c", &sealed), Err(OpenError::Damaged), "the id is authenticated");
    }

    #[test]
    fn a_key_that_cannot_be_used_is_refused_and_never_printed() {
        let good = key(9);
        for text in
            ["", ",", "a", "a=", "a=AAAA", &format!("a b={good}"), &format!("a={good},a={good}"), &good]
        {
            let error = text.parse::<AesGcmCodec>().unwrap_err();
            assert!(!error.contains(&good[..20]), "{error}");
        }
        assert!(!format!("{:?}", codec(&format!("a={good}"))).contains(&good[..8]));
    }
}
