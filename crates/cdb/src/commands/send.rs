//! `cdb start`, `raise`, `enqueue` and `cancel`: messages to instances.

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use crate::context::{Connection, ConnectionArgs, IfMissing, Target};
use crate::exit::Problem;
use crate::model::{Partition, kind};
use crate::output::{Output, say};

/// Start an orchestration.
///
/// A runtime that has it registered must run somewhere on the same container.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  cdb start order-17 --name order --input '12 rye loaves'\n  cdb start nightly-2 --name report --version 1.2.0 --input @input.json"
)]
pub(crate) struct StartArgs {
    /// Id of the new instance.
    id: String,

    /// Registered name of the orchestration.
    #[arg(long)]
    name: String,

    /// Version [default: the one the runtime's policy chooses].
    #[arg(long)]
    version: Option<String>,

    /// Input text; @FILE reads a file, @@ stands for one @ at the beginning.
    #[arg(long, default_value = "", value_name = "TEXT")]
    input: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Raise an external event, for a workflow that waits for it.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  cdb raise bakery-1-approve baker-says-yes Anna --data cdb-demo\n  cdb raise order-17 paid @receipt.json"
)]
pub(crate) struct RaiseArgs {
    /// Instance id.
    id: String,
    /// Name of the event.
    event: String,
    /// Text that comes with it; @FILE reads a file, @@ stands for one @ at the beginning.
    #[arg(default_value = "", value_name = "DATA")]
    payload: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Put a message into a queue of a workflow; it stays until it is taken out.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  cdb enqueue order-17 remarks 'without seeds, please'")]
pub(crate) struct EnqueueArgs {
    /// Instance id.
    id: String,
    /// Name of the queue.
    queue: String,
    /// Text of the message; @FILE reads a file, @@ stands for one @ at the beginning.
    #[arg(default_value = "", value_name = "DATA")]
    payload: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Ask a workflow to stop.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  cdb cancel order-17 --reason 'the customer called'")]
pub(crate) struct CancelArgs {
    /// Instance id.
    id: String,

    /// Why, for its history.
    #[arg(long, default_value = "cancelled by an operator")]
    reason: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Starts an instance; the container is made if this is the first one.
pub(crate) async fn start(args: &StartArgs) -> anyhow::Result<()> {
    let input = text(&args.input)?;
    let no_place =
        || Err(Problem::Usage("say where the container is: --endpoint and --key, or --data DIR".to_owned()));
    let target = Target::resolve(&args.connection, |name| std::env::var(name).ok(), no_place)?;
    let connection = Connection::open_target(target, IfMissing::Create).await?;
    let outcome = async {
        let client = connection.client().await?;
        require_free(&connection, &args.id).await?;
        match &args.version {
            Some(version) => {
                client.start_orchestration_versioned(&args.id, &args.name, version, input.as_str()).await?;
            }
            None => client.start_orchestration(&args.id, &args.name, input.as_str()).await?,
        }
        anyhow::Ok(())
    };
    let outcome = connection.guard(outcome).await;
    connection.close().await;
    outcome?;
    sent(args.json, &args.id, "start", &format!("{} will start when a runtime takes it", args.id))
}

/// Raises an event.
pub(crate) async fn raise(args: &RaiseArgs) -> anyhow::Result<()> {
    let data = text(&args.payload)?;
    Connection::during(&args.connection, async |connection| {
        require(connection, &args.id).await?;
        Ok(connection.client().await?.raise_event(&args.id, &args.event, data.as_str()).await?)
    })
    .await?;
    sent(args.json, &args.id, "raise", &format!("event {:?} is on its way to {}", args.event, args.id))
}

/// Puts a message into a queue.
pub(crate) async fn enqueue(args: &EnqueueArgs) -> anyhow::Result<()> {
    let data = text(&args.payload)?;
    Connection::during(&args.connection, async |connection| {
        require(connection, &args.id).await?;
        Ok(connection.client().await?.enqueue_event(&args.id, &args.queue, data.as_str()).await?)
    })
    .await?;
    sent(
        args.json,
        &args.id,
        "enqueue",
        &format!("a message for queue {:?} is on its way to {}", args.queue, args.id),
    )
}

/// Asks a workflow to stop.
pub(crate) async fn cancel(args: &CancelArgs) -> anyhow::Result<()> {
    Connection::during(&args.connection, async |connection| {
        require(connection, &args.id).await?;
        Ok(connection.client().await?.cancel_instance(&args.id, args.reason.as_str()).await?)
    })
    .await?;
    sent(args.json, &args.id, "cancel", &format!("{} is asked to stop", args.id))
}

/// A start for an id that is taken would be dropped without a word.
async fn require_free(connection: &Connection, id: &str) -> anyhow::Result<()> {
    let partition = Partition::new(connection.documents()?.partition(id).await?);
    if partition.is_empty() {
        return Ok(());
    }
    match partition.head() {
        Some(head) if head.kind == kind::DELETING => {
            anyhow::bail!("{id:?} is being deleted: choose another id, or wait until that is done")
        }
        Some(head) if head.is_visible() => {
            anyhow::bail!("there is an instance {id:?} already: choose another id, or delete that one")
        }
        _ => anyhow::bail!(
            "a start of {id:?} waits already and no runtime has taken it: `cdb why {id}` says more, or choose another id"
        ),
    }
}

/// A message to an instance that is not there would be dropped without a word; one that has ended takes no more.
async fn require(connection: &Connection, id: &str) -> anyhow::Result<()> {
    let partition = Partition::new(connection.documents()?.partition(id).await?);
    if partition.is_empty() {
        return Err(Problem::no_instance(id).into());
    }
    if let Some(head) = partition.head().filter(crate::model::Head::has_ended) {
        anyhow::bail!("{id:?} has ended ({}): it takes no more messages", head.status);
    }
    Ok(())
}

fn sent(json: bool, id: &str, what: &str, sentence: &str) -> anyhow::Result<()> {
    if json {
        Output::new(true).json(&json!({"instance": id, "sent": what}))?;
    } else {
        say(sentence);
    }
    Ok(())
}

fn text(argument: &str) -> anyhow::Result<String> {
    match argument.strip_prefix('@') {
        Some(text) if text.starts_with('@') => Ok(text.to_owned()),
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {path}")),
        None => Ok(argument.to_owned()),
    }
}
