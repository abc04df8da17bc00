//! One file per noun.

pub(crate) mod emulator;
