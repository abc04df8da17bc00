//! ST_* functions.

use super::Function;

pub(super) const FUNCTIONS: &[Function] = &[];
