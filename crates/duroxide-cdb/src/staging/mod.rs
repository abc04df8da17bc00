//! Commits that are larger than a batch may be: what makes them one all the same.
//!
//! A batch holds 100 operations and 2 MB, a document 2 MB. A worked example, a turn that starts 300 activities and returns
//! 5 MB of text:
//!
//! 1. [`layout`] sees that the commit does not fit. It keeps in the batch what must be in it (the head, what is consumed,
//!    what is cancelled), deals the rest out to *staged* documents of up to 1.2 MB, and the text to *pieces*.
//! 2. [`publish::prepare`] writes a *mark* (a manifest that is not committed), then the pieces and the staged documents.
//!    Nothing looks at them. If the process dies now, a reconciler meets the mark after an hour and
//!    [sweeps](publish::sweep) all of it.
//! 3. The commit batch replaces the mark by the committed *manifest*. From this moment the turn has happened.
//! 4. [`publish::publish`] turns each staged document into the documents it holds, in one batch with its removal, and
//!    removes the manifest last. Whoever meets the manifest goes on where another process stopped: a turn of the same
//!    instance before it looks at its queue, or the reconciler.
//!
//! This module knows the store and documents. It does not know who commits, nor what becomes of what it publishes: it tells
//! its [`Outlet`].

pub(crate) mod layout;
pub(crate) mod pieces;
pub(crate) mod publish;

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::documents::{Intent, Message, WorkDocument};
use crate::store::Store;

pub(crate) use pieces::join;

/// What publishing needs.
#[derive(Clone, Copy)]
pub(crate) struct Staging<'a> {
    pub(crate) store: &'a Store,
    /// So long others leave alone what this process is about to finish itself.
    pub(crate) age_threshold_ms: u64,
    pub(crate) outlet: &'a dyn Outlet,
}

/// Who is told of what a staged document held, the moment it is published.
pub(crate) trait Outlet: Send + Sync {
    /// An activity can be fetched now.
    fn work_written(&self, work: Arc<WorkDocument>, etag: String);
    /// An activity was cancelled.
    fn work_removed(&self, instance: &str, id: &str);
    /// A message waits in the queue of this instance now.
    fn message_written(&self, message: &Message);
    /// Messages to other instances can be delivered now.
    fn deliver(&self, operation: &'static str, intents: Vec<Intent>) -> BoxFuture<'_, ()>;
}
