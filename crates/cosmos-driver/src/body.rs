//! What is sent, as bytes.

use bytes::Bytes;
use serde::Serialize;

use crate::error::Error;

/// A value as the JSON that is sent.
pub(crate) fn json(value: &impl Serialize) -> Result<Bytes, Error> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|e| Error::serialization("the value cannot be written as JSON", e))
}
