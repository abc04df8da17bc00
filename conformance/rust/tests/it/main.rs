//! The suite: one binary, one module per area.

mod batch;
mod change_feed;
mod containers;
mod items;
mod patch;
mod query;
mod regions;
mod split;
