//! Any bytes as what is stored in a container: every reader of the provider reads or refuses them, without a panic and
//! without taking the sizes they claim for true. `fuzz/run` limits what one allocation may take.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| duroxide_cdb::fuzzing::read(bytes));
