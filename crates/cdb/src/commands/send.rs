//! `cdb start`, `raise`, `enqueue` and `cancel`: messages to instances, one or many.

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use crate::commands::wait::{WaitForArgs, tell_ends};
use crate::context::{Connection, ConnectionArgs, IfMissing, Target};
use crate::documents::Documents;
use crate::exit::Problem;
use crate::many::{Deed, Many, carry_out};
use crate::model::{Partition, kind};
use crate::output::{Output, say};

/// Start an orchestration.
///
/// A runtime that has it registered must run somewhere on the same container. Without an id one is made up and printed.
#[derive(Debug, Args)]
#[command(after_help = START_EXAMPLES)]
pub(crate) struct StartArgs {
    /// Id of the new instance [default: one is made up].
    id: Option<String>,

    /// Registered name of the orchestration.
    #[arg(long)]
    name: String,

    /// Version [default: the one the runtime's policy chooses].
    #[arg(long)]
    version: Option<String>,

    /// Input text; @FILE reads a file, @@ stands for one @ at the beginning.
    #[arg(long, default_value = "", value_name = "TEXT")]
    input: String,

    /// Make the database and the container if they are not there.
    #[arg(long)]
    create: bool,

    #[command(flatten)]
    wait: WaitForArgs,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const START_EXAMPLES: &str = "Examples:
  cdb start order-17 --name order --input '12 rye loaves'
  cdb start --name order --input '12 rye loaves' --wait
  cdb start nightly-2 --name report --version 1.2.0 --input @input.json";

/// Raise an external event, for a workflow that waits for it.
///
/// With filters it goes to all running workflows that they choose: then no id is typed, and without --yes they are only
/// counted.
#[derive(Debug, Args)]
#[command(after_help = RAISE_EXAMPLES)]
pub(crate) struct RaiseArgs {
    /// ID EVENT [DATA]; with filters EVENT [DATA]. In the data @FILE reads a file, @@ stands for one @ at the beginning.
    #[arg(num_args = 1..=3, required = true, value_names = ["ID", "EVENT", "DATA"])]
    words: Vec<String>,

    #[command(flatten)]
    many: Many,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const RAISE_EXAMPLES: &str = "Examples:
  cdb raise bakery-1-approve baker-says-yes Anna --data cdb-demo
  cdb raise order-17 paid @receipt.json
  cdb raise doors-open --name order --prefix order-2026 --yes";

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

/// Ask workflows to stop.
///
/// One that is named is asked at once. Several, or those that filters choose, are counted first; --yes asks them.
#[derive(Debug, Args)]
#[command(after_help = CANCEL_EXAMPLES)]
pub(crate) struct CancelArgs {
    /// Instance ids; or choose with the filters below.
    ids: Vec<String>,

    /// Why, for its history.
    #[arg(long, default_value = "cancelled by an operator")]
    reason: String,

    #[command(flatten)]
    many: Many,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const CANCEL_EXAMPLES: &str = "Examples:
  cdb cancel order-17 --reason 'the customer called'
  cdb cancel --prefix order-2026 --before 7d           how many that are
  cdb cancel --prefix order-2026 --before 7d --yes";

/// Starts an instance.
pub(crate) async fn start(args: &StartArgs) -> anyhow::Result<()> {
    let input = text(&args.input)?;
    let id = match &args.id {
        Some(id) => id.clone(),
        None => format!("{}-{}", args.name, &uuid::Uuid::new_v4().simple().to_string()[..8]),
    };
    require_id(&id)?;
    args.wait.check(&args.connection)?;
    let no_place =
        || Err(Problem::Usage("say where the container is: --endpoint and --key, or --data DIR".to_owned()));
    let target = Target::resolve(&args.connection, |name| std::env::var(name).ok(), no_place)?;
    // A name with a typo in it must not make a database that somebody pays for.
    let if_missing = if args.create { IfMissing::Create } else { IfMissing::Refuse };
    let connection = Connection::open_target(target, if_missing).await.map_err(or_create)?;
    let outcome = async {
        let client = connection.client().await?;
        require_free(&connection.documents()?, &id).await?;
        match &args.version {
            Some(version) => {
                client.start_orchestration_versioned(&id, &args.name, version, input.as_str()).await?;
            }
            None => client.start_orchestration(&id, &args.name, input.as_str()).await?,
        }
        if args.wait.is_wanted() {
            if args.id.is_none() {
                say(&id);
            }
            return tell_ends(&client, std::slice::from_ref(&id), args.wait.timeout(), args.json).await;
        }
        if args.id.is_none() && !args.json {
            Output::new(false).line(&id)?;
        }
        sent(args.json, &id, "start", &format!("{id} will start when a runtime takes it"))
    };
    let outcome = connection.guard(outcome).await;
    connection.close().await;
    outcome
}

fn or_create(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<Problem>() {
        Ok(Problem::Missing(text)) => {
            Problem::Missing(format!("{text}; `cdb start --create` as well")).into()
        }
        Ok(problem) => problem.into(),
        Err(error) => error,
    }
}

/// Raises an event, for one or for many.
pub(crate) async fn raise(args: &RaiseArgs) -> anyhow::Result<()> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let (id, event, data) = match (args.many.filter.is_any(), words.as_slice()) {
        (false, [id, event]) => (Some(*id), *event, ""),
        (false, [id, event, data]) => (Some(*id), *event, *data),
        (true, [event]) => (None, *event, ""),
        (true, [event, data]) => (None, *event, *data),
        (true, _) => {
            return Err(
                Problem::Usage("with filters say EVENT [DATA]: they choose the instances".into()).into()
            );
        }
        (false, _) => {
            return Err(Problem::Usage("say which instance and which event: ID EVENT [DATA]".into()).into());
        }
    };
    let data = text(data)?;
    Connection::during(&args.connection, async |connection| {
        let documents = connection.documents()?;
        let client = connection.client().await?;
        let Some(id) = id else {
            let deed = Deed { verb: "raise", done: format!("sent the event {event:?}"), is_json: args.json };
            let chosen = args.many.running(&documents, &[]).await?;
            return carry_out(&chosen, args.many.yes, &documents, &deed, |id| {
                let (client, data) = (&client, data.as_str());
                Box::pin(async move { Ok(client.raise_event(id, event, data).await?) })
            })
            .await;
        };
        require(&documents, id).await?;
        client.raise_event(id, event, data.as_str()).await?;
        sent(args.json, id, "raise", &format!("event {event:?} is on its way to {id}"))
    })
    .await
}

/// Puts a message into a queue.
pub(crate) async fn enqueue(args: &EnqueueArgs) -> anyhow::Result<()> {
    let data = text(&args.payload)?;
    Connection::during(&args.connection, async |connection| {
        require(&connection.documents()?, &args.id).await?;
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

/// Asks workflows to stop.
pub(crate) async fn cancel(args: &CancelArgs) -> anyhow::Result<()> {
    args.many.check(&args.ids)?;
    Connection::during(&args.connection, async |connection| {
        let documents = connection.documents()?;
        let client = connection.client().await?;
        if let [id] = args.ids.as_slice() {
            require(&documents, id).await?;
            client.cancel_instance(id, args.reason.as_str()).await?;
            return sent(args.json, id, "cancel", &format!("{id} is asked to stop"));
        }
        let deed = Deed { verb: "cancel", done: "asked to stop".to_owned(), is_json: args.json };
        let chosen = args.many.running(&documents, &args.ids).await?;
        carry_out(&chosen, args.many.yes, &documents, &deed, |id| {
            let (client, reason) = (&client, args.reason.as_str());
            Box::pin(async move { Ok(client.cancel_instance(id, reason).await?) })
        })
        .await
    })
    .await
}

/// An id that a person can name again.
pub(crate) fn require_id(id: &str) -> Result<(), Problem> {
    if id.trim().is_empty() {
        return Err(Problem::Usage("an instance needs an id: an empty one cannot be named again".to_owned()));
    }
    if duroxide_cdb::is_reserved(id) {
        return Err(Problem::Usage(format!("the id {id:?} is the provider's own: choose another")));
    }
    Ok(())
}

/// A start for an id that is taken would be dropped without a word.
pub(crate) async fn require_free(documents: &Documents, id: &str) -> anyhow::Result<()> {
    let partition = Partition::new(documents.partition(id).await?);
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
pub(crate) async fn require(documents: &Documents, id: &str) -> anyhow::Result<()> {
    let partition = Partition::new(documents.partition(id).await?);
    if partition.is_empty() {
        return Err(Problem::no_instance(id).into());
    }
    if let Some(head) = partition.head().filter(crate::model::Head::has_ended) {
        anyhow::bail!("{id:?} has ended ({}): it takes no more messages", head.status);
    }
    Ok(())
}

pub(crate) fn sent(json: bool, id: &str, what: &str, sentence: &str) -> anyhow::Result<()> {
    if json {
        Output::new(true).json(&json!({"instance": id, "sent": what}))?;
    } else {
        say(sentence);
    }
    Ok(())
}

/// A text that was typed, or the file that it names.
pub(crate) fn text(argument: &str) -> anyhow::Result<String> {
    match argument.strip_prefix('@') {
        Some(text) if text.starts_with('@') => Ok(text.to_owned()),
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {path}")),
        None => Ok(argument.to_owned()),
    }
}
