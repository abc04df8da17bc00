//! Figures for Prometheus and for scalers, over HTTP.
//!
//! | file | what is there |
//! |---|---|
//! | `text.rs` | the text format of Prometheus |
//! | `registry.rs` | what the libraries of this process tell the `metrics` facade |
//! | `container.rs` | what a container shows of a fleet: queues, members, dead letters |
//! | `scale.rs` | how many processes the work in it needs |
//! | `server.rs` | the listener |

mod container;
mod registry;
mod scale;
mod server;
mod text;

pub(crate) use container::Watcher;
pub(crate) use registry::Registry;
pub(crate) use scale::Rule;
pub(crate) use server::{Source, serve};
