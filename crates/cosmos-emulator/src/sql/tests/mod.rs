//! The language as a whole: by golden scripts, by pages, by hostile input.

mod engine;
mod hostile;
mod index;
mod kept;
mod page;
mod plan;
pub(crate) mod script;
