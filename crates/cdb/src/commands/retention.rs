//! `cdb retention`: how long instances are kept after they have ended.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use duroxide_cdb::{CosmosDBProvider, Retention, RetentionRow};
use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs};
use crate::exit::Problem;
use crate::output::{Column, Output, Table, plural, say, span, utc};

/// Say how long instances are kept after they have ended, see what goes when, and remove what is due.
///
/// A rule is [NAME:]completed=TIME or [NAME:]failed=TIME, with a time like 12h, 30d or forever. What no rule is about is
/// kept for ever. Short workflows that stand alone are removed by the service itself; all others, with their children, by
/// one of the runtimes. Nothing goes that has not ended, children included.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RetentionArgs {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "Examples:
  cdb retention show
  cdb retention set completed=30d failed=90d order:completed=7d --dry-run
  cdb retention set completed=30d failed=90d order:completed=7d
  cdb retention apply --yes
  cdb retention clear";

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the policy, and what goes when.
    Show(LookArgs),
    /// Store a policy in the container, for all runtimes. It takes the place of the one before.
    Set(SetArgs),
    /// Remove the policy of the container: runtimes do as they are configured then.
    Clear(LookArgs),
    /// Remove now what is due, instead of when a runtime does.
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
struct LookArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
struct SetArgs {
    /// The rules.
    #[arg(required = true, value_name = "RULE")]
    rules: Vec<String>,

    /// Only say what would go, and when.
    #[arg(long)]
    dry_run: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
struct ApplyArgs {
    /// Do it.
    #[arg(long)]
    yes: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Does one of the four.
pub(crate) async fn run(args: &RetentionArgs) -> anyhow::Result<()> {
    match &args.action {
        Action::Show(args) => {
            Connection::during(&args.connection, async |connection| {
                let provider = connection.provider().await?;
                let stored = provider.stored_retention();
                if stored.is_none() {
                    say(
                        "the container has no policy: runtimes do as they are configured, or keep everything",
                    );
                }
                foresee(&provider, &stored.unwrap_or_default(), Output::new(args.json)).await
            })
            .await
        }
        Action::Set(args) => {
            let policy: Retention =
                args.rules.join(" ").parse().map_err(|error| Problem::Usage(format!("{error}")))?;
            Connection::during(&args.connection, async |connection| {
                let provider = connection.provider().await?;
                if args.dry_run {
                    foresee(&provider, &policy, Output::new(args.json)).await?;
                    say("nothing was changed: leave --dry-run out to store the policy");
                    return Ok(());
                }
                let prolonged = provider.set_retention(Some(&policy)).await?;
                stored(&policy, prolonged, Output::new(args.json))
            })
            .await
        }
        Action::Clear(args) => {
            Connection::during(&args.connection, async |connection| {
                let prolonged = connection.provider().await?.set_retention(None).await?;
                stored(&Retention::default(), prolonged, Output::new(args.json))
            })
            .await
        }
        Action::Apply(args) => Connection::during(&args.connection, async |connection| {
            let provider = connection.provider().await?;
            let output = Output::new(args.json);
            if !args.yes {
                foresee(&provider, &provider.retention(), output).await?;
                say("nothing was deleted: add --yes to remove what is due");
                return Ok(());
            }
            let done = provider.apply_retention().await?;
            if output.is_json() {
                let told =
                    json!({ "deleted": done.deleted, "kept": done.kept, "unreadable": done.unreadable });
                output.json(&told)?;
            }
            say(format!(
                "{} deleted; {} stay for now, because something of them has not ended or a dead letter waits",
                plural(done.deleted, "instance"),
                plural(done.kept, "tree")
            ));
            Ok(())
        })
        .await,
    }
}

fn stored(policy: &Retention, prolonged: u64, output: Output) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(&json!({ "rules": policy.rules(), "prolonged": prolonged }))?;
    }
    say(if policy.keeps_everything() {
        "the container has no policy now".to_owned()
    } else {
        policy.to_string()
    });
    if prolonged > 0 {
        say(format!(
            "{} would have gone too early by the policy before; they are kept",
            plural(prolonged, "instance")
        ));
    }
    say("runtimes that are up know of it within minutes");
    Ok(())
}

/// Ended roots of one orchestration and one ending.
#[derive(Debug, Default, PartialEq, Eq)]
struct Group {
    roots: u64,
    due: u64,
    /// When the next one goes that is not due yet.
    next_ms: Option<u64>,
    by_service: u64,
}

fn groups(rows: &[RetentionRow], now: u64) -> BTreeMap<(String, &'static str), Group> {
    let mut groups: BTreeMap<(String, &'static str), Group> = BTreeMap::new();
    for row in rows {
        let group = groups.entry((row.name.clone(), row.ending.status())).or_default();
        group.roots += 1;
        group.by_service += u64::from(row.expires_at.is_some());
        match row.due_at {
            Some(due) if due <= now => group.due += 1,
            Some(due) => group.next_ms = Some(group.next_ms.map_or(due, |next| next.min(due))),
            None => {}
        }
    }
    groups
}

/// Says what goes by a policy, and when.
async fn foresee(provider: &CosmosDBProvider, policy: &Retention, output: Output) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    provider.foresee_retention(policy, |row| rows.push(row)).await?;
    let now = now_ms();
    if output.is_json() {
        let told = |row: &RetentionRow| -> Value {
            json!({ "instance": row.instance, "name": row.name, "status": row.ending.status(),
                "endedAt": row.ended_at, "dueAt": row.due_at, "expiresAt": row.expires_at })
        };
        output
            .json(&json!({ "rules": policy.rules(), "ended": rows.iter().map(told).collect::<Vec<_>>() }))?;
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::flexible("ORCHESTRATION", 12),
        Column::new("STATUS"),
        Column::new("KEPT"),
        Column::number("ENDED ROOTS"),
        Column::number("DUE"),
        Column::new("NEXT GOES"),
        Column::number("BY THE SERVICE"),
    ]);
    for ((name, status), group) in groups(&rows, now) {
        let keep = policy.keep(&name, status);
        let keep = keep
            .map_or("forever".to_owned(), |keep| span(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX)));
        let next = group.next_ms.map_or(String::new(), utc);
        table.row([
            name,
            status.to_owned(),
            keep,
            group.roots.to_string(),
            group.due.to_string(),
            next,
            group.by_service.to_string(),
        ]);
    }
    say(if policy.keeps_everything() {
        "everything is kept for ever".to_owned()
    } else {
        policy.to_string()
    });
    if !table.is_empty() {
        output.table(&table)?;
    }
    Ok(())
}
