//! `cdb history ID`: every event.

use clap::Args;
use duroxide::Event;
use serde_json::Value;

use crate::commands::show::{ExecutionArgs, absence};
use crate::context::{Connection, ConnectionArgs};
use crate::exit::Problem;
use crate::output::{Column, Output, Table, clip, span, utc};

/// Print the events of an instance, in order.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    chosen: ExecutionArgs,

    /// Show texts whole, however long they are.
    #[arg(long)]
    full: bool,

    /// Only this event, by its number.
    #[arg(long, value_name = "ID")]
    event: Option<u64>,

    /// Print JSON, one event per line; texts are whole in it.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb history bakery-1-order --data cdb-demo
  cdb history bakery-1-shift --execution 2 --data cdb-demo
  cdb history order-17 --json | jq -c 'select(.type == \"ActivityFailed\")'";

/// Prints the history.
pub(crate) async fn run(args: &HistoryArgs) -> anyhow::Result<()> {
    let mut events =
        Connection::during(&args.connection, async |connection| read(connection, args).await).await?;
    if let Some(number) = args.event {
        events.retain(|event| event.event_id == number);
        if events.is_empty() {
            let text = format!("{:?} has no event {number} in that execution", args.chosen.id);
            return Err(Problem::Missing(text).into());
        }
    }
    let output = Output::new(args.json);
    if output.is_json() {
        for event in &events {
            output.json_line(&told(event)?)?;
        }
        return Ok(());
    }
    output.table(&table(&events, args.full)?)?;
    Ok(())
}

/// An event as all else is told: names in camel case, and `at` for the time it was written.
fn told(event: &Event) -> anyhow::Result<Value> {
    let Value::Object(fields) = serde_json::to_value(event)? else { return Ok(Value::Null) };
    let told = fields.into_iter().map(|(name, value)| match name.as_str() {
        "timestamp_ms" => ("at".to_owned(), value),
        "fire_at_ms" => ("fireAt".to_owned(), value),
        _ => (camel_case(&name), value),
    });
    Ok(Value::Object(told.collect()))
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut name, word| {
        let mut letters = word.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.push_str(letters.as_str());
        name
    })
}

async fn read(connection: &Connection, args: &HistoryArgs) -> anyhow::Result<Vec<Event>> {
    if !connection.documents()?.is_instance(&args.chosen.id).await? {
        return Err(absence(connection, &args.chosen.id).await?);
    }
    let client = connection.client().await?;
    let executions = client.list_executions(&args.chosen.id).await?;
    let execution = args.chosen.execution(executions.last().copied().unwrap_or(1), &executions)?;
    Ok(client.read_execution_history(&args.chosen.id, execution).await?)
}

fn table(events: &[Event], is_full: bool) -> anyhow::Result<Table> {
    let mut table = Table::new(vec![
        Column::number("ID"),
        Column::new("TIME (UTC)"),
        Column::number("AFTER"),
        Column::new("EVENT"),
        Column::number("OF"),
        Column::flexible("DETAILS", 16),
    ]);
    let start = events.first().map_or(0, |event| event.timestamp_ms);
    for event in events {
        let (name, details) = describe(event)?;
        let details = if is_full { details } else { clip(&details, DETAILS_MAX) };
        table.row([
            event.event_id.to_string(),
            utc(event.timestamp_ms),
            span(event.timestamp_ms.saturating_sub(start)),
            name,
            event.source_event_id.map(|id| format!("#{id}")).unwrap_or_default(),
            details,
        ]);
    }
    Ok(table)
}

/// The event's name and what it says; by its stored form, so that kinds of later versions are shown as well.
fn describe(event: &Event) -> anyhow::Result<(String, String)> {
    let Value::Object(mut fields) = serde_json::to_value(&event.kind)? else { return Ok(Default::default()) };
    let name = fields.remove("type").and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
    fields.retain(|_, value| !value.is_null());
    let details: Vec<String> = fields
        .iter()
        .map(|(field, value)| match value {
            Value::String(text) => format!("{field}={text}"),
            Value::Number(number) if field.ends_with("_at_ms") => {
                let at = utc(number.as_u64().unwrap_or_default());
                format!("{}={at}", field.trim_end_matches("_ms"))
            }
            other => format!("{field}={other}"),
        })
        .collect();
    Ok((name, details.join("  ")))
}

/// So much of what an event says is shown in a line of a file.
const DETAILS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use duroxide::EventKind;

    use super::*;

    #[test]
    fn events_are_told_to_programs_as_all_else_is() {
        let mut event =
            Event::with_event_id(3, "a", 1, Some(2), EventKind::ActivityCompleted { result: "loaf".into() });
        event.timestamp_ms = 7;
        let told = told(&event).unwrap();
        assert_eq!(
            (&told["eventId"], &told["sourceEventId"], &told["at"]),
            (&3.into(), &2.into(), &7.into())
        );
        assert_eq!((&told["type"], &told["result"]), (&"ActivityCompleted".into(), &"loaf".into()));
    }

    #[test]
    fn events_are_told_by_their_stored_form() {
        let event =
            Event::with_event_id(3, "a", 1, Some(2), EventKind::ActivityCompleted { result: "loaf".into() });
        assert_eq!(describe(&event).unwrap(), ("ActivityCompleted".to_owned(), "result=loaf".to_owned()));
        let timer = Event::with_event_id(3, "a", 1, None, EventKind::TimerCreated { fire_at_ms: 61_000 });
        assert_eq!(describe(&timer).unwrap().1, "fire_at=1970-01-01 00:01:01");
    }
}
