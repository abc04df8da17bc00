//! Tests of the shop as its authors would write them: an emulator for each test, its clock moved where a workflow waits for
//! days, and the two programs as they are deployed.

mod deployment;
mod programs;
mod workflows;
