//! `cdb dead-letters`: messages that could never be delivered.

use clap::{Args, Subcommand};
use cosmos_driver::Query;
use duroxide_cdb::CosmosDBProvider;
use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs};
use crate::documents::Documents;
use crate::exit::Problem;
use crate::model::{DeadLetter, InWords as _, text_of};
use crate::output::{Column, Output, Table, ago, plural, say};

/// Look at messages that could never be delivered, send them again or drop them.
#[derive(Debug, Args)]
#[command(visible_alias = "dl", after_help = EXAMPLES)]
pub(crate) struct DeadLettersArgs {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "Examples:
  cdb dead-letters list --data cdb-demo
  cdb dead-letters show dead:intent:3:0
  cdb dead-letters requeue dead:intent:3:0
  cdb dead-letters drop --all --yes";

#[derive(Debug, Subcommand)]
enum Action {
    /// List dead letters, the latest first.
    List(ListArgs),
    /// Show a dead letter with its message.
    Show(OneArgs),
    /// Send dead letters again to where they were going.
    Requeue(SomeArgs),
    /// Delete dead letters; their messages are lost.
    Drop(SomeArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print JSON, one per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
struct OneArgs {
    /// Id of the dead letter.
    id: String,

    /// Instance that sent it, where several letters have the same id.
    #[arg(long, value_name = "INSTANCE")]
    from: Option<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Args)]
struct SomeArgs {
    /// Ids of dead letters.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,

    /// All of them.
    #[arg(long)]
    all: bool,

    /// Only those this instance sent.
    #[arg(long, value_name = "INSTANCE")]
    from: Option<String>,

    /// Do it to several; without it they are only counted.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Does one of the four.
pub(crate) async fn run(args: &DeadLettersArgs) -> anyhow::Result<()> {
    match &args.action {
        Action::List(args) => list(args).await,
        Action::Show(args) => show(args).await,
        Action::Requeue(args) => change(args, Change::Requeue).await,
        Action::Drop(args) => change(args, Change::Drop).await,
    }
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Requeue,
    Drop,
}

async fn list(args: &ListArgs) -> anyhow::Result<()> {
    let letters =
        Connection::during(&args.connection, async |connection| read(&connection.documents()?).await).await?;
    let output = Output::new(args.json);
    if output.is_json() {
        for letter in &letters {
            output.json_line(&to_json(letter))?;
        }
        return Ok(());
    }
    if letters.is_empty() {
        say("there are no dead letters");
        return Ok(());
    }
    let now = now_ms();
    let mut table = Table::new(vec![
        Column::flexible("ID", 12),
        Column::flexible("FROM", 10),
        Column::flexible("TO", 10),
        Column::flexible("WHAT", 10),
        Column::new("DIED"),
        Column::flexible("REASON", 16),
    ]);
    for letter in &letters {
        table.row([
            letter.id.clone(),
            letter.instance_id.clone(),
            letter.target_instance_id.clone(),
            letter.describe(),
            ago(letter.died_at, now),
            letter.reason.clone(),
        ]);
    }
    output.table(&table)?;
    Ok(())
}

async fn show(args: &OneArgs) -> anyhow::Result<()> {
    let letters =
        Connection::during(&args.connection, async |connection| read(&connection.documents()?).await).await?;
    let found: Vec<DeadLetter> =
        letters.into_iter().filter(|letter| matches(letter, &args.id, args.from.as_deref())).collect();
    match found.as_slice() {
        [] => Err(missing(&args.id).into()),
        [letter] => Ok(Output::new(true).json_indented(&to_json(letter))?),
        several => {
            let senders: Vec<&str> = several.iter().map(|letter| letter.instance_id.as_str()).collect();
            Err(Problem::Usage(format!(
                "several have the id {:?}: add --from with one of {}",
                args.id,
                senders.join(", ")
            ))
            .into())
        }
    }
}

async fn change(args: &SomeArgs, change: Change) -> anyhow::Result<()> {
    let what = match change {
        Change::Requeue => "sent again",
        Change::Drop => "dropped",
    };
    Connection::during(&args.connection, async |connection| {
        let documents = connection.documents()?;
        let letters = read(&documents).await?;
        for id in &args.ids {
            if !letters.iter().any(|letter| matches(letter, id, args.from.as_deref())) {
                return Err(missing(id).into());
            }
        }
        let is_wanted = |letter: &&DeadLetter| {
            args.from.as_ref().is_none_or(|from| *from == letter.instance_id)
                && (args.all || args.ids.contains(&letter.id))
        };
        let wanted: Vec<&DeadLetter> = letters.iter().filter(is_wanted).collect();
        if wanted.len() != 1 && !args.yes {
            let lost = if matches!(change, Change::Drop) { ", their messages lost" } else { "" };
            let what_now = if wanted.is_empty() { "" } else { ": add --yes to do it" };
            say(format!("{} would be {what}{lost}{what_now}", plural(wanted.len(), "dead letter")));
            return Ok(());
        }
        // The provider moves the pieces of a large message with it, or removes them.
        let provider = connection.provider().await?;
        for letter in &wanted {
            change_one(&documents, &provider, letter, change).await?;
        }
        say(format!("{} {what}", plural(wanted.len(), "dead letter")));
        Ok(())
    })
    .await
}

/// Sends one again, or drops it. One that cannot be read can only be dropped, as it is stored.
async fn change_one(
    documents: &Documents,
    provider: &CosmosDBProvider,
    letter: &DeadLetter,
    change: Change,
) -> anyhow::Result<()> {
    let (from, id) = (letter.instance_id.as_str(), letter.id.as_str());
    let stored = documents.read(from, id).await?.ok_or_else(|| missing(id))?;
    let damage = duroxide_cdb::unreadable(stored.to_string().as_bytes());
    match (change, damage) {
        (Change::Requeue, None) => provider.requeue_dead_letter(from, id).await?,
        (Change::Drop, None) => provider.drop_dead_letter(from, id).await?,
        (Change::Requeue, Some(why)) => {
            anyhow::bail!("{id:?} cannot be read, so it cannot be sent: {why}. `drop` removes it")
        }
        (Change::Drop, Some(_)) => {
            documents.delete(from, id, text_of(&stored, "_etag")).await?;
        }
    }
    Ok(())
}

/// All of them, the latest first.
pub(crate) async fn read(documents: &Documents) -> anyhow::Result<Vec<DeadLetter>> {
    let mut letters: Vec<DeadLetter> =
        documents.query_all(Query::new("SELECT * FROM c WHERE c.type = 'dead_letter'")).await?;
    letters.sort_by_key(|letter| std::cmp::Reverse(letter.died_at));
    Ok(letters)
}

fn matches(letter: &DeadLetter, id: &str, from: Option<&str>) -> bool {
    letter.id == id && from.is_none_or(|from| from == letter.instance_id)
}

fn missing(id: &str) -> Problem {
    Problem::Missing(format!("there is no dead letter {id:?}: `cdb dead-letters list` shows those there are"))
}

/// One with its message.
pub(crate) fn to_json(letter: &DeadLetter) -> Value {
    json!({
        "id": letter.id,
        "from": letter.instance_id,
        "to": letter.target_instance_id,
        "what": letter.describe(),
        "reason": letter.reason,
        "diedAt": letter.died_at,
        "message": letter.document,
    })
}
