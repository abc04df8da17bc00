//! `cdb instances`: what is there.

use clap::{Args, ValueEnum};

use crate::context::{Connection, ConnectionArgs};
use crate::documents::{Documents, unreadable_sentence};
use crate::listing::{FilterArgs, Listed, Listing, Wanted, all, latest};
use crate::output::{Column, Line, Output, Style, Table, ago, plural, span};
use crate::watch::{Frame, WatchArgs, watch};

/// List instances, the one that moved last first.
///
/// In that order, and by status, parent or time, a list costs what it shows, however many instances there are. Other
/// filters are looked for in that order until the page is full; --max-ru bounds what that may cost.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, visible_alias = "ls", aliases = ["list", "ps"])]
pub(crate) struct InstancesArgs {
    /// Only ids that have this in them; the same as --contains.
    #[arg(value_name = "TEXT", conflicts_with = "contains")]
    text: Option<String>,

    #[command(flatten)]
    filter: FilterArgs,

    /// What to sort by; all but updated make it read everything.
    #[arg(long, value_enum, default_value_t = Sort::Updated)]
    sort: Sort,

    /// Sort the other way round.
    #[arg(long)]
    reverse: bool,

    /// Instances on one page; 0 shows all.
    #[arg(long, short = 'n', default_value_t = 50, value_name = "N")]
    limit: usize,

    /// Instances to leave out before the page.
    #[arg(long, default_value_t = 0, value_name = "N")]
    offset: usize,

    /// Stop when so many request units are spent and the page is not full; 0 goes on to the end.
    #[arg(long, default_value_t = 250, value_name = "RU")]
    max_ru: u32,

    /// Print JSON, one instance per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb instances --data cdb-demo
  cdb instances bakery -n 10
  cdb instances --status failed,cancelled --since 1h
  cdb instances --error 'no flour' --since 2026-11-16T19:29:43+02:00
  cdb instances --name bake --sort created --limit 20 --offset 20
  cdb instances --status running --watch
  cdb instances --json --limit 0 | jq -r .instance";

/// What to sort by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Updated,
    Created,
    Id,
    Name,
    Status,
}

/// Lists instances.
pub(crate) async fn run(args: &InstancesArgs) -> anyhow::Result<()> {
    let output = Output::new(args.json);
    let mut wanted = args.filter.wanted()?;
    wanted.contains = wanted.contains.or_else(|| args.text.clone());
    watch(&args.connection, &args.watch, output, async |connection: &Connection| {
        let documents = connection.documents()?;
        let listing = read(&documents, args, &wanted).await?;
        Ok(frame(&listing, args, output, documents.now_ms()))
    })
    .await
}

/// The instances up to the end of the page.
async fn read(documents: &Documents, args: &InstancesArgs, wanted: &Wanted) -> anyhow::Result<Listing> {
    let count = if args.limit == 0 { usize::MAX } else { args.offset.saturating_add(args.limit) };
    if args.sort == Sort::Updated && !args.reverse {
        let bound = (args.max_ru > 0 && args.limit > 0).then_some(f64::from(args.max_ru));
        return latest(documents, wanted, count, bound).await;
    }
    let mut listing = all(documents, wanted).await?;
    sort(&mut listing.rows, args.sort);
    if args.reverse {
        listing.rows.reverse();
    }
    listing.has_more = listing.rows.len() > count;
    listing.rows.truncate(count);
    Ok(listing)
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

fn frame(listing: &Listing, args: &InstancesArgs, output: Output, now_ms: u64) -> Frame {
    let page: Vec<&Listed> = listing.rows.iter().skip(args.offset).collect();
    let mut notes = Vec::new();
    let shown = args.offset + page.len();
    if let Some(units) = listing.stopped_at {
        notes.push(format!(
            "{} found; stopped after {units:.0} request units, and there are more to look at: --max-ru 0 goes on to the end",
            plural(page.len(), "instance")
        ));
    } else if listing.has_more {
        notes.push(format!(
            "{} shown, there are more: --offset {shown} shows the next, --limit 0 all",
            page.len()
        ));
    } else if !output.is_json() {
        notes.push(plural(shown, "instance"));
    }
    notes.extend(unreadable_sentence(&listing.unreadable));
    let rows = page.iter().filter_map(|row| serde_json::to_value(row).ok()).collect();
    Frame { lines: table(&page, output, now_ms), rows, notes }
}

/// Columns in which nothing would stand are left out: ids are what one copies.
fn table(page: &[&Listed], output: Output, now_ms: u64) -> Vec<Line> {
    if page.is_empty() {
        return Vec::new();
    }
    let has_custom = page.iter().any(|row| row.custom_status.as_ref().is_some_and(|text| !text.is_empty()));
    let has_error = page.iter().any(|row| row.error.is_some());
    let mut columns = vec![
        Column::flexible("INSTANCE", 16),
        Column::flexible("ORCHESTRATION", 8),
        Column::new("STATUS"),
        Column::number("EXEC"),
        Column::new("MOVED"),
        Column::new("AGE"),
    ];
    if has_custom {
        columns.push(Column::flexible("CUSTOM STATUS", 6));
    }
    if has_error {
        columns.push(Column::flexible("ERROR", 6));
    }
    let mut table = Table::new(columns);
    for row in page {
        let mut cells = vec![
            row.instance.clone(),
            row.orchestration.clone(),
            row.status.clone(),
            if row.execution == 0 { String::new() } else { row.execution.to_string() },
            ago(row.updated_at, now_ms),
            span(now_ms.saturating_sub(row.created_at)),
        ];
        if has_custom {
            cells.push(row.custom_status.clone().unwrap_or_default());
        }
        if has_error {
            cells.push(row.error.clone().unwrap_or_default());
        }
        table.painted(cells, 2, Style::status);
    }
    table.lines(output.columns, output.style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_that_were_created_at_the_same_time_have_one_order() {
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

    #[test]
    fn columns_without_a_text_take_no_room() {
        let row = |error: Option<&str>| Listed {
            instance: "a-long-id-that-somebody-wants-to-copy".to_owned(),
            error: error.map(str::to_owned),
            ..Listed::default()
        };
        let output = Output { columns: Some(80), ..Output::new(false) };
        let heading = |row: &Listed| table(&[row], output, 1)[0].text().to_owned();
        assert!(!heading(&row(None)).contains("CUSTOM") && !heading(&row(None)).contains("ERROR"));
        assert!(heading(&row(Some("no flour"))).contains("ERROR"));
        assert!(table(&[&row(Some(&"x".repeat(200)))], output, 1)[1].text().contains("a-long-id-tha"));
    }
}
