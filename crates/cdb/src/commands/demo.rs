//! `cdb demo`: the bakery, run 1 and every further one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{Client, OrchestrationStatus};
use duroxide_cdb::CosmosDBProvider;

use crate::clock::now_ms;
use crate::commands::dashboard::announcement;
use crate::context::{Connection, ConnectionArgs, DEMO_FOLDER, IfMissing, Place, Target};
use crate::dashboard::{Dashboard, SideArgs};
use crate::demo::bakery::{self, SCENARIOS};
use crate::demo::board::{Board, Origin, Phase, Row};
use crate::demo::costs::Costs;
use crate::demo::past::{self, Past};
use crate::demo::screen::Screen;
use crate::demo::summary;
use crate::exit::Problem;
use crate::interrupt::Interrupt;
use crate::output::{Output, ago, line, plural};

/// See durable workflows run, stop and continue.
///
/// Starts an embedded Cosmos DB emulator on a data folder and runs eight workflows of a bakery on it: a sequence with
/// a retry, a fan-out over 20 activities, sub-orchestrations, a durable timer, an external event, continue-as-new,
/// key-value state and a session. At the end it shows what each cost in requests and request units.
///
/// Stop it with Ctrl-C in the middle and run it again: the workflows go on where they were. Everything stays in the
/// folder, where the other commands can look at it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// Keep the data in memory; nothing is left and nothing can be continued.
    #[arg(long, conflicts_with_all = ["data", "endpoint"])]
    memory: bool,

    /// Milliseconds that one step of a workflow takes.
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pace: u64,

    /// Serve the pages of `cdb dashboard` meanwhile, and go on serving them afterwards until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    dashboard: bool,

    #[command(flatten)]
    pages: SideArgs,

    /// Print the summary as JSON and nothing else.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb demo                        data in ./cdb-demo
  cdb demo --data /tmp/bakery     data somewhere else
  cdb demo --pace 2000            slowly, with time to press Ctrl-C
  cdb demo --dashboard            the same with pages to watch it in a browser
  COSMOS_ENDPOINT=https://NAME.documents.azure.com:443/ COSMOS_KEY=... cdb demo   on a real account";

/// Runs the demo.
pub(crate) async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let target =
        Target::resolve(&args.connection, |name| std::env::var(name).ok(), || Ok(default_place(args)))?;
    let output = Output::new(args.json);
    let connection = match args.dashboard {
        true => Connection::open_managed(target, IfMissing::Create).await?,
        false => Connection::open_target(target, IfMissing::Create).await?,
    };
    let connection = Arc::new(connection);
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let outcome = play(&connection, output, args, &mut interrupt).await;
    if let Some(connection) = Arc::into_inner(connection) {
        connection.close().await;
    }
    outcome
}

async fn play(
    connection: &Arc<Connection>,
    output: Output,
    args: &DemoArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    if !args.dashboard {
        return Demo::open(connection, output, args).await?.conduct(interrupt).await;
    }
    let dashboard = Dashboard::open(connection.clone(), &args.pages.options(), None).await?;
    output.line(announcement(&dashboard))?;
    let outcome = match Demo::open(connection, output, args).await {
        Ok(demo) => demo.conduct(interrupt).await,
        Err(error) => Err(error),
    };
    if outcome.is_ok() {
        output.line("")?;
        output.line(announcement(&dashboard))?;
        interrupt.wait().await;
    }
    dashboard.close().await;
    outcome
}

fn default_place(args: &DemoArgs) -> Place {
    if args.memory { Place::Memory } else { Place::Folder(PathBuf::from(DEMO_FOLDER)) }
}

/// One run of the demo.
struct Demo<'a> {
    connection: &'a Connection,
    output: Output,
    pace: Duration,
    provider: Arc<CosmosDBProvider>,
    client: Client,
    number: u32,
    board: Arc<Board>,
    began: Instant,
}

impl<'a> Demo<'a> {
    /// Finds out what is there and decides what to run.
    async fn open(connection: &'a Connection, output: Output, args: &DemoArgs) -> anyhow::Result<Self> {
        let provider = connection.provider_with(|_| {}).await?;
        let client = Client::new(provider.clone());
        let past = Past::read(&client, &connection.documents()?).await?;
        let (number, rows) = match (past.unfinished(), &past.last) {
            (Some(run), _) => (run.number, run.rows.clone()),
            (None, last) => {
                let number = last.as_ref().map_or(1, |run| run.number + 1);
                let rows = SCENARIOS
                    .iter()
                    .map(|scenario| Row::new(past::instance(number, scenario), scenario, Origin::Started, 0));
                (number, rows.collect())
            }
        };
        if !output.is_json() {
            greet(connection, output, &past, number)?;
        }
        Ok(Self {
            connection,
            output,
            pace: Duration::from_millis(args.pace),
            provider,
            client,
            number,
            board: Arc::new(Board::new(rows)),
            began: Instant::now(),
        })
    }

    /// Runs until everything has ended or somebody wants to stop.
    async fn conduct(self, interrupt: &mut Interrupt) -> anyhow::Result<()> {
        let mut costs = Costs::since(&self.provider.spending());
        let mut screen = Screen::new(self.output);
        screen.draw(&self.board.rows(), self.hint())?;
        let runtime = Runtime::start_with_options(
            self.provider.clone(),
            bakery::activities(&self.board, self.pace),
            bakery::orchestrations(&self.board, self.pace),
            options(),
        )
        .await;
        let outcome = tokio::select! {
            outcome = self.connection.guard(self.watch(&mut screen, &mut costs)) => outcome.map(|()| true),
            () = interrupt.wait() => Ok(false),
        };
        // What is under way may finish: an activity that is cut off would be repeated by the next run.
        runtime.shutdown(Some(SHUTDOWN_GRACE_MS.max(self.pace_ms() + 200).min(SHUTDOWN_GRACE_MS_MAX))).await;
        let is_done = outcome.map_err(|error| match error.downcast::<Problem>() {
            Ok(Problem::Folder(text)) => {
                Problem::Folder(format!("{text} {} continues.", self.again())).into()
            }
            Ok(problem) => problem.into(),
            Err(error) => error,
        })?;
        costs.read(&self.provider.spending());
        let rows = self.board.rows();
        if is_done {
            screen.clear()?;
            return self.summarise(&rows, &costs);
        }
        screen.draw(&rows, "Stopped.")?;
        let done = rows.iter().filter(|row| row.phase.has_ended()).count();
        let what_next = if self.forgets() {
            "They were in memory and are gone.".to_owned()
        } else {
            format!("Nothing is lost: {} continues them.", self.again())
        };
        let text = format!("stopped with {done} of {} workflows done. {what_next}", rows.len());
        Err(Problem::Interrupted(text).into())
    }

    /// Whether nothing is left when it ends.
    fn forgets(&self) -> bool {
        self.connection.target.place == Place::Memory
    }

    fn hint(&self) -> &'static str {
        if self.forgets() { "Ctrl-C stops." } else { "Ctrl-C stops; the next run continues." }
    }

    /// Starts what is new, says yes to the cake, and follows everything to its end.
    async fn watch(&self, screen: &mut Screen, costs: &mut Costs) -> anyhow::Result<()> {
        for row in self.board.rows().iter().filter(|row| row.origin == Origin::Started) {
            self.client.start_orchestration(&row.instance, row.scenario.name, row.scenario.input).await?;
        }
        let mut approval_sent = false;
        loop {
            let rows = self.board.rows();
            for row in rows.iter().filter(|row| row.phase == Phase::Returned) {
                if let Some(phase) = self.stored_end(&row.instance).await? {
                    self.board.ended(&row.instance, &phase);
                }
            }
            if !approval_sent && self.began.elapsed() >= self.pace * APPROVAL_AFTER {
                approval_sent = self.approve(&rows).await?;
            }
            costs.read(&self.provider.spending());
            let rows = self.board.rows();
            screen.draw(&rows, self.hint())?;
            if rows.iter().all(|row| row.phase.has_ended()) {
                return Ok(());
            }
            // A change is shown at once, the clock ten times a second.
            let _ = tokio::time::timeout(TICK, self.board.changed()).await;
        }
    }

    /// Raises the event for the workflow that waits for it; false if it does not wait yet.
    async fn approve(&self, rows: &[Row]) -> anyhow::Result<bool> {
        let Some(row) = rows.iter().find(|row| row.scenario.name == "approve") else { return Ok(true) };
        match (&row.phase, row.origin) {
            (Phase::Waiting, Origin::Started | Origin::Earlier) => Ok(false),
            // A continued one waits since an earlier process; nothing else will wake it.
            (Phase::Waiting, Origin::Continued) | (Phase::Running, _) => {
                self.client.raise_event(&row.instance, bakery::APPROVAL, "Anna").await?;
                Ok(true)
            }
            (Phase::Returned | Phase::Completed(_) | Phase::Failed(_), _) => Ok(true),
        }
    }

    /// How a workflow has ended, if its end is stored.
    async fn stored_end(&self, instance: &str) -> anyhow::Result<Option<Phase>> {
        Ok(match self.client.get_orchestration_status(instance).await? {
            OrchestrationStatus::Completed { output, .. } => Some(Phase::Completed(output)),
            OrchestrationStatus::Failed { details, .. } => Some(Phase::Failed(details.display_message())),
            OrchestrationStatus::NotFound | OrchestrationStatus::Running { .. } => None,
        })
    }

    fn summarise(&self, rows: &[Row], costs: &Costs) -> anyhow::Result<()> {
        let took_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        if self.output.is_json() {
            self.output.json(&summary::to_json(self.number, rows, costs, took_ms))?;
            return failures(rows);
        }
        self.output.table(&summary::table(rows, costs, took_ms))?;
        for line in summary::continuations(rows) {
            self.output.line(&line)?;
        }
        if self.connection.target.place != Place::Memory {
            self.hints()?;
        }
        failures(rows)
    }

    fn hints(&self) -> anyhow::Result<()> {
        let style = self.output.style;
        let place = self.connection.target.options();
        let run = self.number;
        self.output.line("")?;
        self.output.line("Look around:")?;
        for (command, what) in [
            (format!("{} instances {place}", program()), "everything that is stored"),
            (format!("{} dashboard {place}", program()), "all of it in a browser"),
            (format!("{} show bakery-{run}-order {place}", program()), "one workflow and its timeline"),
            (format!("{} tree bakery-{run}-deliver {place}", program()), "a workflow and its children"),
            (self.again(), "another run; what is above stays"),
        ] {
            self.output.line(line![format!("  {command:<44}  "), style.dim(what)])?;
        }
        Ok(())
    }

    /// The command that runs the demo again at the same place.
    fn again(&self) -> String {
        match &self.connection.target.place {
            Place::Folder(folder) if folder == std::path::Path::new(DEMO_FOLDER) => {
                format!("{} demo", program())
            }
            Place::Memory | Place::Folder(_) | Place::Account { .. } => {
                format!("{} demo {}", program(), self.connection.target.options())
            }
        }
    }

    fn pace_ms(&self) -> u64 {
        u64::try_from(self.pace.as_millis()).unwrap_or(u64::MAX)
    }
}

/// How this program was called, so that what we say can be typed: `cdb`, or `target/release/cdb` after `cargo run`.
fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned();
    if name.is_empty() || name.len() > PROGRAM_MAX { "cdb".to_owned() } else { name }
}

/// Where it runs and what earlier runs left.
fn greet(connection: &Connection, output: Output, past: &Past, number: u32) -> anyhow::Result<()> {
    let place = match &connection.target.place {
        Place::Folder(folder) => format!("an embedded emulator, data in {}", folder.display()),
        Place::Memory => "an embedded emulator in memory".to_owned(),
        Place::Account { endpoint, .. } => endpoint.clone(),
    };
    output.line(line![output.style.bold(&format!("The bakery, run {number},")), format!(" on {place}")])?;
    if let Some(last) = &past.last {
        let when = ago(last.last_moved_ms, now_ms());
        let done = last.rows.iter().filter(|row| row.origin == Origin::Earlier).count();
        output.line(format!(
            "Still there from before: {} of {}; run {} last moved {when}, {done} of its {} workflows done.",
            plural(past.instances, "instance"),
            plural(usize::try_from(last.number).unwrap_or(usize::MAX), "run"),
            last.number,
            last.rows.len()
        ))?;
    }
    if past.unfinished().is_some() {
        output.line("It was not finished: its workflows continue where they were.")?;
    }
    output.line("")?;
    Ok(())
}

fn failures(rows: &[Row]) -> anyhow::Result<()> {
    let failed: Vec<&str> = rows
        .iter()
        .filter(|row| matches!(row.phase, Phase::Failed(_)))
        .map(|row| row.instance.as_str())
        .collect();
    if failed.is_empty() { Ok(()) } else { anyhow::bail!("these workflows failed: {}", failed.join(", ")) }
}

/// Locks end soon, so that a run after a crash need not wait long; a steady node name keeps its sessions.
fn options() -> RuntimeOptions {
    RuntimeOptions {
        orchestration_concurrency: 2,
        worker_concurrency: 4,
        worker_lock_timeout: Duration::from_secs(4),
        worker_lock_renewal_buffer: Duration::from_secs(2),
        session_lock_timeout: Duration::from_secs(4),
        session_lock_renewal_buffer: Duration::from_secs(2),
        worker_node_id: Some("bakery".to_owned()),
        ..RuntimeOptions::default()
    }
}

/// Longer paths would bury the command they begin.
const PROGRAM_MAX: usize = 24;
/// The baker says yes after this many steps' time.
const APPROVAL_AFTER: u32 = 10;
const TICK: Duration = Duration::from_millis(100);
/// Activities under way may take this long to end when the demo is stopped.
const SHUTDOWN_GRACE_MS: u64 = 700;
/// Nobody waits longer than this after Ctrl-C.
const SHUTDOWN_GRACE_MS_MAX: u64 = 1500;
