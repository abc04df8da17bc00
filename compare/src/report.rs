//! Tables for people, JSON for programs.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

/// One comparison: a few tables from one run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// In printing order.
    pub tables: Vec<Table>,
}

/// Rows are what is measured, columns who is measured.
#[derive(Debug, Serialize)]
pub struct Table {
    /// Printed above.
    pub title: String,
    /// Head of the first column, then one per contender.
    pub columns: Vec<String>,
    /// Label and cells.
    pub rows: Vec<(String, Vec<Cell>)>,
}

/// A figure, or why there is none.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A measured figure.
    Figure(f64),
    /// Why there is none.
    Text(String),
}

impl Report {
    /// The tables as Markdown.
    pub fn to_markdown(&self) -> String {
        let mut out = String::new();
        for table in &self.tables {
            let cells: Vec<Vec<String>> = table
                .rows
                .iter()
                .map(|(label, cells)| std::iter::once(label.clone()).chain(cells.iter().map(show)).collect())
                .collect();
            let widths: Vec<usize> = (0..table.columns.len())
                .map(|i| {
                    cells.iter().map(|row| row[i].len()).chain([table.columns[i].len()]).max().unwrap_or(0)
                })
                .collect();
            let _ = writeln!(out, "\n### {}\n", table.title);
            let mut line = |row: &[String]| {
                for (cell, width) in row.iter().zip(&widths) {
                    let _ = write!(out, "| {cell:<width$} ");
                }
                out.push_str("|\n");
            };
            line(&table.columns);
            line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>());
            cells.iter().for_each(|row| line(row));
        }
        out
    }

    /// Writes the figures as JSON.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, serde_json::to_vec_pretty(self)?)?;
        Ok(())
    }
}

fn show(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.clone(),
        Cell::Figure(figure) if figure.abs() >= 100.0 => format!("{figure:.0}"),
        Cell::Figure(figure) if figure.abs() >= 10.0 => format!("{figure:.1}"),
        Cell::Figure(figure) => format!("{figure:.2}"),
    }
}
