//! How the process ends.

use std::io::Write as _;
use std::process::ExitCode;

use cosmos_emulator::StartError;

/// Anything that has no code of its own.
const FAILED: u8 = 1;
/// The command line cannot be meant.
const USAGE: u8 = 2;
/// The address cannot be listened on.
const PORT: u8 = 3;
/// The data folder cannot be used.
const FOLDER: u8 = 4;

/// Says what went wrong and picks the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // Nothing can be done when even standard error is closed.
    let _ = writeln!(std::io::stderr(), "cdb: {error:#}");
    let code = match error.downcast_ref::<StartError>() {
        Some(StartError::Listen { .. }) => PORT,
        Some(StartError::Store(_)) => FOLDER,
        Some(StartError::Key(_)) => USAGE,
        Some(_) | None => FAILED,
    };
    ExitCode::from(code)
}
