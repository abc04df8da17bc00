//! Payloads that the provider's codec has sealed, for those who look at them.
//!
//! Without a key everything works on what is stored: lists, `fsck`, `export`. With one, what is shown is opened; what is
//! written back is never opened on the way.

use std::sync::{Arc, OnceLock};

use duroxide_cdb::{AesGcmCodec, PayloadCodec, open_payload};

use crate::exit::Problem;
use crate::secret::Secret;

static CODEC: OnceLock<Arc<AesGcmCodec>> = OnceLock::new();

/// What was typed or set. The first call counts.
pub(crate) fn set_keys(keys: Option<&Secret>) -> Result<(), Problem> {
    let Some(keys) = keys.map(Secret::reveal).filter(|keys| !keys.trim().is_empty()) else { return Ok(()) };
    let from_file = keys.strip_prefix('@').map(|path| {
        std::fs::read_to_string(path).map_err(|error| Problem::Usage(format!("--codec-key: {path}: {error}")))
    });
    let text = from_file.transpose()?;
    // A file has a key on each line.
    let text = text.as_deref().unwrap_or(keys).lines().collect::<Vec<_>>().join(",");
    let codec = text.parse().map_err(|error| Problem::Usage(format!("--codec-key: {error}")))?;
    let _ = CODEC.set(Arc::new(codec));
    Ok(())
}

/// The codec of this process, if it was given keys.
pub(crate) fn codec() -> Option<Arc<dyn PayloadCodec>> {
    CODEC.get().map(|codec| Arc::clone(codec) as Arc<dyn PayloadCodec>)
}

/// A stored payload as it is shown.
pub(crate) fn shown(text: String) -> String {
    shown_with(codec().as_deref(), text)
}

fn shown_with(codec: Option<&dyn PayloadCodec>, text: String) -> String {
    match open_payload(codec, &text) {
        Ok(Some(open)) => open,
        // Lists ask for the beginning of a text only.
        Ok(None) if text.starts_with(PREFIX) => sealed(text.split('$').nth(2).unwrap_or_default()),
        Ok(None) => text,
        Err(error) => sealed(error.key_id()),
    }
}

fn sealed(key_id: &str) -> String {
    format!("(sealed with the key {key_id})")
}

const PREFIX: &str = "$cdb1$";

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "k1=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const STORED: &str = "$cdb1$k1$SHi/FB3JYq8PU7NXWb/dDdowbhQ3ApvMMfxkZWZnaGlqa2xtbm8$";

    #[test]
    fn what_cannot_be_opened_is_shown_as_sealed() {
        let codec: AesGcmCodec = KEY.parse().expect("a key of 32 bytes");
        // Made with another library, so that both sides cannot be wrong together.
        let stored = STORED.to_owned();
        assert_eq!(shown_with(Some(&codec), stored.clone()), "card 4111");
        assert_eq!(shown_with(None, stored.clone()), "(sealed with the key k1)");
        assert_eq!(shown_with(Some(&codec), stored[..20].to_owned()), "(sealed with the key k1)");
        assert_eq!(shown_with(None, "plain".to_owned()), "plain");
    }
}
