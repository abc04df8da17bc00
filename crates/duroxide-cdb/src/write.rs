//! One write, alone or in a batch.

use crate::documents::Document;

/// One write.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    kind: OpKind,
    id: String,
    body: Option<String>,
    if_match: Option<String>,
}

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    Create,
    Upsert,
    Replace,
    Delete,
    /// Sets one number and leaves the rest as it is.
    Set {
        path: &'static str,
        value: u64,
    },
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
        Self { kind: OpKind::Delete, id: id.to_owned(), body: None, if_match: etag.map(ToOwned::to_owned) }
    }

    /// Sets one number of the document `id`.
    pub(crate) fn set(id: &str, path: &'static str, value: u64) -> Self {
        Self { kind: OpKind::Set { path, value }, id: id.to_owned(), body: None, if_match: None }
    }

    /// Creates or overwrites the document whose JSON text is given.
    pub(crate) fn upsert_text(id: &str, text: &str) -> Self {
        Self { kind: OpKind::Upsert, id: id.to_owned(), body: Some(text.to_owned()), if_match: None }
    }

    /// Overwrites the document `id` with the JSON text given, if it has the ETag given.
    pub(crate) fn replace_text(id: &str, text: &str, etag: &str) -> Self {
        let if_match = Some(etag.to_owned());
        Self { kind: OpKind::Replace, id: id.to_owned(), body: Some(text.to_owned()), if_match }
    }

    /// Creates the document whose JSON text is given.
    pub(crate) fn create_text(id: &str, text: &str) -> Self {
        Self { kind: OpKind::Create, id: id.to_owned(), body: Some(text.to_owned()), if_match: None }
    }

    /// The same write on condition of an ETag.
    pub(crate) fn on(mut self, etag: &str) -> Self {
        self.if_match = Some(etag.to_owned());
        self
    }

    pub(crate) fn if_match(&self) -> Option<&str> {
        self.if_match.as_deref()
    }

    pub(crate) fn kind(&self) -> OpKind {
        self.kind
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn body(&self) -> Option<&str> {
        self.body.as_deref()
    }

    /// Bytes it adds to a request.
    pub(crate) fn len(&self) -> usize {
        OPERATION_BYTES + self.id.len() + self.body.as_ref().map_or(0, String::len)
    }

    fn with_body<T: Document>(
        kind: OpKind,
        document: &T,
        etag: Option<&str>,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            kind,
            id: document.id().to_owned(),
            body: Some(serde_json::to_string(document)?),
            if_match: etag.map(ToOwned::to_owned),
        })
    }
}

/// Room for the wrapping of one operation in a batch.
const OPERATION_BYTES: usize = 160;
