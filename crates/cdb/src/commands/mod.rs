//! One file per command, with its arguments; `send.rs` has the four that send a message.

pub(crate) mod completions;
pub(crate) mod dead_letters;
pub(crate) mod delete;
pub(crate) mod demo;
pub(crate) mod emulator;
pub(crate) mod export;
pub(crate) mod fsck;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod instances;
pub(crate) mod prune;
pub(crate) mod queues;
pub(crate) mod send;
pub(crate) mod show;
pub(crate) mod stress;
pub(crate) mod top;
pub(crate) mod tree;
pub(crate) mod why;
