//! `cdb instances`: what is there.

use clap::{Args, ValueEnum};
use cosmos_driver::Query;
use serde::{Deserialize, Serialize};

use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs};
use crate::documents::{Documents, Rows, tell_unreadable};
use crate::exit::Problem;
use crate::model::text_of;
use crate::output::{Column, Output, Style, Table, ago, parse_moment, plural, say, span};

/// List instances, the one that moved last first.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, visible_alias = "ls")]
pub(crate) struct InstancesArgs {
    #[command(flatten)]
    filter: FilterArgs,

    /// What to sort by.
    #[arg(long, value_enum, default_value_t = Sort::Updated)]
    sort: Sort,

    /// Sort the other way round.
    #[arg(long)]
    reverse: bool,

    /// Instances on one page; 0 shows all.
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: usize,

    /// Instances to leave out before the page.
    #[arg(long, default_value_t = 0, value_name = "N")]
    offset: usize,

    /// Print JSON, one instance per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Which instances.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilterArgs {
    /// Only this status.
    #[arg(long, value_enum, ignore_case = true)]
    pub(crate) status: Option<Status>,

    /// Only this orchestration.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Only ids that begin like this.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,

    /// Only what moved since then: 15m, 2h, 7d, or a date in UTC.
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<String>,

    /// Only what has not moved since then.
    #[arg(long, value_name = "WHEN")]
    pub(crate) before: Option<String>,

    /// Leave children of other instances out.
    #[arg(long)]
    pub(crate) roots: bool,
}

const EXAMPLES: &str = "Examples:
  cdb instances --data cdb-demo
  cdb instances --status failed --since 1h
  cdb instances --name bake --sort created --limit 20 --offset 20
  cdb instances --json --limit 0 | jq -r .instance";

/// Statuses one can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Status {
    Running,
    Completed,
    Failed,
}

impl Status {
    /// As it is stored.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
        }
    }
}

/// What to sort by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Updated,
    Created,
    Id,
    Name,
    Status,
}

/// One instance in a list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Listed {
    #[serde(rename(deserialize = "instanceId"))]
    pub(crate) instance: String,
    #[serde(rename(deserialize = "orchestrationName"))]
    pub(crate) orchestration: String,
    #[serde(rename(deserialize = "orchestrationVersion"))]
    pub(crate) version: String,
    pub(crate) status: String,
    #[serde(rename(deserialize = "currentExecutionId"))]
    pub(crate) execution: u64,
    #[serde(rename(deserialize = "parentInstanceId"))]
    pub(crate) parent: Option<String>,
    #[serde(rename(deserialize = "customStatus", serialize = "customStatus"))]
    pub(crate) custom_status: Option<String>,
    #[serde(rename(deserialize = "createdAt", serialize = "createdAt"))]
    pub(crate) created_at: u64,
    #[serde(rename(deserialize = "updatedAt", serialize = "updatedAt"))]
    pub(crate) updated_at: u64,
}

impl Listed {
    /// Whether the workflow has ended for good: one that continues as new has not.
    pub(crate) fn has_ended(&self) -> bool {
        [Status::Completed, Status::Failed].iter().any(|status| self.status == status.name())
    }
}

/// Lists instances.
pub(crate) async fn run(args: &InstancesArgs) -> anyhow::Result<()> {
    let output = Output::new(args.json);
    let Rows { rows: mut listed, unreadable } = Connection::during(&args.connection, async |connection| {
        list(&connection.documents()?, &args.filter).await
    })
    .await?;
    sort(&mut listed, args.sort);
    if args.reverse {
        listed.reverse();
    }
    let total = listed.len();
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let page: Vec<Listed> = listed.into_iter().skip(args.offset).take(limit).collect();
    show(output, &page)?;
    let shown = args.offset + page.len();
    if shown < total {
        say(format!("{} of {total} instances; --offset {shown} shows the next, --limit 0 all", page.len()));
    } else if !output.is_json() {
        say(plural(total, "instance"));
    }
    tell_unreadable(&unreadable);
    Ok(())
}

/// The instances a filter lets through, in no order. Those that cannot be read may be among those it would let through.
pub(crate) async fn list(documents: &Documents, filter: &FilterArgs) -> anyhow::Result<Rows<Listed>> {
    let now = now_ms();
    let moment = |text: &Option<String>, otherwise: u64| match text {
        Some(text) => parse_moment(text, now).map_err(Problem::Usage),
        None => Ok(otherwise),
    };
    let query = Query::new(LIST)
        .with("@status", filter.status.map(Status::name))
        .with("@name", filter.name.clone())
        .with("@since", moment(&filter.since, 0)?)
        .with("@before", moment(&filter.before, FAR_FUTURE_MS)?);
    let mut listed: Rows<Listed> = documents.query_strictly(query).await?;
    let begins = |id: &str| filter.prefix.as_ref().is_none_or(|prefix| id.starts_with(prefix.as_str()));
    listed.rows.retain(|row| begins(&row.instance) && !(filter.roots && row.parent.is_some()));
    listed.unreadable.retain(|row| begins(text_of(row, "instanceId")));
    Ok(listed)
}

/// The id decides between equals: without it an instance could be on two pages, or on none.
fn sort(listed: &mut [Listed], by: Sort) {
    match by {
        Sort::Updated => listed.sort_by(|a, b| (b.updated_at, &a.instance).cmp(&(a.updated_at, &b.instance))),
        Sort::Created => listed.sort_by(|a, b| (b.created_at, &a.instance).cmp(&(a.created_at, &b.instance))),
        Sort::Id => listed.sort_by(|a, b| a.instance.cmp(&b.instance)),
        Sort::Name => {
            listed.sort_by(|a, b| (&a.orchestration, &a.instance).cmp(&(&b.orchestration, &b.instance)));
        }
        Sort::Status => listed.sort_by(|a, b| (&a.status, &a.instance).cmp(&(&b.status, &b.instance))),
    }
}

fn show(output: Output, page: &[Listed]) -> anyhow::Result<()> {
    if output.is_json() {
        for row in page {
            output.json_line(row)?;
        }
        return Ok(());
    }
    let now = now_ms();
    let mut table = Table::new(vec![
        Column::flexible("INSTANCE", 16),
        Column::flexible("ORCHESTRATION", 12),
        Column::new("STATUS"),
        Column::number("EXEC"),
        Column::new("MOVED"),
        Column::new("AGE"),
        Column::flexible("CUSTOM STATUS", 8),
    ]);
    for row in page {
        table.painted_row(
            [
                row.instance.clone(),
                row.orchestration.clone(),
                row.status.clone(),
                row.execution.to_string(),
                ago(row.updated_at, now),
                span(now.saturating_sub(row.created_at)),
                row.custom_status.clone().unwrap_or_default(),
            ],
            2,
            Style::status,
        );
    }
    if !table.is_empty() {
        output.table(&table)?;
    }
    Ok(())
}

/// Heads that only hold a lock are not instances yet. Those of which that, the status or the time cannot be told are.
const LIST: &str = "SELECT c.instanceId, c.orchestrationName, c.orchestrationVersion, c.status, \
    c.currentExecutionId, c.parentInstanceId, c.customStatus, c.createdAt, c.updatedAt FROM c \
    WHERE c.type = 'instance' \
    AND (c.started = true OR (IS_DEFINED(c.started) AND NOT IS_BOOL(c.started)) \
         OR ((NOT IS_DEFINED(c.formatVersion) OR c.formatVersion = 0) \
             AND (c.orchestrationName != '' OR NOT IS_STRING(c.orchestrationName)))) \
    AND (IS_NULL(@status) OR c.status = @status OR NOT IS_STRING(c.status)) \
    AND (IS_NULL(@name) OR c.orchestrationName = @name OR NOT IS_STRING(c.orchestrationName)) \
    AND ((c.updatedAt >= @since AND c.updatedAt <= @before) OR NOT IS_NUMBER(c.updatedAt) OR c.updatedAt < 0)";
/// Later than any clock: the end of the year 9999.
const FAR_FUTURE_MS: u64 = 253_402_300_799_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_that_moved_at_the_same_time_have_one_order() {
        let row = |instance: &str, at: u64| Listed {
            instance: instance.to_owned(),
            created_at: at,
            updated_at: at,
            ..Listed::default()
        };
        for by in [Sort::Updated, Sort::Created] {
            let mut listed = [row("c", 1), row("a", 1), row("d", 2), row("b", 1)];
            sort(&mut listed, by);
            assert_eq!(listed.map(|row| row.instance), ["d", "a", "b", "c"], "{by:?}");
        }
    }
}
