//! `cdb sql`: a query against the container.

use clap::Args;
use cosmos_driver::{PartitionKey, Query, QueryOptions, Scope};
use serde_json::Value;

use crate::context::{Connection, ConnectionArgs};
use crate::output::{Output, plural, say};

/// Ask the container in SQL; each row is printed as JSON on a line of its own.
///
/// What it cost is said on standard error. Without --limit everything is read, page after page.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, alias = "query")]
pub(crate) struct SqlArgs {
    /// The query.
    #[arg(value_name = "QUERY")]
    query: String,

    /// Only in the partition of this instance.
    #[arg(long, value_name = "ID")]
    instance: Option<String>,

    /// A value for a parameter of the query, as NAME=JSON; what is no JSON is a text. May be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<String>,

    /// Stop after so many rows.
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,

    /// For symmetry: rows are always JSON.
    #[arg(long, hide = true)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb sql \"SELECT VALUE COUNT(1) FROM c WHERE c.type = 'instance'\" --data cdb-demo
  cdb sql 'SELECT c.type, c.id FROM c' --instance bakery-1-order --data cdb-demo
  cdb sql 'SELECT c.instanceId FROM c WHERE c.status = @s' --param s=Failed -n 10";

/// Asks.
pub(crate) async fn run(args: &SqlArgs) -> anyhow::Result<()> {
    let output = Output::new(true);
    let mut query = Query::new(args.query.clone());
    for param in &args.param {
        let (name, value) = param.split_once('=').unwrap_or((param, ""));
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        query = query.with(format!("@{}", name.trim_start_matches('@')), value);
    }
    let limit = args.limit.unwrap_or(usize::MAX);
    Connection::during_any(&args.connection, async |connection| {
        let documents = connection.documents()?;
        let scope = match &args.instance {
            Some(instance) => Scope::PartitionKey(PartitionKey::from(instance.as_str())),
            None => Scope::Container,
        };
        let page_rows = u32::try_from(limit).unwrap_or(PAGE_ROWS).clamp(1, PAGE_ROWS);
        let options = QueryOptions::default().with_page_size(page_rows);
        let mut pages = documents.container().query(query.clone(), scope, options);
        let (mut rows, mut units) = (0, 0.0);
        while rows < limit
            && let Some(page) = pages.next().await?
        {
            units += page.charge();
            for row in page.items::<Value>()?.iter().take(limit - rows) {
                output.stored_line(row)?;
                rows += 1;
            }
        }
        say(format!("{}, {units:.1} request units", plural(rows, "row")));
        Ok(())
    })
    .await
}

const PAGE_ROWS: u32 = 1000;
