//! `cdb tree ID`: an instance and its descendants.

use std::collections::BTreeMap;

use clap::Args;
use duroxide::ClientError;
use duroxide::providers::{InstanceInfo, ProviderAdmin as _};
use duroxide_cdb::{CosmosDBProvider, is_damage};
use serde_json::{Value, json};

use crate::commands::show::absence;
use crate::context::{Connection, ConnectionArgs};
use crate::output::{Line, Output, line, span};

/// Show an instance with its sub-orchestrations, as a tree.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  cdb tree bakery-1-deliver --data cdb-demo\n  cdb tree order-17 --json")]
pub(crate) struct TreeArgs {
    /// Instance id; a child's tree begins at the child.
    id: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Shows the tree.
pub(crate) async fn run(args: &TreeArgs) -> anyhow::Result<()> {
    let family =
        Connection::during(&args.connection, async |connection| read(connection, &args.id).await).await?;
    let output = Output::new(args.json);
    if output.is_json() {
        output.json(&to_json(&family, &args.id))?;
        return Ok(());
    }
    for line in lines(&family, &args.id, output) {
        output.line(line)?;
    }
    Ok(())
}

async fn read(connection: &Connection, id: &str) -> anyhow::Result<BTreeMap<String, InstanceInfo>> {
    if !connection.documents()?.is_instance(id).await? {
        return Err(absence(connection, id).await?);
    }
    let provider = connection.provider().await?;
    let mut family = BTreeMap::new();
    for member in provider.get_instance_tree(id).await.map_err(ClientError::from)?.all_ids {
        let info = legible_info(&provider, &member).await?;
        family.insert(member, info);
    }
    Ok(family)
}

/// What is known of an instance. Of one that cannot be read it is its name, its parent and that it cannot be read.
pub(crate) async fn legible_info(provider: &CosmosDBProvider, id: &str) -> anyhow::Result<InstanceInfo> {
    match provider.get_instance_info(id).await {
        Err(error) if is_damage(&error) => Ok(InstanceInfo {
            instance_id: id.to_owned(),
            orchestration_name: String::new(),
            orchestration_version: String::new(),
            current_execution_id: 0,
            status: "unreadable".to_owned(),
            output: None,
            created_at: 0,
            updated_at: 0,
            parent_instance_id: provider.get_parent_id(id).await.map_err(ClientError::from)?,
        }),
        info => Ok(info.map_err(ClientError::from)?),
    }
}

fn children<'a>(family: &'a BTreeMap<String, InstanceInfo>, id: &str) -> Vec<&'a InstanceInfo> {
    let mut children: Vec<&InstanceInfo> =
        family.values().filter(|member| member.parent_instance_id.as_deref() == Some(id)).collect();
    children.sort_by_key(|child| place(&child.instance_id));
    children
}

/// Where a child stands among its siblings: by its id, with the number at its end read as a number. The ids that
/// duroxide gives end with the number of the event, so this is the order in which the parent scheduled them; when each
/// came to run is chance.
pub(crate) fn place(id: &str) -> (&str, usize, &str) {
    let stem = id.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = &id[stem.len()..];
    (stem, number.len(), number)
}

fn lines(family: &BTreeMap<String, InstanceInfo>, root: &str, output: Output) -> Vec<Line> {
    let mut lines = Vec::new();
    // A stack of what is still to be drawn: the member, what stands before its children, and before itself.
    let mut open: Vec<(&str, String, String)> = vec![(root, String::new(), String::new())];
    while let Some((id, below, before)) = open.pop() {
        let Some(member) = family.get(id) else { continue };
        let style = output.style;
        lines.push(line![
            style.dim(&before),
            if id == root { style.bold(id) } else { id.into() },
            "  ",
            style.status(&member.status),
            format!("  {}  ", member.orchestration_name),
            style.dim(&span(member.updated_at.saturating_sub(member.created_at))),
        ]);
        let children = children(family, id);
        for (index, child) in children.iter().enumerate().rev() {
            let (mark, bar) =
                if index + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            open.push((&child.instance_id, format!("{below}{bar}"), format!("{below}{mark}")));
        }
    }
    lines
}

fn to_json(family: &BTreeMap<String, InstanceInfo>, id: &str) -> Value {
    let member = family.get(id);
    json!({
        "instance": id,
        "orchestration": member.map(|member| &member.orchestration_name),
        "status": member.map(|member| &member.status),
        "createdAt": member.map(|member| member.created_at),
        "updatedAt": member.map(|member| member.updated_at),
        "children": children(family, id).iter().map(|child| to_json(family, &child.instance_id)).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_hang_below_their_parents_in_the_order_in_which_they_were_scheduled() {
        let member = |id: &str, parent: Option<&str>| {
            let info = InstanceInfo {
                instance_id: id.to_owned(),
                orchestration_name: "o".to_owned(),
                orchestration_version: String::new(),
                current_execution_id: 1,
                status: "Running".to_owned(),
                output: None,
                created_at: 1,
                updated_at: 1,
                parent_instance_id: parent.map(str::to_owned),
            };
            (id.to_owned(), info)
        };
        let family = BTreeMap::from([
            member("a", None),
            member("a::sub::2", Some("a")),
            member("a::sub::10", Some("a")),
            member("d", Some("a::sub::2")),
        ]);
        let lines = lines(&family, "a", Output::new(true));
        let shape: Vec<&str> =
            lines.iter().map(|line| line.text().split("  Running").next().unwrap()).collect();
        assert_eq!(shape, ["a", "├─ a::sub::2", "│  └─ d", "└─ a::sub::10"]);
        assert_eq!(to_json(&family, "a")["children"][0]["children"][0]["instance"], "d");
    }
}
