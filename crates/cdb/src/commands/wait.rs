//! `cdb wait`: until workflows have ended.

use std::time::Duration;

use clap::Args;
use duroxide::{Client, ClientError, OrchestrationStatus};
use serde_json::json;

use crate::context::{Connection, ConnectionArgs};
use crate::ending::shown_status;
use crate::exit::Problem;
use crate::model::Partition;
use crate::output::{Output, line, parse_span, say, span};

/// Wait until instances have ended, and print what they ended with.
///
/// The exit code is 8 if one of them failed, or has not ended in time.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  cdb wait order-17\n  cdb wait order-17 order-18 --timeout 10m --json")]
pub(crate) struct WaitArgs {
    /// Instance ids.
    #[arg(required = true)]
    ids: Vec<String>,

    /// Give up after this long [default: never].
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    timeout: Option<Duration>,

    /// Print JSON, one instance per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// For commands that start something.
#[derive(Debug, Args)]
pub(crate) struct WaitForArgs {
    /// Wait until it has ended, and print what it ended with; the exit code is 8 if it failed.
    #[arg(long)]
    wait: bool,

    /// Give up waiting after this long [default: never].
    #[arg(long, value_name = "SPAN", value_parser = parse_span, requires = "wait")]
    timeout: Option<Duration>,
}

impl WaitForArgs {
    pub(crate) fn is_wanted(&self) -> bool {
        self.wait
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// While this process has a folder nobody else can run anything in it.
    pub(crate) fn check(&self, connection: &ConnectionArgs) -> Result<(), Problem> {
        if self.wait && connection.data.is_some() {
            return Err(Problem::Usage(
                "--wait needs a runtime that runs at the same time, and only one process can use a folder: run `cdb emulator \
                 --data DIR` and give its --endpoint"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// Waits.
pub(crate) async fn run(args: &WaitArgs) -> anyhow::Result<()> {
    Connection::during(&args.connection, async |connection| {
        let documents = connection.documents()?;
        for id in &args.ids {
            if Partition::new(documents.partition(id).await?).is_empty() {
                return Err(Problem::no_instance(id).into());
            }
        }
        tell_ends(&connection.client().await?, &args.ids, args.timeout, args.json).await
    })
    .await
}

/// Waits for all of them, one after the other, and tells how each ended.
pub(crate) async fn tell_ends(
    client: &Client,
    ids: &[String],
    timeout: Option<Duration>,
    is_json: bool,
) -> anyhow::Result<()> {
    let output = Output::new(is_json);
    let began = std::time::Instant::now();
    let mut failed = Vec::new();
    for id in ids {
        let left = timeout.map_or(FOR_EVER, |timeout| timeout.saturating_sub(began.elapsed()));
        let status = match client.wait_for_orchestration(id, left).await {
            Err(ClientError::Timeout) => {
                let text =
                    format!("{id:?} has not ended within {}", span(millis(timeout.unwrap_or_default())));
                return Err(Problem::Found(text).into());
            }
            status => status?,
        };
        let (status, result) = match status {
            OrchestrationStatus::Completed { output, .. } => ("Completed", output),
            OrchestrationStatus::Failed { details, .. } => ("Failed", details.display_message()),
            OrchestrationStatus::Running { .. } | OrchestrationStatus::NotFound => continue,
        };
        let status = shown_status(status, &result);
        let is_failed = status != "Completed";
        if is_failed {
            failed.push(id.as_str());
        }
        if is_json {
            let (result, error) = if is_failed { (None, Some(&result)) } else { (Some(&result), None) };
            output.json_line(&json!({"instance": id, "status": status, "output": result, "error": error}))?;
        } else if ids.len() > 1 {
            output.line(line![output.style.bold(id), "  ", output.style.status(status), "  ", &result])?;
        } else if is_failed {
            say(format!("{id}: {status}: {result}"));
        } else {
            output.line(&result)?;
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Problem::Found(format!("{} did not complete: `cdb why {}` says more", failed.join(", "), failed[0]))
        .into())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);
