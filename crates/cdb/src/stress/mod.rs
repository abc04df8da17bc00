//! Load: workloads, the pump that keeps so many of them under way, and what was measured.

mod measure;
mod pump;
mod workload;

pub(crate) use measure::{Measured, operations, table};
pub(crate) use pump::{Load, pump};
pub(crate) use workload::{Shape, Workload};
