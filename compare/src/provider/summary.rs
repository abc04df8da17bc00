//! The provider's figures as docs/measurements.md shows them.

use super::contender::Contender;
use super::workload::SCENARIOS;
use super::{Costs, Sizes, backlog};
use crate::report::{Better, Cell, Table, grouped};

pub const TIMES: &str = "Milliseconds per orchestration, by the server's latency per request";
pub const WAITING: &str = "Requests for one hello while others wait for their timers";
pub const IDLE: &str = "A runtime with nothing to do";
pub const BACKLOG_SECONDS: &str = "Seconds to work off a backlog, 8/8 dispatchers";
pub const BACKLOG_RATES: &str = "Orchestrations per second of a backlog, 8/8 dispatchers";
pub const THROUGHPUT: &str = "Orchestrations per second, started while they run";

/// What docs/measurements.md shows: costs side by side, times with all sizes in one cell.
pub fn tables(ledgers: &Costs, tables: &[Table], sizes: Sizes) -> Vec<Table> {
    let find = |title: &str| tables.iter().find(|table| table.title == title);
    vec![costs(ledgers, sizes), figures(find, sizes)]
}

/// What one orchestration costs, all tables side by side.
fn costs(ledgers: &Costs, sizes: Sizes) -> Table {
    let heads = ["requests", "request units", "kilobytes", "cross-partition queries"];
    let columns: Vec<String> =
        heads.iter().flat_map(|head| [format!("{head}: 0.1.10"), "ours".to_owned()]).collect();
    let mut table = Table::new("", "one orchestration", columns.iter().map(String::as_str), Better::Mixed);
    table.note = ledgers.0[0].note.clone();
    let backlogs = sizes.backlogs.iter().map(|count| backlog::label_of(*count));
    for label in SCENARIOS.iter().map(|scenario| scenario.name.to_owned()).chain(backlogs) {
        let cells = ledgers.0.iter().flat_map(|table| {
            table.cells(&label).unwrap_or_default().iter().take(Contender::ON_COSMOS.len()).cloned()
        });
        table.row(&label, cells.collect());
    }
    table
}

fn figures<'a>(find: impl Fn(&str) -> Option<&'a Table>, sizes: Sizes) -> Table {
    let widest = find(TIMES).or_else(|| find(BACKLOG_SECONDS));
    let names: Vec<String> = widest.map_or_else(Vec::new, |table| table.columns[1..].to_vec());
    let mut table = Table::new("", "", names.iter().map(String::as_str), Better::Mixed);
    let notes = [widest, find(BACKLOG_RATES)].into_iter().flatten().filter_map(|table| table.note.clone());
    table.note = Some(notes.collect::<Vec<_>>().join(" ")).filter(|note| !note.is_empty());
    let list = |numbers: &mut dyn Iterator<Item = String>| numbers.collect::<Vec<_>>().join(" / ");
    let latencies = list(&mut sizes.latencies_ms.iter().map(u64::to_string));
    let backlogs = list(&mut sizes.backlogs.iter().map(|count| grouped(*count)));
    for scenario in SCENARIOS {
        let labels = sizes.latencies_ms.iter().map(|latency| format!("{}, {latency} ms", scenario.name));
        let label = format!("{}, ms at {latencies} ms per request", scenario.name);
        table.row(&label, together(find(TIMES), labels, names.len()));
    }
    for count in sizes.backlogs.iter().map(|count| grouped(*count)) {
        let labels = sizes.latencies_ms.iter().map(|latency| format!("{count}, {latency} ms"));
        let label = format!("backlog of {count}, seconds at {latencies} ms per request, 8/8 dispatchers");
        table.row(&label, together(find(BACKLOG_SECONDS), labels, names.len()));
    }
    let labels = sizes.backlogs.iter().map(|count| format!("{}, 0 ms", grouped(*count)));
    table.row(
        &format!("backlog of {backlogs}, orchestrations per second at 0 ms"),
        together(find(BACKLOG_RATES), labels, names.len()),
    );
    table.row(
        &format!("requests for one hello while {backlogs} wait for timers"),
        together(find(WAITING), sizes.backlogs.iter().map(|count| grouped(*count)), names.len()),
    );
    for what in ["requests", "request units"] {
        let label = format!("{what} per second of an idle runtime");
        table.row(&label, together(find(IDLE), std::iter::once(what.to_owned()), names.len()));
    }
    let dispatchers = super::CONCURRENCIES.map(|count| format!("{count}/{count}"));
    table.row(
        &format!(
            "orchestrations per second, started while they run, {} dispatchers",
            dispatchers.join(" and ")
        ),
        together(find(THROUGHPUT), dispatchers.into_iter(), names.len()),
    );
    table
}

/// A few rows of a table as one.
fn together(table: Option<&Table>, labels: impl Iterator<Item = String>, width: usize) -> Vec<Cell> {
    let rows: Vec<&[Cell]> = labels.filter_map(|label| table?.cells(&label)).collect();
    (0..width)
        .map(|column| {
            let cells: Vec<Cell> = rows.iter().filter_map(|row| row.get(column).cloned()).collect();
            let figures: Vec<Cell> = cells.iter().filter(|cell| !is_blank(cell)).cloned().collect();
            match figures.len() {
                0 => Cell::Text(String::new()),
                1 => figures[0].clone(),
                _ => Cell::Several(figures),
            }
        })
        .collect()
}

fn is_blank(cell: &Cell) -> bool {
    *cell == Cell::Text(super::NOT_APPLICABLE.to_owned())
}
