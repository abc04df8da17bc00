//! Charts as SVG: grouped bars, one group per row of a table. Pure text, no library.
//!
//! The bars of one group are to scale with each other; groups are not, because rows differ by orders of magnitude.
//! Colours are legible on white and, where the viewer prefers it, on black.

use std::fmt::Write as _;

use crate::report::{Better, Cell, Table, show};

/// Draws a table; rows without a label and columns at the end that are ratios are left out.
pub fn bars(table: &Table) -> String {
    // A column that divides two others is not a contender.
    let is_contender = |name: &&String| !name.contains(" / ");
    let contenders: Vec<String> = table.columns[1..].iter().filter(is_contender).cloned().collect();
    let groups: Vec<&(String, Vec<Cell>)> =
        table.rows.iter().filter(|(label, _)| !label.is_empty()).collect();
    let label_width = groups.iter().map(|(label, _)| text_width(label)).fold(0.0, f64::max).min(LABEL_MAX);
    let left = MARGIN + label_width + GAP;
    let mut out = String::new();
    let mut y = MARGIN + TITLE;
    let _ =
        writeln!(out, "<text class=\"title\" x=\"{MARGIN}\" y=\"{y:.0}\">{}</text>", escape(&table.title));
    y = legend(&mut out, &contenders, y + LEGEND);
    let room = WIDTH - left - VALUE_ROOM - MARGIN;
    for (label, cells) in &groups {
        y += GROUP_GAP;
        let shown: Vec<(usize, &Cell)> =
            cells.iter().take(contenders.len()).enumerate().filter(|(_, cell)| !is_blank(cell)).collect();
        let middle = y + shown.len() as f64 * BAR / 2.0 + 4.0;
        let _ = writeln!(
            out,
            "<text class=\"label\" text-anchor=\"end\" x=\"{:.0}\" y=\"{middle:.0}\">{}</text>",
            left - GAP,
            escape(label)
        );
        let greatest = shown.iter().filter_map(|(_, cell)| figure(cell)).fold(0.0, f64::max);
        for (index, cell) in shown {
            bar(&mut out, cell, (left, y), room * share(cell, greatest), &contenders[index], index);
            y += BAR;
        }
    }
    let height = y + MARGIN + FOOT;
    let _ = writeln!(
        out,
        "<text class=\"foot\" x=\"{MARGIN}\" y=\"{:.0}\">{}Bars of one group are to scale with each other.</text>",
        height - MARGIN,
        match table.better {
            Better::Lower => "Less is better. ",
            Better::Higher => "More is better. ",
            Better::Mixed => "",
        }
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n{STYLE}{out}</svg>\n",
        escape(&table.title)
    )
}

fn bar(out: &mut String, cell: &Cell, (left, y): (f64, f64), width: f64, contender: &str, index: usize) {
    let thickness = BAR - 3.0;
    let class = if matches!(cell, Cell::Text(_)) { "none" } else { "value" };
    if let Some(figure) = figure(cell) {
        let _ = writeln!(
            out,
            "<rect class=\"{}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{thickness}\" rx=\"2\">\
             <title>{}: {figure}</title></rect>",
            colour(contender, index),
            width.max(1.0),
            escape(contender)
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        left + width + 6.0,
        y + thickness - 3.0,
        escape(&show(cell))
    );
}

/// Names the contenders, in as many lines as they need; returns where it ends.
fn legend(out: &mut String, contenders: &[String], top: f64) -> f64 {
    let (mut x, mut y) = (MARGIN, top);
    for (index, contender) in contenders.iter().enumerate() {
        let width = 18.0 + text_width(contender) + 20.0;
        if x > MARGIN && x + width > WIDTH - MARGIN {
            (x, y) = (MARGIN, y + LINE);
        }
        let _ = writeln!(
            out,
            "<rect class=\"{}\" x=\"{x:.0}\" y=\"{:.0}\" width=\"12\" height=\"12\" rx=\"2\"/>\
             <text class=\"label\" x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
            colour(contender, index),
            y - 10.0,
            x + 18.0,
            escape(contender)
        );
        x += width;
    }
    y
}

fn figure(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Figure(figure) => Some(*figure),
        Cell::Several(_) | Cell::Text(_) => None,
    }
}

/// Nothing was to be measured.
fn is_blank(cell: &Cell) -> bool {
    matches!(cell, Cell::Text(text) if text.is_empty() || text == "–")
}

fn share(cell: &Cell, greatest: f64) -> f64 {
    figure(cell).map_or(0.0, |figure| if greatest > 0.0 { figure / greatest } else { 0.0 })
}

/// Ours are blue, everybody else has a colour by position.
fn colour(contender: &str, index: usize) -> String {
    match contender.strip_prefix("ours") {
        Some(_) => format!("ours{}", index % OURS),
        None => format!("peer{}", index % PEERS),
    }
}

/// Near enough for a sans-serif face of 13 pixels.
fn text_width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_uppercase() || c.is_numeric() { 7.6 } else { 6.6 }).sum()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 16.0;
const TITLE: f64 = 14.0;
const LEGEND: f64 = 28.0;
const LINE: f64 = 20.0;
const GAP: f64 = 10.0;
const LABEL_MAX: f64 = 280.0;
/// Space for the figure behind the longest bar.
const VALUE_ROOM: f64 = 70.0;
const BAR: f64 = 17.0;
const GROUP_GAP: f64 = 14.0;
const FOOT: f64 = 22.0;
const OURS: usize = 5;
const PEERS: usize = 5;
const STYLE: &str = "<style>
text { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.value { font-size: 12px } .none { font-size: 12px; font-style: italic; fill: #6e7781 }
.foot { font-size: 11px; fill: #6e7781 }
.peer0 { fill: #8c959f } .peer1 { fill: #57606a } .peer2 { fill: #bf8700 } .peer3 { fill: #8250df } .peer4 { fill: #2da44e }
.ours0, .ours1 { fill: #0969da } .ours2 { fill: #54aeff } .ours3 { fill: #0a3069 } .ours4 { fill: #80ccff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .none, .foot { fill: #9198a1 }
.peer0 { fill: #6e7681 } .peer1 { fill: #b1bac4 } .ours0, .ours1 { fill: #2f81f7 } .ours3 { fill: #388bfd }
}
</style>
";

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table =
            Table::new("Requests <per> orchestration", "what", ["peer & co", "ours"], Better::Lower);
        table.row("hello", vec![Cell::Figure(60.0), Cell::Figure(18.0)]);
        table.row("", vec![Cell::Text("×1".into()), Cell::Text("×3".into())]);
        table.row("large", vec![Cell::Text("not done after 60 s".into()), Cell::Figure(600.0)]);
        table
    }

    #[test]
    fn the_greatest_bar_of_each_group_is_full_and_others_are_to_scale() {
        let svg = bars(&table());
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("<title>"))
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(widths.len(), 3);
        assert!((widths[1] / widths[0] - 0.3).abs() < 0.01, "{widths:?}");
        assert!((widths[2] - widths[0]).abs() < 0.1, "{widths:?}");
    }

    #[test]
    fn names_are_escaped_and_missing_figures_are_told() {
        let svg = bars(&table());
        assert!(svg.contains("Requests &lt;per&gt; orchestration") && svg.contains("peer &amp; co"));
        assert!(svg.contains("class=\"none\"") && svg.contains("not done after 60 s"));
        assert!(!svg.contains("×3"), "rows of ratios are not drawn");
    }
}
