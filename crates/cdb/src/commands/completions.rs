//! `cdb completions SHELL`.

use std::io::Write as _;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print the completion script of a shell.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  cdb completions bash > ~/.local/share/bash-completion/completions/cdb\n  cdb completions zsh > ~/.zfunc/_cdb\n  cdb completions fish > ~/.config/fish/completions/cdb.fish"
)]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::args::Args::command(), "cdb", &mut script);
    crate::output::raw().write_all(&script)?;
    Ok(())
}
