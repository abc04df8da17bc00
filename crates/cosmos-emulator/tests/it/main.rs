//! What the emulator promises, one module per subject.

mod storage;
