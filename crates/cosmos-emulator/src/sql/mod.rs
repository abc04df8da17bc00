//! The NoSQL query language.
//!
//! The life of a query:
//!
//! 1. [`parse`] turns the text into tokens (`lexer`) and a tree (`parser`, `ast`), and checks what the grammar
//!    cannot see (`bind`): names, functions, aggregates. What it refuses carries the service's codes and places.
//! 2. [`Prepared::new`] puts the parameters in and works out what an index can do (`access`).
//! 3. [`Prepared::page`] pulls documents from a [`Source`](source::Source) through the operators in `exec`, which
//!    evaluate expressions (`eval`, `function`), and returns a [`Page`] with a continuation.
//!
//! [`plan::plan`] says how a client runs a query over many partitions, and [`plan::gateway_verdict`] what the gateway
//! refuses to do for it. Full text and hybrid search (`ORDER BY RANK`) has its words and scores in `full_text`, what is
//! ranked by in `rank`, its plan in `plan::hybrid` and its execution within one partition in `exec::rank`. [`Filter`] is the short way for the condition of a patch.

mod access;
mod ast;
mod bind;
mod error;
mod eval;
mod exec;
mod filter;
mod full_text;
mod function;
mod leash;
mod lexer;
mod like;
mod list;
mod parser;
pub mod plan;
mod print;
mod rank;
mod schema;
pub mod source;
mod value;

#[cfg(test)]
pub(crate) mod tests;

pub use self::ast::Query;
pub use self::bind::Parameters;
pub use self::exec::{Page, PageLimits, Prepared};
pub use self::filter::Filter;
pub use self::leash::Leash;
pub use self::list::List;
pub use self::schema::Schema;
pub(crate) use self::schema::is_distance_function;

use crate::Failure;

/// Parses and checks a query.
pub fn parse(text: &str) -> Result<Query, Failure> {
    let query = parser::parse_query(text).map_err(|error| error::refusal(text, &[error]))?;
    let errors = bind::check(&query);
    if errors.is_empty() { Ok(query) } else { Err(error::refusal(text, &errors)) }
}
