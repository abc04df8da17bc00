//! One write, alone or in a batch.

use bytes::Bytes;
use serde_json::Value;

use crate::documents::Document;

/// One write.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    kind: OpKind,
    id: String,
    /// JSON text, shared by all requests that send it.
    body: Option<Bytes>,
    if_match: Option<String>,
    /// What a [`Set`](OpKind::Set) sets: paths and values.
    sets: Vec<(String, Value)>,
}

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    Create,
    Upsert,
    Replace,
    Delete,
    /// Sets some properties and leaves the rest as it is.
    Set,
}

impl Op {
    /// Creates a document.
    pub(crate) fn create<T: Document>(document: &T) -> Result<Self, serde_json::Error> {
        Self::with_body(OpKind::Create, document, None)
    }

    /// Creates or overwrites a document.
    pub(crate) fn upsert<T: Document>(document: &T) -> Result<Self, serde_json::Error> {
        Self::with_body(OpKind::Upsert, document, None)
    }

    /// Overwrites the document `id`, if it has the ETag given.
    pub(crate) fn replace<T: Document>(
        id: &str,
        document: &T,
        etag: Option<&str>,
    ) -> Result<Self, serde_json::Error> {
        let op = Self::with_body(OpKind::Replace, document, etag)?;
        debug_assert_eq!(op.id, id, "a document is replaced under its own id");
        Ok(op)
    }

    /// Deletes the document `id`, if it has the ETag given.
    pub(crate) fn delete(id: &str, etag: Option<&str>) -> Self {
        Self { if_match: etag.map(ToOwned::to_owned), ..Self::bare(OpKind::Delete, id) }
    }

    /// Sets one property of the document `id`.
    pub(crate) fn set(id: &str, path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::bare(OpKind::Set, id).and_set(path, value)
    }

    /// Sets one property more.
    pub(crate) fn and_set(mut self, path: impl Into<String>, value: impl Into<Value>) -> Self {
        self.sets.push((path.into(), value.into()));
        self
    }

    /// Creates or overwrites the document whose JSON text is given.
    pub(crate) fn upsert_text(id: &str, text: &str) -> Self {
        Self { body: Some(Bytes::copy_from_slice(text.as_bytes())), ..Self::bare(OpKind::Upsert, id) }
    }

    /// Overwrites the document `id` with the JSON text given, if it has the ETag given.
    pub(crate) fn replace_text(id: &str, text: &str, etag: &str) -> Self {
        let if_match = Some(etag.to_owned());
        let body = Some(Bytes::copy_from_slice(text.as_bytes()));
        Self { body, if_match, ..Self::bare(OpKind::Replace, id) }
    }

    /// Creates the document whose JSON text is given.
    pub(crate) fn create_text(id: &str, text: String) -> Self {
        Self { body: Some(text.into()), ..Self::bare(OpKind::Create, id) }
    }

    /// The same write on condition of an ETag.
    pub(crate) fn on(mut self, etag: &str) -> Self {
        self.if_match = Some(etag.to_owned());
        self
    }

    pub(crate) fn if_match(&self) -> Option<&str> {
        self.if_match.as_deref()
    }

    /// Whether it is refused when the document is not as the writer believes.
    pub(crate) fn is_conditional(&self) -> bool {
        self.kind == OpKind::Create || self.if_match.is_some()
    }

    /// What a [`Set`](OpKind::Set) sets.
    pub(crate) fn sets(&self) -> &[(String, Value)] {
        &self.sets
    }

    pub(crate) fn kind(&self) -> OpKind {
        self.kind
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The JSON text of the document, if it is sent as a whole.
    pub(crate) fn body(&self) -> Option<&Bytes> {
        self.body.as_ref()
    }

    /// Bytes it adds to a request.
    pub(crate) fn len(&self) -> usize {
        OPERATION_BYTES + self.id.len() + self.body.as_ref().map_or(0, Bytes::len)
    }

    fn with_body<T: Document>(
        kind: OpKind,
        document: &T,
        etag: Option<&str>,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            body: Some(serde_json::to_vec(document)?.into()),
            if_match: etag.map(ToOwned::to_owned),
            ..Self::bare(kind, document.id())
        })
    }

    fn bare(kind: OpKind, id: &str) -> Self {
        Self { kind, id: id.to_owned(), body: None, if_match: None, sets: Vec::new() }
    }
}

/// Room for the wrapping of one operation in a batch.
const OPERATION_BYTES: usize = 160;
