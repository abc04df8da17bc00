//! JavaScript: stored procedures, triggers and user defined functions run on a machine of their own.
//!
//! The machine has no way out: no files, no sockets, no clock but the language's own. What a script wants of its
//! container it puts into a queue (`prelude.js`), and whoever runs it takes it from there, so that nothing of the
//! engine is ever called from inside the machine. Time, memory and stack are bounded.

mod machine;

pub(crate) use self::machine::Machine;
