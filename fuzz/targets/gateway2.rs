//! Any bytes as a frame of Gateway 2.0: read or refused; what was read and can be written is read again.

#![no_main]

use cosmos_wire::gateway2::{Request, Response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Ok(frame)) = Request::decode(bytes).map(|request| request.encode()) {
        assert!(Request::decode(&frame).is_ok());
    }
    if let Ok(Ok(frame)) = Response::decode(bytes).map(|response| response.encode()) {
        assert!(Response::decode(&frame).is_ok());
    }
});
