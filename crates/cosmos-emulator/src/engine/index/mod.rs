//! The index: which paths of documents are in it, how their values become keys, and how queries read it.
//!
//! Every term (path and value) of a document stands in two orders: by value within its physical partition, with ties
//! in order of creation, for queries over a partition; and by logical partition, then value, for queries that name a
//! partition key. Both are written in the transaction that writes the item.

pub(crate) mod build;
pub(crate) mod choice;
pub(crate) mod common;
pub(crate) mod cursor;
pub(crate) mod encode;
pub(crate) mod fresh;
pub(crate) mod path;
pub(crate) mod policy;
pub(crate) mod source;
pub(crate) mod terms;
