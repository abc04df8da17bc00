//! Looking once, or again and again.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;

use crate::context::{Connection, ConnectionArgs};
use crate::interrupt::Interrupt;
use crate::output::{FullScreen, Keys, Line, Output, is_terminal, parse_span, say};

/// How often to look.
#[derive(Debug, Clone, Args)]
pub(crate) struct WatchArgs {
    /// Look again and again, every 2s or as often as is said, until q or Ctrl-C.
    #[arg(
        long,
        value_name = "SPAN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s",
        value_parser = parse_span
    )]
    watch: Option<Duration>,
}

/// What one look shows.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    /// For people.
    pub(crate) lines: Vec<Line>,
    /// For programs, one on each line.
    pub(crate) rows: Vec<Value>,
    /// What is no data: it goes to standard error.
    pub(crate) notes: Vec<String>,
}

/// Opens the container, looks once or until somebody wants to stop, and closes it.
pub(crate) async fn watch(
    args: &ConnectionArgs,
    watch: &WatchArgs,
    output: Output,
    look: impl AsyncFn(&Connection) -> anyhow::Result<Frame>,
) -> anyhow::Result<()> {
    Connection::during(args, async |connection| match watch.watch {
        None => print(output, &look(connection).await?),
        Some(every) => {
            let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
            tokio::select! {
                outcome = again(output, every, async || look(connection).await) => outcome,
                // That is how one stops to watch.
                () = interrupt.wait() => Ok(()),
            }
        }
    })
    .await
}

async fn again(
    output: Output,
    every: Duration,
    look: impl AsyncFn() -> anyhow::Result<Frame>,
) -> anyhow::Result<()> {
    if output.is_json() || !is_terminal() {
        loop {
            print(output, &look().await?)?;
            tokio::time::sleep(every).await;
            if !output.is_json() {
                output.line("")?;
            }
        }
    }
    let mut keys = Keys::listen();
    let mut screen = FullScreen::enter()?;
    let draw = async {
        loop {
            let mut frame = look().await?;
            frame.lines.extend(frame.notes.iter().map(Line::from));
            screen.draw(&frame.lines)?;
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
        outcome = draw => outcome,
        () = keys.pressed(QUIT) => Ok(()),
    }
}

/// Prints a frame where it belongs.
fn print(output: Output, frame: &Frame) -> anyhow::Result<()> {
    if output.is_json() {
        frame.rows.iter().try_for_each(|row| output.json_line(row))?;
    } else {
        frame.lines.iter().try_for_each(|line| output.line(line.clone()))?;
    }
    frame.notes.iter().for_each(say);
    Ok(())
}

/// Ends it.
const QUIT: u8 = b'q';
