//! `cdb`: durable workflows on Cosmos DB from the command line.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage,
//! 3 the port is taken, 4 the data folder cannot be used.

mod args;
mod commands;
mod exit;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    log_to_stderr(&args.log);
    let outcome = match args.command {
        Command::Emulator(options) => commands::emulator::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// Logs of the libraries, by the usual filter syntax.
fn log_to_stderr(filter: &str) {
    let filter = tracing_subscriber::EnvFilter::new(filter);
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
