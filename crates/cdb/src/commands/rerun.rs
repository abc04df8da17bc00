//! `cdb rerun`: once more from the beginning, as a new instance.

use clap::Args;
use duroxide::{Client, EventKind};

use crate::commands::send::{require_free, require_id, sent, text};
use crate::commands::wait::{WaitForArgs, tell_ends};
use crate::context::{Connection, ConnectionArgs};
use crate::documents::{Documents, tell_unreadable};
use crate::exit::Problem;
use crate::listing::{Status, Wanted, all};
use crate::many::{Deed, Many, carry_out};
use crate::output::{Output, say};

/// Run workflows again from the beginning: same name, version and input, as new instances.
///
/// The old ones stay as they are. One that is named is run at once; several, or those that filters choose, are counted
/// first, and --yes runs them. Filters without --status choose those that failed. A workflow that continued as new begins
/// with the input of its oldest execution that is still there. A child becomes a workflow of its own.
///
/// There is no way back into an instance that has ended: its parent and its clients were told how. Activities that can be
/// repeated make running it again cheap.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, aliases = ["restart", "retry"])]
pub(crate) struct RerunArgs {
    /// Instance ids; or choose with the filters below.
    ids: Vec<String>,

    /// Id of the new instance [default: the old one with -rerun- and some digits].
    #[arg(long = "as", value_name = "ID")]
    new_id: Option<String>,

    /// Another input; @FILE reads a file, @@ stands for one @ at the beginning.
    #[arg(long, value_name = "TEXT")]
    input: Option<String>,

    /// Another version.
    #[arg(long)]
    version: Option<String>,

    #[command(flatten)]
    wait: WaitForArgs,

    #[command(flatten)]
    many: Many,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb rerun order-17
  cdb rerun order-17 --input '13 rye loaves' --as order-17b --wait
  cdb rerun --name order --error 'no flour' --since 1h          how many that are
  cdb rerun --name order --error 'no flour' --since 1h --yes";

/// Whatever was typed after `rewind`.
#[derive(Debug, Args)]
pub(crate) struct RewindArgs {
    /// Instance ids.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Says that there is no way back, and what there is.
pub(crate) fn rewind(args: &RewindArgs) -> anyhow::Result<()> {
    let id = args.words.iter().find(|word| !word.starts_with('-')).map_or("ID", String::as_str);
    Err(Problem::Usage(format!(
        "there is no rewind: an instance that has ended stays as it ended, because its parent and its clients were told so. \
         `cdb rerun {id}` runs the same name, version and input as a new instance, --input changes the input"
    ))
    .into())
}

/// What a workflow was started with.
#[derive(Debug)]
struct Beginning {
    name: String,
    version: String,
    input: String,
}

/// Runs workflows again.
pub(crate) async fn run(args: &RerunArgs) -> anyhow::Result<()> {
    args.many.check(&args.ids)?;
    args.wait.check(&args.connection)?;
    let input = args.input.as_deref().map(text).transpose()?;
    if let Some(id) = &args.new_id {
        require_id(id)?;
    }
    Connection::during(&args.connection, async |connection| {
        let documents = connection.documents()?;
        let client = connection.client().await?;
        if let [id] = args.ids.as_slice() {
            let new = again(&client, &documents, id, args, input.as_deref()).await?;
            if args.wait.is_wanted() {
                say(&new);
                return tell_ends(&client, std::slice::from_ref(&new), args.wait.timeout(), args.json).await;
            }
            if !args.json {
                Output::new(false).line(&new)?;
            }
            return sent(
                args.json,
                &new,
                "start",
                &format!("{new} will run {id} again when a runtime takes it"),
            );
        }
        if args.new_id.is_some() || args.wait.is_wanted() {
            return Err(Problem::Usage("--as and --wait are for one instance".to_owned()).into());
        }
        let chosen = chosen(&documents, args).await?;
        let deed = Deed { verb: "rerun", done: "run again".to_owned(), is_json: args.json };
        carry_out(&chosen, args.many.yes, &documents, &deed, |id| {
            let (client, documents, input) = (&client, &documents, input.as_deref());
            Box::pin(async move { again(client, documents, id, args, input).await.map(drop) })
        })
        .await
    })
    .await
}

async fn chosen(documents: &Documents, args: &RerunArgs) -> anyhow::Result<Vec<String>> {
    if !args.ids.is_empty() {
        return Ok(args.ids.clone());
    }
    let mut wanted = Wanted { is_exact: true, ..args.many.filter.wanted()? };
    if wanted.statuses.is_empty() {
        wanted.statuses = vec![Status::Failed];
    }
    let mut listing = all(documents, &wanted).await?;
    tell_unreadable(&listing.unreadable);
    // What failed in a child failed in its root as well: that one is run again with all its children.
    listing.rows.retain(|row| row.status != Status::Pending.name() && row.parent.is_none());
    listing.rows.sort_by(|a, b| (a.created_at, &a.instance).cmp(&(b.created_at, &b.instance)));
    Ok(listing.rows.into_iter().map(|row| row.instance).collect())
}

/// Starts the new instance and returns its id.
async fn again(
    client: &Client,
    documents: &Documents,
    id: &str,
    args: &RerunArgs,
    input: Option<&str>,
) -> anyhow::Result<String> {
    if !documents.is_instance(id).await? {
        return Err(Problem::no_instance(id).into());
    }
    let beginning = beginning(client, id).await?;
    let new = match &args.new_id {
        Some(id) => id.clone(),
        None => format!("{id}-rerun-{}", &uuid::Uuid::new_v4().simple().to_string()[..6]),
    };
    require_free(documents, &new).await?;
    let version = args.version.as_deref().unwrap_or(&beginning.version);
    let input = input.unwrap_or(&beginning.input);
    if version.is_empty() {
        client.start_orchestration(&new, &beginning.name, input).await?;
    } else {
        client.start_orchestration_versioned(&new, &beginning.name, version, input).await?;
    }
    Ok(new)
}

async fn beginning(client: &Client, id: &str) -> anyhow::Result<Beginning> {
    let first = client.list_executions(id).await?.into_iter().min().unwrap_or(1);
    let events = client.read_execution_history(id, first).await?;
    let started = events.into_iter().find_map(|event| match event.kind {
        EventKind::OrchestrationStarted { name, version, input, .. } => {
            Some(Beginning { name, version, input })
        }
        _ => None,
    });
    started.ok_or_else(|| anyhow::anyhow!("the history of {id:?} does not say what it was started with"))
}
