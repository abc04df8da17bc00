//! Any bytes as Cosmos binary JSON: decoded or refused; what is decoded survives being encoded again.

#![no_main]

use cosmos_wire::binary_json::{decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(value) = decode(bytes) {
        assert_eq!(decode(&encode(&value)).as_ref(), Ok(&value));
    }
});
