//! The same for many instances: chosen by ids or by filters, counted first, done 32 at a time.

use std::ops::ControlFlow;

use anyhow::Context as _;
use clap::Args;
use futures::future::BoxFuture;
use serde_json::json;

use crate::bulk::{Ended, each};
use crate::commands::send::require;
use crate::documents::{Documents, tell_unreadable};
use crate::exit::Problem;
use crate::interrupt::Interrupt;
use crate::listing::{FilterArgs, Listed, Status, Wanted, all};
use crate::output::{Output, plural, say};
use crate::progress::Progress;

/// Which instances, and whether it is meant.
#[derive(Debug, Args)]
pub(crate) struct Many {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    /// Do it to all of them; without it they are only counted.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// What is done.
#[derive(Debug)]
pub(crate) struct Deed {
    /// For programs.
    pub(crate) verb: &'static str,
    /// For people: `3 instances … asked to stop`.
    pub(crate) done: String,
    pub(crate) is_json: bool,
}

/// One after the other would take hours: so many of those that it is done to are named.
const NAMED_MAX: usize = 10;

impl Many {
    /// Ids or filters, not both and not neither.
    pub(crate) fn check(&self, ids: &[String]) -> Result<(), Problem> {
        match (ids.is_empty(), self.filter.is_any()) {
            (true, false) => {
                Err(Problem::Usage("say which instances: ids, or filters such as --prefix order-".into()))
            }
            (false, true) => Err(Problem::Usage("say ids or filters, not both".into())),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// The instances that have not ended and are meant, the oldest first.
    pub(crate) async fn running(&self, documents: &Documents, ids: &[String]) -> anyhow::Result<Vec<String>> {
        if !ids.is_empty() {
            for id in ids {
                require(documents, id).await?;
            }
            return Ok(ids.to_vec());
        }
        let mut wanted = Wanted { is_exact: true, ..self.filter.wanted()? };
        if wanted.statuses.is_empty() {
            wanted.statuses = vec![Status::Running, Status::Pending];
        }
        let mut listing = all(documents, &wanted).await?;
        tell_unreadable(&listing.unreadable);
        listing.rows.retain(|row| !row.has_ended());
        listing.rows.sort_by(|a, b| (a.created_at, &a.instance).cmp(&(b.created_at, &b.instance)));
        Ok(listing.rows.into_iter().map(|row: Listed| row.instance).collect())
    }
}

/// Does something to each of these, or counts them.
pub(crate) async fn carry_out<'a>(
    chosen: &'a [String],
    is_meant: bool,
    documents: &Documents,
    deed: &Deed,
    act: impl Fn(&'a str) -> BoxFuture<'a, anyhow::Result<()>> + Sync,
) -> anyhow::Result<()> {
    let output = Output::new(deed.is_json);
    if !is_meant {
        if deed.is_json {
            output.json(&json!({"action": deed.verb, "instances": chosen.len(), "done": false}))?;
            return Ok(());
        }
        for id in chosen.iter().take(NAMED_MAX) {
            output.line(id)?;
        }
        if chosen.len() > NAMED_MAX {
            output.line(format!("… and {} more", chosen.len() - NAMED_MAX))?;
        }
        let what_now = if chosen.is_empty() { "" } else { ": add --yes to do it" };
        say(format!("{} would be {}{what_now}", plural(chosen.len(), "instance"), deed.done));
        return Ok(());
    }
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let mut progress = Progress::new(chosen.len() as u64);
    let mut failures = Vec::new();
    let act = &act;
    let ended = each(
        chosen,
        || documents.meter().is_throttled(),
        &mut interrupt,
        |id: &String| Box::pin(async move { (id, act(id).await) }),
        |(id, outcome): (&String, anyhow::Result<()>)| {
            match outcome {
                Ok(()) => progress.advance(id),
                Err(error) => failures.push(format!("{id}: {error:#}")),
            }
            ControlFlow::Continue(())
        },
    )
    .await;
    let done = progress.done();
    drop(progress);
    if deed.is_json {
        output
            .json(&json!({"action": deed.verb, "instances": done, "failed": failures.len(), "done": true}))?;
    } else {
        output.line(format!("{} {}", plural(done, "instance"), deed.done))?;
    }
    failures.iter().for_each(say);
    if ended != Ended::All && done < chosen.len() as u64 {
        return Err(Problem::Interrupted(format!("stopped: {done} of {} are done", chosen.len())).into());
    }
    anyhow::ensure!(failures.is_empty(), "{} could not be {}", plural(failures.len(), "instance"), deed.done);
    Ok(())
}
