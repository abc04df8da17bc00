//! The provider's figures as the README shows them.

use super::Sizes;
use super::contender::Contender;
use super::workload::SCENARIOS;
use crate::report::{Better, Cell, Table};

pub const TIMES: &str = "Milliseconds per orchestration, by the server's latency per request";
pub const WAITING: &str = "Requests for one hello while others wait for their timers";
pub const IDLE: &str = "A runtime with nothing to do";
pub const DRAINED: &str = "Orchestrations per second of a backlog, 8/8 dispatchers";
pub const THROUGHPUT: &str = "Orchestrations per second, started while they run";

/// What the README shows: costs side by side, times with all sizes in one cell.
pub fn tables(tables: &[Table], sizes: Sizes) -> Vec<Table> {
    let find = |title: &str| tables.iter().find(|table| table.title == title);
    vec![costs(&tables[..4]), figures(find, sizes)]
}

/// The first four tables side by side.
fn costs(tables: &[Table]) -> Table {
    let heads = ["requests", "request units", "kilobytes", "cross-partition queries"];
    let columns: Vec<String> =
        heads.iter().flat_map(|head| [format!("{head}: 0.1.10"), "ours".to_owned()]).collect();
    let mut table = Table::new("", "one orchestration", columns.iter().map(String::as_str), Better::Mixed);
    for scenario in SCENARIOS {
        let cells = tables.iter().flat_map(|table| {
            table.cells(scenario.name).unwrap_or_default().iter().take(Contender::ON_COSMOS.len()).cloned()
        });
        table.row(scenario.name, cells.collect());
    }
    table
}

fn figures<'a>(find: impl Fn(&str) -> Option<&'a Table>, sizes: Sizes) -> Table {
    let names: Vec<String> = find(TIMES).map_or_else(Vec::new, |table| table.columns[1..].to_vec());
    let mut table = Table::new("", "", names.iter().map(String::as_str), Better::Mixed);
    table.note = find(TIMES).and_then(|table| table.note.clone());
    let list = |numbers: &mut dyn Iterator<Item = String>| numbers.collect::<Vec<_>>().join(" / ");
    let latencies = list(&mut sizes.latencies_ms.iter().map(u64::to_string));
    let backlogs = list(
        &mut sizes.backlogs.iter().map(|count| Cell::Figure(*count as f64)).map(|c| crate::report::show(&c)),
    );
    for scenario in SCENARIOS {
        let labels = sizes.latencies_ms.iter().map(|latency| format!("{}, {latency} ms", scenario.name));
        let label = format!("{}, ms at {latencies} ms per request", scenario.name);
        table.row(&label, together(find(TIMES), labels, names.len()));
    }
    let labels = || sizes.backlogs.iter().map(usize::to_string);
    table.row(
        &format!("requests for one hello while {backlogs} wait for timers"),
        together(find(WAITING), labels(), names.len()),
    );
    for what in ["requests", "request units"] {
        let label = format!("{what} per second of an idle runtime");
        table.row(&label, together(find(IDLE), std::iter::once(what.to_owned()), names.len()));
    }
    table.row(
        &format!("orchestrations per second of a backlog of {backlogs}, 8/8 dispatchers"),
        together(find(DRAINED), labels(), names.len()),
    );
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
