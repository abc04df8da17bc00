//! `cdb fsck`: are the provider's invariants kept?

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::Query;
use futures::future::BoxFuture;
use serde_json::json;

use crate::bulk::{Ended, each};
use crate::context::{Connection, ConnectionArgs, NO_SWEEP};
use crate::documents::Documents;
use crate::exit::Problem;
use crate::fleet::LEASES;
use crate::fsck::{Defect, Family, Level, carry_out, check, check_fleet, unreadable};
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
    let mut partitions = partitions;
    if args.ids.is_empty() {
        // Also when nothing is there: that is what is wrong then.
        partitions.insert(LEASES.to_owned());
    }
    let mut progress = Progress::new(partitions.len() as u64);
    let found =
        examine_all(&documents, &partitions, &family, &args.ids, |partition| progress.advance(partition))
            .await;
    drop(progress);
    let defects = found?;
    let output = Output::new(args.json);
    let broken = defects.iter().filter(|defect| defect.level == Level::Broken).count();
    let (mut mended, mut mended_broken) = (0, 0);
    if args.repair && !defects.is_empty() {
        // What is queued again is sealed already, if it is.
        let provider = connection
            .provider_with(|config| (config.reconciler_interval, config.codec) = (NO_SWEEP, None))
            .await?;
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
    let of = |level: Level| defects.iter().filter(|defect| defect.level == level).count();
    let (litter, passing) = (of(Level::Litter), of(Level::Passing));
    let by_themselves = if passing == 0 {
        String::new()
    } else {
        format!(", {passing} that runtimes put right by themselves")
    };
    say(format!(
        "{} partitions checked: {broken} broken, {litter} litter, {mended} mended{by_themselves}",
        partitions.len()
    ));
    if mended_broken < broken {
        let advice = if args.repair { "some cannot be mended" } else { "--repair mends what can be mended" };
        return Err(Problem::Found(format!("{broken} defects: {advice}")).into());
    }
    Ok(())
}

/// The defects of many partitions, in their order. `done` is told of each partition as it has been looked at.
pub(crate) async fn examine_all<'a>(
    documents: &'a Documents,
    partitions: &'a BTreeSet<String>,
    family: &'a Family,
    named: &'a [String],
    mut done: impl FnMut(&str),
) -> anyhow::Result<Vec<Defect>> {
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let mut found: BTreeMap<String, Vec<Defect>> = BTreeMap::new();
    let mut trouble = None;
    let look = |partition: &'a String| -> BoxFuture<'a, (&'a String, anyhow::Result<Vec<Defect>>)> {
        Box::pin(async move { (partition, examine(documents, partition, family, named).await) })
    };
    let ended = each(
        partitions,
        || documents.meter().is_throttled(),
        &mut interrupt,
        look,
        |(partition, defects)| {
            match defects {
                Ok(defects) if !defects.is_empty() => {
                    found.insert(partition.clone(), defects);
                }
                Ok(_) => {}
                Err(error) => {
                    trouble = Some(error);
                    return ControlFlow::Break(());
                }
            }
            done(partition);
            ControlFlow::Continue(())
        },
    )
    .await;
    match trouble {
        Some(error) => Err(error),
        None if ended != Ended::All => Err(Problem::Interrupted("stopped before the end".to_owned()).into()),
        None => Ok(found.into_values().flatten().collect()),
    }
}

/// The defects of one partition that are there at a second look as well.
async fn examine(
    documents: &Documents,
    partition: &str,
    family: &Family,
    named: &[String],
) -> anyhow::Result<Vec<Defect>> {
    let mut found = look(documents, partition, family, named).await?;
    if !found.is_empty() {
        // Whatever was only under way is gone at the second look.
        let family = Family::new(documents.query_all(Query::new(Family::QUERY)).await?);
        let again = look(documents, partition, &family, named).await?;
        let again: BTreeSet<String> = again.into_iter().map(|defect| defect.text).collect();
        found.retain(|defect| again.contains(&defect.text));
    }
    Ok(found)
}

/// Every partition that has something in it.
pub(crate) async fn all(documents: &Documents) -> anyhow::Result<BTreeSet<String>> {
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
    if name == LEASES {
        return Ok(check_fleet(partition.documents(), family.is_running(), documents.now_ms()));
    }
    if partition.is_empty() && named.iter().any(|id| id == name) {
        return Err(Problem::no_instance(name).into());
    }
    // What is only half known is not judged: it would seem to lack what cannot be read, and be mended wrongly.
    let unreadable = unreadable(name, &partition);
    Ok(if unreadable.is_empty() { check(name, &partition, family, documents.now_ms()) } else { unreadable })
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
        Level::Passing => style.busy("◔"),
    };
    let tail = match (mended, &defect.repair) {
        (_, None) if defect.level == Level::Passing => style.dim(" — nothing has to be done"),
        (Some(true), _) => style.good(" — mended"),
        (Some(false), _) => style.bad(" — not mended"),
        (None, Some(_)) => style.dim(" — can be mended"),
        (None, None) => Line::default(),
    };
    output.line(line![mark, " ", style.bold(&defect.instance), ": ", &defect.text, tail])?;
    Ok(())
}
