//! `cdb top`: what is going on, again and again.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use duroxide::Client;
use duroxide::providers::SystemMetrics;
use duroxide_cdb::CosmosDBProvider;
use serde_json::json;

use crate::commands::queues::{self, Pile};
use crate::context::{Connection, ConnectionArgs, refuse_user};
use crate::exit::Problem;
use crate::interrupt::{Interrupt, Resizes};
use crate::ledger::{self, Line as Entry};
use crate::output::{
    Column, FullScreen, Keys, Line, Output, Paint, Style, Table, clip, is_terminal, parse_span, span,
};

/// Watch instances, queues, rates, request units and latency.
///
/// Rates are differences between two looks. Requests and request units of the whole account are known where its
/// emulator has a management port; latency is that of this command's own reads. On a terminal it goes on until q or
/// Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Management endpoint of a running emulator, as its ready line says.
    #[arg(long, value_name = "URL")]
    management: Option<String>,

    /// Time between two looks.
    #[arg(long, default_value = "1s", value_name = "SPAN", value_parser = parse_span)]
    interval: Duration,

    /// Look twice, print once, and end; that is also what happens when standard output is no terminal.
    #[arg(long)]
    once: bool,

    /// Print JSON, once.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Ends it.
const QUIT: u8 = b'q';
/// Looks that the latencies are taken from.
const LOOKS_KEPT: usize = 1000;
/// So many request units a look may cost on average for counting. A container with a few hundred instances is counted
/// each time.
const UNITS_PER_LOOK: f64 = 5.0;

const EXAMPLES: &str = "Examples:
  cdb top --endpoint http://localhost:8081
  cdb top --endpoint http://localhost:8081 --management http://localhost:8082
  cdb top --once --json --data cdb-demo";

/// One look.
struct Look {
    at: Instant,
    metrics: SystemMetrics,
    /// When the instances were counted, and for how much, if that was not now.
    stale: Option<(Instant, f64)>,
    piles: BTreeMap<(String, String), Pile>,
    ledger: Vec<Entry>,
    /// How long our own requests took.
    times: [(&'static str, Duration); 3],
}

/// Counts instances as often as that is worth it. Counting reads every head, so its price is spread over many looks: a
/// container must not be throttled by who watches it.
struct Counting {
    provider: Arc<CosmosDBProvider>,
    client: Client,
    last: Option<Counted>,
}

/// The last count.
struct Counted {
    metrics: SystemMetrics,
    at: Instant,
    cost: f64,
    /// Looks since then.
    looks: u32,
}

impl Counting {
    /// What was counted, and when and for how much if that was not now.
    async fn count(&mut self) -> anyhow::Result<(SystemMetrics, Option<(Instant, f64)>)> {
        if let Some(last) = &mut self.last
            && is_recent(last.looks + 1, last.cost)
        {
            last.looks += 1;
            return Ok((last.metrics.clone(), Some((last.at, last.cost))));
        }
        let before = self.provider.spending().total.request_units;
        let metrics = self.client.get_system_metrics().await?;
        let cost = self.provider.spending().total.request_units - before;
        self.last = Some(Counted { metrics: metrics.clone(), at: Instant::now(), cost, looks: 0 });
        Ok((metrics, None))
    }
}

/// Whether a count for this price is still good at the so-manieth look after it.
fn is_recent(looks: u32, cost: f64) -> bool {
    f64::from(looks) * UNITS_PER_LOOK < cost
}

/// How long our own requests took, in every look so far.
#[derive(Default)]
struct Latencies(BTreeMap<&'static str, Vec<Duration>>);

impl Latencies {
    fn note(&mut self, look: &Look) {
        for (what, time) in look.times {
            let times = self.0.entry(what).or_default();
            if times.len() == LOOKS_KEPT {
                times.remove(0);
            }
            times.push(time);
        }
    }

    /// What was asked, the last time, the median and the longest.
    fn rows(&self) -> impl Iterator<Item = (&'static str, [Duration; 3])> {
        self.0.iter().map(|(what, times)| {
            let mut sorted = times.clone();
            sorted.sort();
            let [last, longest] = [times, &sorted].map(|list| list.last().copied().unwrap_or_default());
            (*what, [last, sorted.get(sorted.len() / 2).copied().unwrap_or_default(), longest])
        })
    }
}

/// Looks until told to stop.
pub(crate) async fn run(args: &TopArgs) -> anyhow::Result<()> {
    args.management.as_deref().map_or(Ok(()), refuse_user)?;
    let connection = Connection::open(&args.connection).await?;
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let outcome = tokio::select! {
        outcome = watch(&connection, args) => outcome,
        // That is how a screen is left; anything else has not said what it was asked for.
        () = interrupt.wait() => if is_screen(args) {
            Ok(())
        } else {
            Err(Problem::Interrupted("stopped before the second look".to_owned()).into())
        },
    };
    connection.close().await;
    outcome
}

fn is_screen(args: &TopArgs) -> bool {
    !args.once && !args.json && is_terminal()
}

async fn watch(connection: &Connection, args: &TopArgs) -> anyhow::Result<()> {
    let provider = connection.provider().await?;
    let mut census = Counting { client: Client::new(provider.clone()), provider, last: None };
    let census = &mut census;
    if is_screen(args) {
        let mut keys = Keys::listen();
        let mut screen = FullScreen::enter()?;
        return tokio::select! {
            outcome = draw_again_and_again(&mut screen, connection, census, args) => outcome,
            () = keys.pressed(QUIT) => Ok(()),
        };
    }
    let output = Output::new(args.json);
    let mut latencies = Latencies::default();
    let before = look(connection, census, args).await?;
    tokio::time::sleep(args.interval).await;
    let now = look(connection, census, args).await?;
    latencies.note(&now);
    if output.is_json() {
        output.json(&to_json(&before, &now, &latencies))?;
        return Ok(());
    }
    for line in frame(&before, &now, &latencies, output, &connection.place()) {
        output.line(line)?;
    }
    Ok(())
}

async fn draw_again_and_again(
    screen: &mut FullScreen,
    connection: &Connection,
    census: &mut Counting,
    args: &TopArgs,
) -> anyhow::Result<()> {
    let mut resizes = Resizes::listen().context("cannot listen for signals")?;
    let title = format!("{}   every {}, q quits", connection.place(), span_of(args.interval));
    screen.draw(&[title.as_str().into(), Line::default(), "looking…".into()])?;
    let mut latencies = Latencies::default();
    let mut before = look(connection, census, args).await?;
    tokio::time::sleep(args.interval).await;
    loop {
        let now = look(connection, census, args).await?;
        latencies.note(&now);
        let next = tokio::time::sleep(args.interval);
        let mut next = std::pin::pin!(next);
        loop {
            screen.draw(&frame(&before, &now, &latencies, Output::new(false), &title))?;
            tokio::select! {
                () = &mut next => break,
                () = resizes.next() => {}
            }
        }
        before = now;
    }
}

fn span_of(time: Duration) -> String {
    span(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

async fn look(connection: &Connection, census: &mut Counting, args: &TopArgs) -> anyhow::Result<Look> {
    let documents = connection.documents()?;
    let (_, read) = timed(documents.read("__meta__", "format")).await?;
    let (piles, queued) = timed(queues::read(&documents)).await?;
    let ((metrics, stale), counted) = timed(census.count()).await?;
    let ledger = match (&args.management, connection.emulator()) {
        (Some(management), _) => ledger::fetch(management)
            .await
            .with_context(|| format!("cannot read the ledger of {management}"))?,
        (None, Some(emulator)) => {
            let lines = emulator.ledger().snapshot().lines.into_iter().map(|line| Entry {
                operation: serde_json::to_value(line.operation)
                    .ok()
                    .and_then(|name| name.as_str().map(str::to_owned))
                    .unwrap_or_default(),
                requests: line.totals.requests,
                failures: line.totals.failures,
                refused: line.totals.refused,
                request_units: line.totals.request_units,
            });
            ledger::sum(lines.collect())
        }
        (None, None) => Vec::new(),
    };
    Ok(Look {
        at: Instant::now(),
        metrics,
        stale,
        piles,
        ledger,
        times: [
            ("read of a document", read),
            ("look at the queues", queued),
            ("count of instances", counted),
        ],
    })
}

async fn timed<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, Duration)> {
    let began = Instant::now();
    let outcome = work.await?;
    Ok((outcome, began.elapsed()))
}

/// What the account did per second between two looks.
struct Rate {
    operation: String,
    requests: f64,
    request_units: f64,
    failures: f64,
}

fn rates(before: &Look, now: &Look) -> Vec<Rate> {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
    let rate = |line: &Entry| {
        let old =
            before.ledger.iter().find(|old| old.operation == line.operation).cloned().unwrap_or_default();
        let per_second = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        Rate {
            operation: line.operation.clone(),
            requests: per_second(line.requests, old.requests),
            request_units: (line.request_units - old.request_units).max(0.0) / seconds,
            failures: per_second(line.troubles(), old.troubles()),
        }
    };
    now.ledger.iter().map(rate).filter(|rate| rate.requests > 0.0).collect()
}

fn frame(before: &Look, now: &Look, latencies: &Latencies, output: Output, title: &str) -> Vec<Line> {
    let style = output.style;
    let columns = output.columns.unwrap_or(usize::MAX);
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
    let rate = |new: u64, old: u64| format!("{:+.1}/s", (new as f64 - old as f64) / seconds);
    let (new, old) = (&now.metrics, &before.metrics);
    let mut lines = vec![style.bold(&clip(title, columns)), Line::default()];
    let mut table =
        Table::new(vec![Column::new("INSTANCES"), Column::number("NOW"), Column::number("CHANGE")]);
    for (what, new, old, paint) in [
        ("running", new.running_instances, old.running_instances, Style::busy as Paint),
        ("completed", new.completed_instances, old.completed_instances, Style::good),
        ("failed", new.failed_instances, old.failed_instances, Style::bad),
        ("all", new.total_instances, old.total_instances, Style::bold),
        ("events", new.total_events, old.total_events, Style::dim),
    ] {
        table.painted_row([what.to_owned(), new.to_string(), rate(new, old)], 0, paint);
    }
    lines.extend(table.lines(output.columns, style));
    if let Some((at, cost)) = now.stale {
        let ago = span_of(now.at.duration_since(at));
        lines.push(style.dim(&format!("counted {ago} ago: counting them costs {cost:.0} request units")));
    }
    lines.push(Line::default());
    if now.piles.is_empty() {
        lines.push(style.dim("nothing waits"));
    } else {
        lines.extend(queues::table("WAITING", &now.piles).lines(output.columns, style));
    }
    lines.push(Line::default());
    lines.extend(latency_table(latencies).lines(output.columns, style));
    let rates = rates(before, now);
    if !rates.is_empty() {
        lines.push(Line::default());
        lines.extend(rate_table(&rates).lines(output.columns, style));
    }
    lines
}

fn latency_table(latencies: &Latencies) -> Table {
    let mut table = Table::new(vec![
        Column::new("LATENCY"),
        Column::number("NOW"),
        Column::number("MEDIAN"),
        Column::number("LONGEST"),
    ]);
    for (what, times) in latencies.rows() {
        let [now, median, longest] = times.map(|time| format!("{:.1} ms", milliseconds(time)));
        table.row([what.to_owned(), now, median, longest]);
    }
    table
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn rate_table(rates: &[Rate]) -> Table {
    let mut table = Table::new(vec![
        Column::new("OPERATION"),
        Column::number("REQUESTS/S"),
        Column::number("RU/S"),
        Column::number("FAILED/S"),
    ]);
    let mut row = |name: &str, requests: f64, units: f64, failures: f64| {
        table.row([
            name.to_owned(),
            format!("{requests:.1}"),
            format!("{units:.1}"),
            format!("{failures:.1}"),
        ]);
    };
    for rate in rates {
        row(&rate.operation, rate.requests, rate.request_units, rate.failures);
    }
    let sum = |pick: fn(&Rate) -> f64| rates.iter().map(pick).sum::<f64>();
    row("all", sum(|rate| rate.requests), sum(|rate| rate.request_units), sum(|rate| rate.failures));
    table
}

fn to_json(before: &Look, now: &Look, latencies: &Latencies) -> serde_json::Value {
    let metrics = &now.metrics;
    json!({
        "seconds": now.at.duration_since(before.at).as_secs_f64(),
        "instances": {
            "running": metrics.running_instances,
            "completed": metrics.completed_instances,
            "failed": metrics.failed_instances,
            "all": metrics.total_instances,
        },
        "executions": metrics.total_executions,
        "events": metrics.total_events,
        "waiting": now.piles.iter().map(|((queue, what), pile)| json!({
            "queue": queue, "what": what, "ready": pile.ready, "locked": pile.locked, "later": pile.later,
            "oldestMs": pile.oldest_ms,
        })).collect::<Vec<_>>(),
        "operations": rates(before, now).iter().map(|rate| json!({
            "operation": rate.operation, "requestsPerSecond": rate.requests,
            "requestUnitsPerSecond": rate.request_units, "failuresPerSecond": rate.failures,
        })).collect::<Vec<_>>(),
        "latencies": latencies.rows().map(|(what, [now, median, longest])| json!({
            "what": what, "nowMs": milliseconds(now), "medianMs": milliseconds(median),
            "longestMs": milliseconds(longest),
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dear_to_count_is_counted_rarely() {
        assert!(!is_recent(1, 4.0), "a small container is counted each time");
        assert!(is_recent(1, 906.0) && is_recent(181, 906.0) && !is_recent(182, 906.0));
    }
}
