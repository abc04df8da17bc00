//! `cdb show ID`: everything worth knowing about one instance.

use std::sync::Arc;

use clap::Args;
use duroxide::providers::{ExecutionInfo, InstanceInfo, Provider as _};
use duroxide::{Client, Event, EventKind};
use duroxide_cdb::CosmosDBProvider;
use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::commands::pending::Pending;
use crate::commands::tree::{legible_info, place};
use crate::context::{Connection, ConnectionArgs};
use crate::ending::{self, shown_status};
use crate::exit::Problem;
use crate::model::{Partition, kind};
use crate::output::{Column, Line, Output, Style, Table, ago, clip, line, span, utc};
use crate::timeline::{self, Span, SpanKind};

/// One execution of an instance.
#[derive(Debug, Args)]
pub(crate) struct ExecutionArgs {
    /// Instance id.
    pub(crate) id: String,

    /// Which execution's events [default: the current one].
    #[arg(long, value_name = "N")]
    execution: Option<u64>,
}

impl ExecutionArgs {
    /// The execution asked for, which must be there, or the current one.
    pub(crate) fn execution(&self, current: u64, known: &[u64]) -> Result<u64, Problem> {
        let execution = self.execution.unwrap_or(current);
        if known.contains(&execution) {
            return Ok(execution);
        }
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        let id = &self.id;
        Err(Problem::Missing(format!("{id:?} has no execution {execution}: it has {}", known.join(", "))))
    }
}

/// Show one instance: status, executions, family, key-values and the timeline of its history.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, aliases = ["status", "describe"])]
pub(crate) struct ShowArgs {
    /// Instance ids.
    #[arg(required = true)]
    ids: Vec<String>,

    /// Which execution's events, of one instance [default: the current one].
    #[arg(long, value_name = "N")]
    execution: Option<u64>,

    /// Show texts whole, however long they are, JSON in them laid out, and each of many activities of one name.
    #[arg(long)]
    full: bool,

    /// Print JSON; texts are whole in it.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb show bakery-1-order --data cdb-demo
  cdb show bakery-1-shift --execution 2 --data cdb-demo
  cdb show order-17 order-18
  cdb show order-17 --json | jq .kv";

/// What is shown.
struct Portrait {
    info: InstanceInfo,
    custom_status: Option<String>,
    executions: Vec<ExecutionInfo>,
    children: Vec<InstanceInfo>,
    kv: Vec<(String, String)>,
    execution: u64,
    events: Vec<Event>,
    is_full: bool,
}

/// What there is of an instance.
enum Sight {
    /// It has begun.
    Portrait(Box<Portrait>),
    /// Its start waits for a runtime.
    Pending(Box<Pending>),
}

/// Shows instances, one after the other.
pub(crate) async fn run(args: &ShowArgs) -> anyhow::Result<()> {
    if args.execution.is_some() && args.ids.len() > 1 {
        return Err(Problem::Usage("--execution is of one instance: name one".to_owned()).into());
    }
    let output = Output::new(args.json);
    Connection::during(&args.connection, async |connection| {
        let provider = connection.provider().await?;
        for (place, id) in args.ids.iter().enumerate() {
            let sight = Box::pin(look(connection, &provider, id, args)).await?;
            match (&sight, args.ids.len()) {
                (sight, 1) if output.is_json() => output.json(&sight.json())?,
                (sight, _) if output.is_json() => output.json_line(&sight.json())?,
                (sight, _) => {
                    if place > 0 {
                        output.line("")?;
                    }
                    sight.print(output)?;
                }
            }
        }
        Ok(())
    })
    .await
}

impl Sight {
    fn json(&self) -> Value {
        match self {
            Self::Portrait(portrait) => portrait.json(),
            Self::Pending(pending) => pending.json(),
        }
    }

    fn print(&self, output: Output) -> anyhow::Result<()> {
        match self {
            Self::Portrait(portrait) => portrait.print(output),
            Self::Pending(pending) => pending.print(output),
        }
    }
}

async fn look(
    connection: &Connection,
    provider: &Arc<CosmosDBProvider>,
    id: &String,
    args: &ShowArgs,
) -> anyhow::Result<Sight> {
    let client = Client::new(provider.clone());
    if !connection.documents()?.is_instance(id).await? {
        let partition = Partition::new(connection.documents()?.partition(id).await?);
        return match Pending::of(&partition, id, args.full) {
            Some(pending) => Ok(Sight::Pending(Box::new(pending))),
            None => Err(absence(connection, id).await?),
        };
    }
    let info = client.get_instance_info(id).await?;
    let status = provider.get_custom_status(id, 0).await?;
    let mut executions = Vec::new();
    for execution in client.list_executions(id).await? {
        executions.push(client.get_execution_info(id, execution).await?);
    }
    let known: Vec<u64> = executions.iter().map(|known| known.execution_id).collect();
    let chosen = ExecutionArgs { id: id.clone(), execution: args.execution };
    let execution = chosen.execution(info.current_execution_id, &known)?;
    let tree = client.get_instance_tree(id).await?;
    let mut children = Vec::new();
    for child in tree.all_ids.iter().filter(|child| *child != id) {
        let child = legible_info(provider, child).await?;
        if child.parent_instance_id.as_ref() == Some(id) {
            children.push(child);
        }
    }
    children.sort_by(|one, other| place(&one.instance_id).cmp(&place(&other.instance_id)));
    let mut kv: Vec<(String, String)> = client.get_kv_all_values(id).await?.into_iter().collect();
    kv.sort();
    let events = client.read_execution_history(id, execution).await?;
    Ok(Sight::Portrait(Box::new(Portrait {
        info,
        custom_status: status.and_then(|(text, _)| text),
        executions,
        children,
        kv,
        execution,
        events,
        is_full: args.full,
    })))
}

/// Why an instance cannot be shown: nothing is there, or nothing has begun.
pub(crate) async fn absence(connection: &Connection, id: &str) -> anyhow::Result<anyhow::Error> {
    let partition = Partition::new(connection.documents()?.partition(id).await?);
    if partition.is_empty() {
        return Ok(Problem::no_instance(id).into());
    }
    let is_deleted = !partition.of::<Value>(kind::DELETING).is_empty();
    Ok(Problem::Missing(if is_deleted {
        format!("{id:?} is being deleted")
    } else {
        format!("{id:?} has not begun: a message waits and no runtime has taken it. `cdb why` shows more")
    })
    .into())
}

impl Portrait {
    fn print(&self, output: Output) -> anyhow::Result<()> {
        let style = output.style;
        let now = now_ms();
        let info = &self.info;
        let version = if info.orchestration_version.is_empty() {
            String::new()
        } else {
            format!(" {}", info.orchestration_version)
        };
        output.line(line![
            style.bold(&info.instance_id),
            "  ",
            style.status(shown_status(&info.status, info.output.as_deref().unwrap_or_default())),
            format!("  {}{version}", info.orchestration_name)
        ])?;
        let fact =
            |name: &str, text: Line| output.line(line!["  ", style.dim(&format!("{name:<9}")), " ", text]);
        let lived = span(info.updated_at.saturating_sub(info.created_at));
        fact("created", format!("{} UTC ({})", utc(info.created_at), ago(info.created_at, now)).into())?;
        fact(
            "moved",
            format!(
                "{} UTC ({}), {lived} after its creation",
                utc(info.updated_at),
                ago(info.updated_at, now)
            )
            .into(),
        )?;
        if let Some(parent) = &info.parent_instance_id {
            fact("parent", parent.into())?;
        }
        for child in &self.children {
            let status = style.status(&child.status);
            fact("child", line![&child.instance_id, "  ", status, "  ", &child.orchestration_name])?;
        }
        if let Some(text) = &self.custom_status {
            fact("custom", text.into())?;
        }
        for (name, text) in [("input", self.input()), ("output", info.output.as_deref())] {
            let parts = text.map(|text| cut(output, text, self.is_full)).unwrap_or_default();
            for (place, part) in parts.iter().enumerate() {
                fact(if place == 0 { name } else { "" }, part.into())?;
            }
        }
        for (key, value) in &self.kv {
            for (place, part) in cut(output, value, self.is_full).iter().enumerate() {
                fact("kv", if place == 0 { line![key, " = ", part] } else { line!["  ", part] })?;
            }
        }
        if self.executions.len() > 1 {
            output.line("")?;
            output.table(&self.execution_table())?;
        }
        output.line("")?;
        self.print_timeline(output, now)
    }

    /// What the execution that is shown began with.
    fn input(&self) -> Option<&str> {
        self.events.iter().find_map(|event| match &event.kind {
            EventKind::OrchestrationStarted { input, .. } => Some(input.as_str()),
            _ => None,
        })
    }

    fn execution_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::number("EXEC"),
            Column::new("STATUS"),
            Column::new("STARTED (UTC)"),
            Column::number("TOOK"),
            Column::number("EVENTS"),
            Column::flexible("OUTPUT", 10),
        ]);
        for execution in &self.executions {
            let took = execution.completed_at.map(|end| span(end.saturating_sub(execution.started_at)));
            table.painted_row(
                [
                    execution.execution_id.to_string(),
                    execution.status.clone(),
                    utc(execution.started_at),
                    took.unwrap_or_else(|| "goes on".to_owned()),
                    execution.event_count.to_string(),
                    execution.output.clone().unwrap_or_default(),
                ],
                1,
                Style::status,
            );
        }
        table
    }

    fn print_timeline(&self, output: Output, now: u64) -> anyhow::Result<()> {
        let Some(first) = self.events.first() else {
            output.line("No history.")?;
            return Ok(());
        };
        let end = ending::terminal(&self.events);
        let to_ms = end.map_or(now, |end| end.timestamp_ms);
        let took = span(to_ms.saturating_sub(first.timestamp_ms));
        output.line(output.style.bold(&format!(
            "Timeline of execution {}: {} events, {took}",
            self.execution,
            self.events.len()
        )))?;
        let mut spans = if self.is_full { self.spans() } else { timeline::grouped(&self.spans()) };
        for span in spans.iter_mut().filter(|span| span.kind == SpanKind::Child) {
            // What all children have in common would be all there is room for.
            if let Some(rest) = span.name.strip_prefix(&self.info.instance_id) {
                span.name = format!("…{rest}");
            }
        }
        let columns = output.columns.unwrap_or(PLAIN_COLUMNS);
        for line in timeline::draw(&spans, first.timestamp_ms, to_ms, columns, output.style) {
            output.line(line)?;
        }
        if let Some(EventKind::OrchestrationFailed { details }) = end.map(|end| &end.kind) {
            output.line(output.style.bad(&format!("failed: {}", details.display_message())))?;
        }
        Ok(())
    }

    fn spans(&self) -> Vec<Span> {
        ending::settled(timeline::spans(&self.info.instance_id, &self.events), &self.events)
    }

    fn json(&self) -> Value {
        let info = &self.info;
        json!({
            "instance": info.instance_id,
            "orchestration": info.orchestration_name,
            "version": info.orchestration_version,
            "status": shown_status(&info.status, info.output.as_deref().unwrap_or_default()),
            "input": self.input(),
            "output": info.output,
            "customStatus": self.custom_status,
            "createdAt": info.created_at,
            "updatedAt": info.updated_at,
            "parent": info.parent_instance_id,
            "children": self.children.iter().map(|child| json!({
                "instance": child.instance_id,
                "orchestration": child.orchestration_name,
                "status": child.status,
            })).collect::<Vec<_>>(),
            "kv": self.kv.iter().map(|(key, value)| (key.clone(), json!(value))).collect::<serde_json::Map<_, _>>(),
            "executions": self.executions.iter().map(|execution| json!({
                "execution": execution.execution_id,
                "status": execution.status,
                "output": execution.output,
                "startedAt": execution.started_at,
                "completedAt": execution.completed_at,
                "events": execution.event_count,
            })).collect::<Vec<_>>(),
            "timeline": {
                "execution": self.execution,
                "spans": self.spans().iter().map(|span| json!({
                    "event": span.id,
                    "kind": span.kind.word(),
                    "name": span.name,
                    "input": self.events.iter().find(|event| event.event_id == span.id).and_then(input_of),
                    "result": match &span.end { timeline::End::Done(text) => Some(text), _ => None },
                    "error": match &span.end { timeline::End::Failed(text) => Some(text), _ => None },
                    "dueAt": span.due_ms,
                    "beganAt": span.began_ms,
                    "endedAt": span.ended_ms,
                    "end": match &span.end {
                        timeline::End::Open => "open",
                        timeline::End::Done(_) => "done",
                        timeline::End::Failed(_) => "failed",
                        timeline::End::Cancelled => "cancelled",
                        timeline::End::Left => "left",
                    },
                })).collect::<Vec<_>>(),
            },
        })
    }
}

/// The lines of a text: its beginning, as much as fits; or all of it, if that is asked for, with JSON laid out.
pub(super) fn cut(output: Output, text: &str, is_full: bool) -> Vec<String> {
    if is_full {
        let laid_out =
            serde_json::from_str::<Value>(text).ok().filter(|value| value.is_object() || value.is_array());
        let laid_out = laid_out.and_then(|value| serde_json::to_string_pretty(&value).ok());
        return laid_out.as_deref().unwrap_or(text).lines().map(str::to_owned).collect();
    }
    let room = output.columns.map_or(PLAIN_TEXT_MAX, |columns| columns.saturating_sub(14).max(20));
    let cut = clip(text, room);
    if cut.ends_with('…') && text.len() > PLAIN_TEXT_MAX {
        let rest = format!("({} bytes; --full shows all)", text.len());
        return vec![cut, rest];
    }
    vec![cut]
}

/// What something was begun with.
fn input_of(event: &Event) -> Option<&str> {
    match &event.kind {
        EventKind::ActivityScheduled { input, .. } | EventKind::SubOrchestrationScheduled { input, .. } => {
            Some(input)
        }
        _ => None,
    }
}

/// So much of a text is shown where there is no terminal.
const PLAIN_TEXT_MAX: usize = 1000;
/// Width of the timeline where there is no terminal.
const PLAIN_COLUMNS: usize = 120;
