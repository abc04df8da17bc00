//! Backlogs: orchestrations that are all there before the runtime starts.

use std::time::Duration;

use cosmos_emulator::Totals;

use super::cell::{self, Cost};
use super::contender::{Contender, Field};
use super::{Costs, NOT_APPLICABLE, Sizes, figure, summary, table};
use crate::report::{Better, Cell, Table, grouped};

/// How far a backlog was worked off, and what that cost.
#[derive(Debug, Clone, Copy)]
pub struct Drained {
    /// Orchestrations that were there.
    pub count: usize,
    /// Orchestrations that completed.
    pub done: usize,
    /// Commits of turns and activities. First turns come first, so a backlog may be half done and none completed.
    pub commits: usize,
    /// From the start of the runtime.
    pub elapsed: Duration,
    /// Whether nothing was committed any more long before time was up.
    pub stalled: bool,
    /// What the server counted.
    pub totals: Totals,
}

impl Drained {
    /// How many orchestrations' worth of work was done.
    fn worth(&self) -> f64 {
        if self.done >= self.count {
            return self.count as f64;
        }
        (self.commits as f64 / COMMITS_OF_HELLO).min(self.count as f64)
    }

    /// How far it got, if that is not to the end.
    pub fn cut(&self) -> Option<String> {
        if self.done >= self.count {
            return None;
        }
        // Rounded down: what was cut is never whole.
        let percent = (self.worth() / self.count as f64 * 1000.0).floor() / 10.0;
        let percent =
            if percent < 99.0 { format!("{percent:.0}") } else { format!("{:.1}", percent.min(99.9)) };
        let stalled = if self.stalled { ", then nothing more" } else { "" };
        Some(format!("{percent}% of {} in {:.0} s{stalled}", grouped(self.count), self.elapsed.as_secs_f64()))
    }

    /// The share of each.
    fn cost(&self) -> Result<Cost, String> {
        match self.commits {
            0 => Err(self.cut().unwrap_or_default()),
            _ => Ok(Cost::each(&self.totals, self.worth(), self.elapsed)),
        }
    }

    fn rate(&self) -> f64 {
        self.worth() / self.elapsed.as_secs_f64()
    }

    /// Until all were done, or how far it got.
    fn seconds(&self) -> Cell {
        self.cut().map_or_else(|| Cell::Figure(self.elapsed.as_secs_f64()), Cell::Text)
    }
}

/// Works off backlogs of all sizes at all latencies; what each orchestration costs is added to the other scenarios.
pub async fn tables(field: &Field, sizes: Sizes, costs: &mut Costs) -> Vec<Table> {
    let first = "backlog, latency per request";
    let mut seconds = table(summary::BACKLOG_SECONDS, first, &field.contenders(), Better::Lower);
    let mut rates = table(summary::BACKLOG_RATES, first, &field.contenders(), Better::Higher)
        .with_chart("provider-backlog");
    let mut cut = Vec::new();
    for &count in sizes.backlogs {
        for &latency in sizes.latencies_ms {
            let mut outcomes = Vec::new();
            for contender in field.contenders() {
                if latency > 0 && !contender.is_on_cosmos() {
                    outcomes.push(Err(NOT_APPLICABLE.to_owned()));
                    continue;
                }
                eprintln!("{} works off {} at {latency} ms…", contender.name(), grouped(count));
                let outcome = cell::drain(field, contender, count, latency, sizes).await;
                if let Some(how) = outcome.as_ref().ok().and_then(Drained::cut) {
                    cut.push(format!("{} at {latency} ms: {how}", contender.name()));
                }
                outcomes.push(outcome);
            }
            let label = format!("{}, {latency} ms", grouped(count));
            let shown = |outcome: &Result<Drained, String>| match outcome {
                Ok(drained) => drained.seconds(),
                Err(why) => Cell::Text(why.clone()),
            };
            seconds.row(&label, outcomes.iter().map(shown).collect());
            rates.row(&label, outcomes.iter().map(|outcome| figure(outcome, Drained::rate)).collect());
            if latency == 0 {
                let each = |outcome: Result<Drained, String>| outcome.and_then(|drained| drained.cost());
                let on_cosmos = outcomes.into_iter().take(Contender::ON_COSMOS.len());
                costs.add(&label_of(count), &on_cosmos.map(each).collect::<Vec<_>>());
            }
        }
    }
    if !cut.is_empty() {
        costs.note(CUT_COSTS);
    }
    vec![seconds.with_note(&field.note()), rates.with_note(&note(&cut))]
}

/// How one of a backlog is called among the other scenarios.
pub fn label_of(count: usize) -> String {
    format!("one of a backlog of {}", grouped(count))
}

fn note(cut: &[String]) -> String {
    match cut {
        [] => "No backlog was cut.".to_owned(),
        cut => format!("The rate of a backlog that was cut is that of what it did. Cut: {}.", cut.join("; ")),
    }
}

/// Two turns and an activity.
const COMMITS_OF_HELLO: f64 = 3.0;
const CUT_COSTS: &str = "Costs of a backlog that was cut are those of what it did: three commits, which are two turns \
                         and an activity, count as one orchestration.";

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(done: usize, commits: usize, stalled: bool) -> Drained {
        let totals = Totals { requests: 6_000, ..Totals::default() };
        Drained { count: 10_000, done, commits, elapsed: Duration::from_millis(20_100), stalled, totals }
    }

    #[test]
    fn a_cut_backlog_says_how_far_it_got() {
        assert_eq!(drained(10_000, 30_001, false).cut(), None);
        assert_eq!(drained(0, 9_642, false).cut().as_deref(), Some("32% of 10,000 in 20 s"));
        let stalled = drained(9_999, 29_999, true).cut().unwrap();
        assert_eq!(stalled, "99.9% of 10,000 in 20 s, then nothing more");
    }

    #[test]
    fn costs_are_shared_by_what_was_done() {
        assert!((drained(10, 9_000, false).cost().unwrap().requests - 2.0).abs() < 1e-9);
        assert_eq!(drained(0, 0, false).cost().unwrap_err(), "0% of 10,000 in 20 s");
    }
}
