//! The codec of one provider, and the form in which sealed payloads are stored: `$cdb1$<key id>$<base64>$`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use duroxide::Event;
use duroxide::providers::{KvEntry, OrchestrationItem, ProviderError, WorkItem};

use super::payload;
use super::{CodecError, OpenError, PayloadCodec};

/// Seals and opens at the edge of a provider.
#[derive(Debug, Default)]
pub(crate) struct Seal {
    codec: Option<Arc<dyn PayloadCodec>>,
    /// Whether what cannot be opened is handed out as it is.
    shows_sealed: bool,
    /// How often in a row something of an instance could not be opened here.
    failures: Mutex<HashMap<String, u32>>,
}

impl Seal {
    pub(crate) fn new(codec: Option<Arc<dyn PayloadCodec>>, shows_sealed: bool) -> Self {
        Self { codec, shows_sealed, ..Self::default() }
    }

    /// Seals the payloads of events.
    pub(crate) fn events(
        &self,
        operation: &str,
        mut events: Vec<Event>,
    ) -> Result<Vec<Event>, ProviderError> {
        let Some(codec) = &self.codec else { return Ok(events) };
        for event in &mut events {
            let is_known = payload::of_event(&mut event.kind, &mut |text| seal(codec.as_ref(), text));
            known(operation, is_known)?;
        }
        Ok(events)
    }

    /// Seals the payloads of messages and activities.
    pub(crate) fn items(
        &self,
        operation: &str,
        mut items: Vec<WorkItem>,
    ) -> Result<Vec<WorkItem>, ProviderError> {
        let Some(codec) = &self.codec else { return Ok(items) };
        for item in &mut items {
            known(operation, payload::of_item(item, &mut |text| seal(codec.as_ref(), text)))?;
        }
        Ok(items)
    }

    /// Seals the payload of one message or activity.
    pub(crate) fn item(&self, operation: &str, item: WorkItem) -> Result<WorkItem, ProviderError> {
        let mut items = self.items(operation, vec![item])?;
        items.pop().ok_or_else(|| ProviderError::permanent(operation, "There is nothing to store."))
    }

    /// Seals a text.
    pub(crate) fn text(
        &self,
        operation: &str,
        text: Option<String>,
    ) -> Result<Option<String>, ProviderError> {
        let (Some(codec), Some(mut text)) = (&self.codec, text.clone()) else { return Ok(text) };
        seal(codec.as_ref(), &mut text).map_err(|error| refused(operation, &error))?;
        Ok(Some(text))
    }

    /// Opens the payloads of events.
    pub(crate) fn opened_events(
        &self,
        operation: &str,
        mut events: Vec<Event>,
    ) -> Result<Vec<Event>, ProviderError> {
        for event in &mut events {
            self.open_event(event).map_err(|error| refused(operation, &error))?;
        }
        Ok(events)
    }

    /// Opens a text.
    pub(crate) fn opened(
        &self,
        operation: &str,
        text: Option<String>,
    ) -> Result<Option<String>, ProviderError> {
        let Some(mut text) = text else { return Ok(None) };
        self.open(&mut text).map_err(|error| refused(operation, &error))?;
        Ok(Some(text))
    }

    /// Opens everything that a turn is about.
    pub(crate) fn open_turn(&self, turn: &mut OrchestrationItem) -> Result<(), CodecError> {
        turn.history.iter_mut().try_for_each(|event| self.open_event(event))?;
        turn.messages.iter_mut().try_for_each(|item| self.open_item(item))?;
        turn.kv_snapshot.values_mut().try_for_each(|KvEntry { value, .. }| self.open(value))?;
        self.is_open(&turn.instance);
        Ok(())
    }

    /// Opens the payload of a message or activity.
    pub(crate) fn open_item(&self, item: &mut WorkItem) -> Result<(), CodecError> {
        payload::of_item(item, &mut |text| self.open(text)).map(drop)
    }

    fn open_event(&self, event: &mut Event) -> Result<(), CodecError> {
        payload::of_event(&mut event.kind, &mut |text| self.open(text)).map(drop)
    }

    fn open(&self, text: &mut String) -> Result<(), CodecError> {
        match open_payload(self.codec.as_deref(), text) {
            Ok(Some(open)) => *text = open,
            Ok(None) => {}
            Err(_) if self.shows_sealed => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// How long something of an instance is left alone that could not be opened here: longer each time. Another process,
    /// or the next start of this one, may have the key.
    pub(crate) fn parks_for(&self, instance: &str) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() > PARKED_MAX {
            failures.clear();
        }
        let times = failures.entry(instance.to_owned()).or_default();
        *times = times.saturating_add(1);
        PARKED_FOR.saturating_mul(1 << (*times - 1).min(16)).min(PARKED_FOR_MAX)
    }

    fn is_open(&self, instance: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.remove(instance);
    }
}

/// The id of the key that a stored payload is sealed with, if it is.
#[must_use]
pub fn sealed_with(text: &str) -> Option<&str> {
    split(text).map(|(key_id, _)| key_id)
}

/// Opens a stored payload. `None` if it is not sealed: it was stored before there was a codec.
///
/// # Errors
/// When there is no codec, it does not have the key, or the payload is damaged.
pub fn open_payload(codec: Option<&dyn PayloadCodec>, text: &str) -> Result<Option<String>, CodecError> {
    let Some((key_id, sealed)) = split(text) else { return Ok(None) };
    let fail = |cause| CodecError { key_id: key_id.to_owned(), cause, has_codec: codec.is_some() };
    let codec = codec.ok_or_else(|| fail(OpenError::UnknownKey))?;
    let sealed = STANDARD_NO_PAD.decode(sealed).map_err(|_| fail(OpenError::Damaged))?;
    let open = codec.open(key_id, &sealed).map_err(fail)?;
    String::from_utf8(open).map(Some).map_err(|_| fail(OpenError::Damaged))
}

fn split(text: &str) -> Option<(&str, &str)> {
    let (key_id, sealed) = text.strip_prefix(PREFIX)?.strip_suffix('$')?.split_once('$')?;
    let is_base64 = sealed.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/');
    (is_key_id(key_id) && is_base64).then_some((key_id, sealed))
}

fn seal(codec: &dyn PayloadCodec, text: &mut String) -> Result<(), CodecError> {
    let key_id = codec.key_id();
    let fail = |cause| CodecError { key_id: key_id.to_owned(), cause, has_codec: true };
    if !is_key_id(key_id) {
        return Err(fail(OpenError::UnknownKey));
    }
    let sealed = codec.seal(text.as_bytes()).map_err(fail)?;
    *text = format!("{PREFIX}{key_id}${}$", STANDARD_NO_PAD.encode(sealed));
    Ok(())
}

/// Whether something can be the id of a key.
pub(super) fn is_key_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=KEY_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_allowed)
}

/// What nobody here knows is not stored in the clear.
fn known(operation: &str, is_known: Result<bool, CodecError>) -> Result<(), ProviderError> {
    match is_known {
        Ok(true) => Ok(()),
        Ok(false) => {
            let sentence = "This is of a kind whose payload the codec cannot find, so it is not stored.";
            Err(ProviderError::permanent(operation, sentence))
        }
        Err(error) => Err(refused(operation, &error)),
    }
}

fn refused(operation: &str, error: &CodecError) -> ProviderError {
    ProviderError::permanent(operation, error.to_string())
}

const PREFIX: &str = "$cdb1$";
const KEY_ID_BYTES_MAX: usize = 64;
const PARKED_FOR: Duration = Duration::from_secs(5);
const PARKED_FOR_MAX: Duration = Duration::from_secs(300);
const PARKED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns the bytes round.
    #[derive(Debug)]
    struct Backwards(&'static str);

    impl PayloadCodec for Backwards {
        fn key_id(&self) -> &str {
            self.0
        }
        fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, OpenError> {
            Ok(payload.iter().rev().copied().collect())
        }
        fn open(&self, key_id: &str, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
            if key_id == self.0 { self.seal(sealed) } else { Err(OpenError::UnknownKey) }
        }
    }

    #[test]
    fn a_payload_comes_back_and_one_from_before_the_codec_is_left_as_it_is() {
        let seal = Seal::new(Some(Arc::new(Backwards("k.1"))), false);
        for plain in ["", "card 4111", "é\u{0}$cdb1$x$y$"] {
            let sealed = seal.text("t", Some(plain.to_owned())).unwrap().unwrap();
            assert_eq!(sealed_with(&sealed), Some("k.1"), "{sealed}");
            assert_eq!(seal.opened("t", Some(sealed)).unwrap().as_deref(), Some(plain));
        }
        for plain in ["old", "$cdb1$", "$cdb1$a b$AA$", "$cdb1$k$A A$", "$cdb1$$AA$", "$cdb1$k$AA"] {
            assert_eq!(seal.opened("t", Some(plain.to_owned())).unwrap().as_deref(), Some(plain));
        }
        assert_eq!(seal.opened("t", None).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_opened_names_the_key() {
        let stored =
            Seal::new(Some(Arc::new(Backwards("k1"))), false).text("t", Some("x".to_owned())).unwrap();
        for seal in [Seal::default(), Seal::new(Some(Arc::new(Backwards("k2"))), false)] {
            let error = seal.opened("t", stored.clone()).unwrap_err();
            assert!(!error.retryable && error.message.contains("\"k1\""), "{error}");
        }
        let looking = Seal::new(None, true);
        assert_eq!(looking.opened("t", stored.clone()).unwrap(), stored, "who looks sees what is stored");
        let no_id = Seal::new(Some(Arc::new(Backwards("not a key id"))), false);
        assert!(
            no_id.text("t", Some("x".to_owned())).is_err(),
            "nothing is stored that could not be found again"
        );
    }

    #[test]
    fn what_cannot_be_opened_is_left_alone_longer_each_time() {
        let seal = Seal::default();
        let seconds: Vec<u64> = (0..8).map(|_| seal.parks_for("a").as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300]);
        seal.is_open("a");
        assert_eq!(seal.parks_for("a").as_secs(), 5);
    }
}
