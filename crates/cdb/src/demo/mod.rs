//! The demo: a bakery whose workflows show one ability of the framework each.
//!
//! [`bakery`] has the workflows, [`board`] knows how far each is, [`screen`] draws it, [`costs`] adds up requests and
//! request units, [`past`] finds out what earlier runs left, [`summary`] tells what came of it, and the command in `commands/demo.rs` conducts.

pub(crate) mod bakery;
pub(crate) mod board;
pub(crate) mod costs;
pub(crate) mod past;
pub(crate) mod screen;
pub(crate) mod summary;
