//! `cdb fsck`: are the provider's invariants kept?

use std::collections::BTreeSet;

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::Query;
use serde_json::json;

use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs};
use crate::documents::Documents;
use crate::exit::Problem;
use crate::fsck::{Defect, Family, Level, carry_out, check, unreadable};
use crate::interrupt::Interrupt;
use crate::model::Partition;
use crate::output::{Line, Output, line, say};
use crate::progress::Progress;

/// Check what is stored: histories, counters, large texts, queues, and that nothing waits for something lost.
///
/// A defect is reported only if a second look finds it again, so that it can run beside runtimes. The exit code is 8
/// if anything is broken.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  cdb fsck --data cdb-demo\n  cdb fsck order-17\n  cdb fsck --repair")]
pub(crate) struct FsckArgs {
    /// Only these instances [default: the whole container].
    ids: Vec<String>,

    /// Mend what can be mended: queue lost work again, remove litter, count anew.
    #[arg(long)]
    repair: bool,

    /// Print JSON, one defect per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Checks, and mends if told to.
pub(crate) async fn run(args: &FsckArgs) -> anyhow::Result<()> {
    let connection = Connection::open(&args.connection).await?;
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let outcome = tokio::select! {
        outcome = connection.guard(Box::pin(work(&connection, args))) => outcome,
        () = interrupt.wait() => Err(Problem::Interrupted("stopped before the end".to_owned()).into()),
    };
    connection.close().await;
    outcome
}

async fn work(connection: &Connection, args: &FsckArgs) -> anyhow::Result<()> {
    let documents = connection.documents()?;
    let partitions =
        if args.ids.is_empty() { all(&documents).await? } else { args.ids.iter().cloned().collect() };
    let family = Family::new(documents.query_all(Query::new(Family::QUERY)).await?);
    let mut defects = Vec::new();
    let mut progress = Progress::new(partitions.len() as u64);
    for partition in &partitions {
        let found = look(&documents, partition, &family, &args.ids).await?;
        if !found.is_empty() {
            // Whatever was only under way is gone at the second look.
            let family = Family::new(documents.query_all(Query::new(Family::QUERY)).await?);
            let again: BTreeSet<String> = look(&documents, partition, &family, &args.ids)
                .await?
                .into_iter()
                .map(|defect| defect.text)
                .collect();
            defects.extend(found.into_iter().filter(|defect| again.contains(&defect.text)));
        }
        progress.advance(partition);
    }
    drop(progress);
    let output = Output::new(args.json);
    let broken = defects.iter().filter(|defect| defect.level == Level::Broken).count();
    let (mut mended, mut mended_broken) = (0, 0);
    if args.repair && !defects.is_empty() {
        let provider = connection.provider().await?;
        for defect in &defects {
            let is_mended = match &defect.repair {
                Some(repair) => carry_out(defect, repair, &documents, provider.as_ref()).await?,
                None => false,
            };
            mended += usize::from(is_mended);
            mended_broken += usize::from(is_mended && defect.level == Level::Broken);
            print(output, defect, Some(is_mended))?;
        }
    } else {
        for defect in &defects {
            print(output, defect, None)?;
        }
    }
    let litter = defects.len() - broken;
    say(format!(
        "{} partitions checked: {broken} broken, {litter} litter, {mended} mended",
        partitions.len()
    ));
    if mended_broken < broken {
        let advice = if args.repair { "some cannot be mended" } else { "--repair mends what can be mended" };
        return Err(Problem::Found(format!("{broken} defects: {advice}")).into());
    }
    Ok(())
}

async fn all(documents: &Documents) -> anyhow::Result<BTreeSet<String>> {
    let names: Vec<String> =
        documents.query_all(Query::new("SELECT DISTINCT VALUE c.instanceId FROM c")).await?;
    Ok(names.into_iter().collect())
}

async fn look(
    documents: &Documents,
    name: &str,
    family: &Family,
    named: &[String],
) -> anyhow::Result<Vec<Defect>> {
    let partition = Partition::new(documents.partition(name).await?);
    if partition.is_empty() && named.iter().any(|id| id == name) {
        return Err(Problem::no_instance(name).into());
    }
    // What is only half known is not judged: it would seem to lack what cannot be read, and be mended wrongly.
    let unreadable = unreadable(name, &partition);
    Ok(if unreadable.is_empty() { check(name, &partition, family, now_ms()) } else { unreadable })
}

fn print(output: Output, defect: &Defect, mended: Option<bool>) -> anyhow::Result<()> {
    if output.is_json() {
        output
            .json_line(&json!({"instance": defect.instance, "level": defect.level, "defect": defect.text,
                "repairable": defect.repair.is_some(), "mended": mended}))?;
        return Ok(());
    }
    let style = output.style;
    let mark = match defect.level {
        Level::Broken => style.bad("✘"),
        Level::Litter => style.warn("·"),
    };
    let tail = match (mended, &defect.repair) {
        (Some(true), _) => style.good(" — mended"),
        (Some(false), _) => style.bad(" — not mended"),
        (None, Some(_)) => style.dim(" — can be mended"),
        (None, None) => Line::default(),
    };
    output.line(line![mark, " ", style.bold(&defect.instance), ": ", &defect.text, tail])?;
    Ok(())
}
