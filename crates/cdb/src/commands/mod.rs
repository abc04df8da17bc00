//! One file per command, with its arguments; `send.rs` has the four that send a message.

pub(crate) mod completions;
pub(crate) mod contexts;
pub(crate) mod dashboard;
pub(crate) mod dead_letters;
pub(crate) mod delete;
pub(crate) mod demo;
pub(crate) mod emulator;
pub(crate) mod export;
pub(crate) mod fsck;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod instances;
pub(crate) mod metrics;
mod pending;
pub(crate) mod prune;
pub(crate) mod queues;
pub(crate) mod rerun;
pub(crate) mod retention;
pub(crate) mod runtimes;
pub(crate) mod send;
pub(crate) mod show;
pub(crate) mod sql;
pub(crate) mod stress;
pub(crate) mod top;
pub(crate) mod tree;
pub(crate) mod wait;
pub(crate) mod why;

/// `cdb version`: the same as `cdb --version`.
pub(crate) fn version() -> anyhow::Result<()> {
    crate::output::Output::new(false).line(concat!("cdb ", env!("CARGO_PKG_VERSION")))?;
    Ok(())
}
