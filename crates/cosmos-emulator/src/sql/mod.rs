//! The NoSQL query language.

pub mod source;
