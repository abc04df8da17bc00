//! What the emulator promises, one module per subject.

mod again;
mod auth;
mod batch;
mod charges;
mod client;
mod faults;
mod guard;
mod items;
mod ledger;
mod limits;
mod management;
mod persistence;
mod query;
mod regions;
mod resources;
mod siege;
mod split;
mod split_kill;
mod split_pages;
mod storage;
mod throughput;
mod tls;
mod tokens;
mod wire;
