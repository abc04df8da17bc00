//! `cdb runtimes`: who runs work on this container.

use clap::Args;

use crate::context::{Connection, ConnectionArgs};
use crate::fleet::{Fleet, State, ranges};
use crate::output::{Column, Output, Paint, Style, Table, span};
use crate::watch::{Frame, WatchArgs, watch};

/// Show the runtimes: who runs work on this container, how much, and who looks after which part.
///
/// Every process whose runtime fetches work is a member and tells of itself every few seconds. The members divide the 256
/// slots of the key space among them; `cdb why` names the owner of an instance's slot.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, visible_alias = "members")]
pub(crate) struct RuntimesArgs {
    /// Print JSON, one member per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb runtimes
  cdb runtimes --watch
  cdb runtimes --json | jq 'select(.state != \"alive\")'";

/// Shows the members.
pub(crate) async fn run(args: &RuntimesArgs) -> anyhow::Result<()> {
    let output = Output::new(args.json);
    watch(&args.connection, &args.watch, output, async |connection: &Connection| {
        let fleet = Fleet::read(&connection.documents()?).await?;
        Ok(frame(&fleet, output))
    })
    .await
}

fn frame(fleet: &Fleet, output: Output) -> Frame {
    let now = fleet.now_ms;
    let slots = fleet.slots();
    let mut table = Table::new(vec![
        Column::flexible("MEMBER", 12),
        Column::new("STATE"),
        Column::number("SLOTS"),
        Column::flexible("RANGES", 7),
        Column::number("RUNS"),
        Column::number("BACKLOG"),
        Column::number("OLDEST"),
        Column::number("HEARD OF"),
        Column::flexible("SERVES", 8),
        Column::flexible("WHERE", 8),
        Column::new("BUILD"),
    ]);
    for member in &fleet.members {
        let own = slots.get(member.owner.as_str()).map(Vec::as_slice).unwrap_or_default();
        let state = member.state(now);
        let (told, paint): (String, Paint) = match state {
            State::Alive => ("alive".to_owned(), Style::good),
            State::Silent => (format!("silent, lease ends in {}", span(member.lease_left(now))), Style::warn),
            State::Ended => ("lease ended".to_owned(), Style::bad),
        };
        let oldest = if member.backlog() > 0 { span(member.oldest_ms()) } else { String::new() };
        table.painted_row(
            [
                member.owner.clone(),
                told,
                own.len().to_string(),
                ranges(own),
                member.load(),
                member.backlog().to_string(),
                oldest,
                format!("{} ago", span(member.silence(now))),
                member.serves().join(", "),
                member.place(),
                member.build().to_owned(),
            ],
            1,
            paint,
        );
    }
    let lines = if table.is_empty() { Vec::new() } else { table.lines(output.columns, output.style) };
    Frame { lines, rows: fleet.to_json(), notes: fleet.remarks() }
}
