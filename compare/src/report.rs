//! Tables for people, JSON for programs.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// One comparison: what was measured in one run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What it was measured on.
    pub machine: String,
    /// Everything, in printing order.
    pub tables: Vec<Table>,
    /// The same figures, as short as docs/measurements.md wants them.
    pub summary: Vec<Table>,
}

/// Rows are what is measured, columns who is measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Table {
    /// Printed above.
    pub title: String,
    /// Head of the first column, then one per contender.
    pub columns: Vec<String>,
    /// Label and cells.
    pub rows: Vec<(String, Vec<Cell>)>,
    /// Which figure of a row wins.
    pub better: Better,
    /// Printed below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Name of its chart, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<String>,
}

/// Which figure of a row wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Better {
    /// The least one.
    Lower,
    /// The greatest one.
    Higher,
    /// Rows of the table differ in that, or columns measure different things.
    Mixed,
}

/// A figure, several that belong together, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// A measured figure.
    Figure(f64),
    /// One figure for each of a few sizes, which the label names.
    Several(Vec<Cell>),
    /// Why there is none.
    Text(String),
}

impl Report {
    /// Tables and summary of this machine.
    pub fn new(tables: Vec<Table>, summary: Vec<Table>) -> Self {
        Self { machine: machine(), tables, summary }
    }

    /// These tables in the place of earlier ones of the same title, beside those that were not measured again.
    pub fn beside(self, earlier: Self) -> Self {
        let join = |before: Vec<Table>, now: Vec<Table>| {
            let mut joined: Vec<Table> = before;
            for table in now {
                match joined.iter_mut().find(|before| before.title == table.title) {
                    Some(before) => *before = table,
                    None => joined.push(table),
                }
            }
            joined
        };
        Self {
            tables: join(earlier.tables, self.tables),
            summary: join(earlier.summary, self.summary),
            machine: self.machine,
        }
    }

    /// Everything, for a page of its own.
    pub fn to_markdown(&self) -> String {
        let mut out = format!("Measured on {}.\n", self.machine);
        for table in &self.tables {
            let _ = write!(out, "\n### {}\n\n{}", table.title, table.to_markdown());
        }
        out
    }

    /// What docs/measurements.md shows: the summary, and a link to each chart.
    pub fn to_page(&self) -> String {
        let mut out = format!("\nMeasured on {}.\n", self.machine);
        for table in &self.summary {
            let _ = write!(out, "\n{}", table.to_markdown());
        }
        let charts: Vec<String> = self
            .tables
            .iter()
            .filter_map(|table| Some((&table.title, table.chart.as_ref()?)))
            .map(|(title, chart)| format!("![{title}](figures/{chart}.svg)\n"))
            .collect();
        if !charts.is_empty() {
            let _ = write!(out, "\n<details><summary>Charts</summary>\n\n{}\n</details>\n", charts.concat());
        }
        out
    }
}

impl Table {
    /// A table without rows.
    pub fn new<'a>(
        title: &str,
        first: &'a str,
        contenders: impl IntoIterator<Item = &'a str>,
        better: Better,
    ) -> Self {
        Self {
            title: title.to_owned(),
            columns: std::iter::once(first).chain(contenders).map(str::to_owned).collect(),
            rows: Vec::new(),
            better,
            note: None,
            chart: None,
        }
    }

    /// The same with a chart of this name.
    pub fn with_chart(mut self, name: &str) -> Self {
        self.chart = Some(name.to_owned());
        self
    }

    /// The same with a sentence below it.
    pub fn with_note(mut self, note: &str) -> Self {
        self.note = Some(note.to_owned());
        self
    }

    /// Adds a row.
    pub fn row(&mut self, label: &str, cells: Vec<Cell>) {
        self.rows.push((label.to_owned(), cells));
    }

    /// The cells of the row with this label.
    pub fn cells(&self, label: &str) -> Option<&[Cell]> {
        self.rows.iter().find(|(name, _)| name == label).map(|(_, cells)| cells.as_slice())
    }

    /// The table as Markdown, the winners in bold.
    pub fn to_markdown(&self) -> String {
        let mut out = String::new();
        let mut line = |cells: &[String]| {
            for cell in cells {
                let _ = write!(out, "| {cell} ");
            }
            out.push_str("|\n");
        };
        line(&self.columns);
        let rule = |index: usize| if index == 0 { "---" } else { "---:" }.to_owned();
        line(&(0..self.columns.len()).map(rule).collect::<Vec<_>>());
        for (label, cells) in &self.rows {
            let shown = cells.iter().map(|cell| match cell {
                _ if wins(cell, cells, self.better) => format!("**{}**", show(cell)),
                _ => show(cell),
            });
            line(&std::iter::once(label.clone()).chain(shown).collect::<Vec<_>>());
        }
        if let Some(note) = &self.note {
            let _ = write!(out, "\n{note}\n");
        }
        out
    }
}

/// A cell as it is printed.
pub fn show(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.replace('|', "/"),
        Cell::Several(cells) => cells.iter().map(show).collect::<Vec<_>>().join(" / "),
        Cell::Figure(figure) => number(*figure),
    }
}

/// A count as it is printed.
pub fn grouped(count: usize) -> String {
    number(count as f64)
}

fn number(figure: f64) -> String {
    let size = figure.abs();
    let decimals = match size {
        _ if size >= 100.0 || figure.fract() == 0.0 => 0,
        _ if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{figure:.decimals$}");
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let left = whole.len() - index;
        if index > 0 && left % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    fraction.map_or_else(|| grouped.clone(), |fraction| format!("{grouped}.{fraction}"))
}

/// Whether a cell is better than every other of its row. Who has no figure where another has one does not win.
fn wins(cell: &Cell, row: &[Cell], better: Better) -> bool {
    if better == Better::Mixed || figures(row).count() < 2 {
        return false;
    }
    row.iter().filter(|other| !std::ptr::eq(*other, cell)).all(|other| beats(cell, other, better))
}

fn beats(ours: &Cell, theirs: &Cell, better: Better) -> bool {
    match (ours, theirs) {
        (Cell::Figure(ours), Cell::Figure(theirs)) => match better {
            Better::Lower => ours < theirs,
            Better::Higher => ours > theirs,
            Better::Mixed => false,
        },
        (Cell::Several(ours), Cell::Several(theirs)) => {
            ours.iter().zip(theirs).all(|(ours, theirs)| beats(ours, theirs, better))
        }
        (Cell::Figure(_) | Cell::Several(_), Cell::Text(_)) => true,
        _ => false,
    }
}

fn figures(cells: &[Cell]) -> impl Iterator<Item = &Cell> {
    cells.iter().filter(|cell| !matches!(cell, Cell::Text(_)))
}

/// Processors, memory and system of this machine, as far as Linux tells.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        line.split_once(':').map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let processors = read("/proc/cpuinfo");
    let model = field(&processors, "model name");
    let model = if model.is_empty() { std::env::consts::ARCH.to_owned() } else { model };
    // This thread may be bound to some of them.
    let cores = match processors.lines().filter(|line| line.starts_with("processor")).count() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        listed => listed,
    };
    let kilobytes: f64 =
        field(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
    format!("{cores} cores of {model}, {:.0} GB, {}", kilobytes / 1e6, std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_precise_as_they_are_large() {
        for (figure, text) in [(1932.0, "1,932"), (1234567.4, "1,234,567"), (16.0, "16"), (16.24, "16.2")] {
            assert_eq!(number(figure), text);
        }
        assert_eq!((number(0.256).as_str(), number(-1500.2).as_str()), ("0.26", "-1,500"));
    }

    #[test]
    fn a_part_that_is_measured_again_takes_the_place_of_what_was_measured_before() {
        let table = |title: &str, figure: f64| {
            let mut table = Table::new(title, "what", ["a"], Better::Lower);
            table.row("row", vec![Cell::Figure(figure)]);
            table
        };
        let earlier = Report::new(vec![table("one", 1.0), table("two", 2.0)], vec![table("two", 2.0)]);
        let again = Report::new(vec![table("two", 3.0), table("three", 4.0)], vec![table("two", 3.0)]);
        let shown = |tables: &[Table]| -> Vec<String> {
            tables.iter().map(|table| format!("{} {}", table.title, show(&table.rows[0].1[0]))).collect()
        };
        let joined = again.beside(earlier);
        assert_eq!(shown(&joined.tables), ["one 1", "two 3", "three 4"]);
        assert_eq!(shown(&joined.summary), ["two 3"]);
    }

    #[test]
    fn the_winner_of_a_row_is_bold_and_who_failed_never_wins() {
        let mut table = Table::new("t", "what", ["a", "b"], Better::Lower);
        table.row("both", vec![Cell::Figure(2.0), Cell::Figure(1.0)]);
        table.row("even", vec![Cell::Figure(1.0), Cell::Figure(1.0)]);
        let several = |list: [f64; 2]| Cell::Several(list.map(Cell::Figure).to_vec());
        table.row("several", vec![several([3.0, 4.0]), several([2.0, 3.0])]);
        table.row("crossed", vec![several([1.0, 4.0]), several([2.0, 3.0])]);
        table.row("alone", vec![Cell::Text("failed".into()), Cell::Figure(1.0)]);
        let text = table.to_markdown();
        assert!(text.contains("| both | 2 | **1** |"), "{text}");
        assert!(text.contains("| even | 1 | 1 |"), "{text}");
        assert!(text.contains("| several | 3 / 4 | **2 / 3** |"), "{text}");
        assert!(text.contains("| crossed | 1 / 4 | 2 / 3 |"), "{text}");
        assert!(text.contains("| alone | failed | 1 |"), "{text}");
    }
}
