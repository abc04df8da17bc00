//! `cdb context`: places that have a name.

use clap::{Args, Subcommand};

use crate::exit::Problem;
use crate::output::{Column, Output, Table, say};
use crate::places::{Named, Places};

/// Give places names, so that nobody types four options each time.
///
/// A place is an endpoint or a folder with a database and a container. `--context NAME`, or CDB_CONTEXT, uses one; what is
/// typed besides comes first. `use` chooses the one that is meant when nothing else says where the container is. Keys are
/// not kept: a place says which variable of the environment holds its key.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, alias = "contexts")]
pub(crate) struct ContextArgs {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "Examples:
  cdb context add prod --endpoint https://shop.documents.azure.com --database flows --key-env SHOP_KEY
  cdb context add prod --endpoint https://shop.documents.azure.com --database flows --entra
  cdb context use prod
  cdb instances --context prod
  cdb context list";

#[derive(Debug, Subcommand)]
enum Action {
    /// List them; a star marks the one that is used.
    List(ListArgs),
    /// Add one, or change it.
    Add(AddArgs),
    /// Use one from now on.
    Use(NameArgs),
    /// Forget one.
    Remove(NameArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print JSON, one per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Its name.
    name: String,

    /// Folder of an embedded emulator.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["endpoint", "key_env"])]
    data: Option<String>,

    /// Endpoint of an account, or of a running emulator.
    #[arg(long, value_name = "URL", required_unless_present = "data")]
    endpoint: Option<String>,

    /// The variable of the environment that holds the key [default: COSMOS_KEY].
    #[arg(long, value_name = "NAME")]
    key_env: Option<String>,

    /// Sign in with Microsoft Entra: auto, environment, workload, managed or developer [default: auto].
    #[arg(
        long,
        value_name = "IDENTITY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto",
        conflicts_with_all = ["key_env", "data"]
    )]
    entra: Option<String>,

    /// Database.
    #[arg(long, value_name = "NAME")]
    database: Option<String>,

    /// Container.
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// Its name.
    name: String,
}

/// Shows or changes the named places.
pub(crate) fn run(args: &ContextArgs) -> anyhow::Result<()> {
    let mut places = Places::read()?;
    match &args.action {
        Action::List(args) => return list(&places, args.json),
        Action::Add(args) => {
            if let Some(endpoint) = &args.endpoint {
                crate::context::refuse_user(endpoint)?;
            }
            // A folder is meant from everywhere, not only from where it was typed.
            let data = args.data.as_ref().map(|data| {
                std::path::absolute(data).map_or_else(|_| data.clone(), |path| path.display().to_string())
            });
            let place = Named {
                data,
                endpoint: args.endpoint.clone(),
                key_env: args.key_env.clone(),
                entra: args.entra.clone(),
                database: args.database.clone(),
                container: args.container.clone(),
            };
            places.named.insert(args.name.clone(), place);
            say(format!("--context {} means that place from now on", args.name));
        }
        Action::Use(args) => {
            places.find(&args.name)?;
            places.used = Some(args.name.clone());
            say(format!("{} is used where nothing else is said", args.name));
        }
        Action::Remove(args) => {
            if places.named.remove(&args.name).is_none() {
                return Err(Problem::Missing(format!("there is no context {:?}", args.name)).into());
            }
            places.used.take_if(|used| *used == args.name);
        }
    }
    places.write()
}

fn list(places: &Places, is_json: bool) -> anyhow::Result<()> {
    let output = Output::new(is_json);
    let is_used = |name: &String| places.used.as_ref() == Some(name);
    if is_json {
        for (name, place) in &places.named {
            let mut row = serde_json::to_value(place)?;
            (row["name"], row["used"]) = (name.clone().into(), is_used(name).into());
            output.json_line(&row)?;
        }
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::new(""),
        Column::new("NAME"),
        Column::flexible("PLACE", 20),
        Column::new("DATABASE"),
        Column::new("CONTAINER"),
        Column::new("KEY FROM"),
    ]);
    for (name, place) in &places.named {
        let text =
            |value: &Option<String>, otherwise: &str| value.clone().unwrap_or_else(|| otherwise.to_owned());
        let key = match (&place.data, &place.entra) {
            (Some(_), _) => String::new(),
            (None, Some(identity)) => format!("Entra, {identity}"),
            (None, None) => text(&place.key_env, "COSMOS_KEY"),
        };
        table.row([
            if is_used(name) { "*".to_owned() } else { String::new() },
            name.clone(),
            place.data.clone().or_else(|| place.endpoint.clone()).unwrap_or_default(),
            text(&place.database, "duroxide"),
            text(&place.container, "duroxide"),
            key,
        ]);
    }
    if table.is_empty() {
        say("no place has a name yet: `cdb context add NAME --endpoint URL` gives one");
        return Ok(());
    }
    output.table(&table)?;
    Ok(())
}
