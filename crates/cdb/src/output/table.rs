//! Tables that fit the terminal.

use unicode_width::UnicodeWidthChar;

use super::line::clean;
use super::{Line, Style};

/// One column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    is_number: bool,
    /// The least width this column may be cut to; none is never cut.
    cut_to: Option<usize>,
}

impl Column {
    /// A column that is never cut.
    pub(crate) fn new(title: &'static str) -> Self {
        Self { title, is_number: false, cut_to: None }
    }

    /// A column of numbers: aligned to the right.
    pub(crate) fn number(title: &'static str) -> Self {
        Self { title, is_number: true, cut_to: None }
    }

    /// A column that gives way when the terminal is narrow, down to `least` characters.
    pub(crate) fn flexible(title: &'static str, least: usize) -> Self {
        Self { title, is_number: false, cut_to: Some(least) }
    }
}

/// Rows of text under titles.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    /// Rows before which a rule is drawn.
    rules: Vec<usize>,
}

/// What is in one place, and how it is painted.
#[derive(Debug, Clone)]
struct Cell {
    text: String,
    paint: Paint,
}

/// How a text is coloured.
pub(crate) type Paint = fn(Style, &str) -> Line;

impl Table {
    /// No rows yet.
    pub(crate) fn new(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new(), rules: Vec::new() }
    }

    /// Adds a row with one cell painted.
    pub(crate) fn painted_row<const N: usize>(&mut self, cells: [String; N], painted: usize, paint: Paint) {
        self.painted(cells.into(), painted, paint);
    }

    /// The same for tables whose columns depend on what there is.
    pub(crate) fn painted(&mut self, cells: Vec<String>, painted: usize, paint: Paint) {
        let cell = |(index, text): (usize, String)| {
            let paint = if index == painted { paint } else { plain };
            Cell { text: clean(&text).into_owned(), paint }
        };
        self.rows.push(cells.into_iter().enumerate().map(cell).collect());
    }

    /// Adds a row without colours.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.painted_row(cells, 0, plain);
    }

    /// Draws a rule before the next row.
    pub(crate) fn rule(&mut self) {
        self.rules.push(self.rows.len());
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines of the table, at most `limit` characters wide where flexible columns allow it.
    pub(crate) fn lines(&self, limit: Option<usize>, style: Style) -> Vec<Line> {
        let widths = self.widths(limit);
        let total = widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
        let titles: Vec<Cell> = self
            .columns
            .iter()
            .map(|column| Cell { text: column.title.to_owned(), paint: Style::dim })
            .collect();
        let mut lines = vec![self.line(&titles, &widths, style)];
        for (index, row) in self.rows.iter().enumerate() {
            if self.rules.contains(&index) {
                lines.push(style.dim(&"─".repeat(total)));
            }
            lines.push(self.line(row, &widths, style));
        }
        lines
    }

    fn line(&self, cells: &[Cell], widths: &[usize], style: Style) -> Line {
        let mut line = Line::default();
        for (index, (cell, room)) in cells.iter().zip(widths).enumerate() {
            let text = clip(&cell.text, *room);
            let pad = " ".repeat(room.saturating_sub(width(&text)));
            let painted = (cell.paint)(style, &text);
            let is_last = index + 1 == cells.len();
            if self.columns[index].is_number {
                line.push(pad);
                line.push(painted);
            } else {
                line.push(painted);
                if !is_last {
                    line.push(pad);
                }
            }
            if !is_last {
                line.push(GAP);
            }
        }
        line
    }

    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| width(column.title)).collect();
        for row in &self.rows {
            for (room, cell) in widths.iter_mut().zip(row) {
                *room = (*room).max(width(&cell.text));
            }
        }
        let Some(limit) = limit else { return widths };
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        // The widest flexible column gives way first, one character at a time.
        while widths.iter().sum::<usize>() + gaps > limit {
            let widest = (0..widths.len())
                .filter(|index| self.columns[*index].cut_to.is_some_and(|least| widths[*index] > least))
                .max_by_key(|index| widths[*index]);
            match widest {
                Some(index) => widths[index] -= 1,
                None => break,
            }
        }
        widths
    }
}

/// No colour.
pub(crate) fn plain(_: Style, text: &str) -> Line {
    text.into()
}

/// Columns a text takes on the screen, escaped where it must be.
pub(crate) fn width(text: &str) -> usize {
    clean(text).chars().map(|character| character.width().unwrap_or(0)).sum()
}

/// The text as it is shown, cut to `room` columns with an ellipsis.
pub(crate) fn clip(text: &str, room: usize) -> String {
    let text = clean(text);
    if width(&text) <= room {
        return text.into_owned();
    }
    let mut cut = String::new();
    let mut used = 0;
    for character in text.chars() {
        let wide = character.width().unwrap_or(0);
        if used + wide + 1 > room {
            break;
        }
        cut.push(character);
        used += wide;
    }
    if room > 0 {
        cut.push('…');
    }
    cut
}

const GAP: &str = "  ";

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(vec![Column::flexible("NAME", 6), Column::number("RU")]);
        table.row(["a long name of something".to_owned(), "1.5".to_owned()]);
        table.row(["b\u{1b}[31m\nc".to_owned(), "120".to_owned()]);
        table
    }

    #[test]
    fn numbers_are_aligned_and_nothing_is_cut_without_a_limit() {
        let lines = table().lines(None, Style::new(false));
        assert_eq!(lines[0].text(), "NAME                       RU");
        assert_eq!(lines[1].text(), "a long name of something  1.5");
        assert_eq!(lines[2].text(), "b\\u{1b}[31m\\nc            120");
    }

    #[test]
    fn flexible_columns_give_way_to_the_terminal() {
        let lines = table().lines(Some(16), Style::new(false));
        assert_eq!(lines[1].text(), "a long nam…  1.5");
        assert!(lines.iter().all(|line| width(line.text()) <= 16));
    }

    #[test]
    fn wide_characters_count_as_two_columns() {
        assert_eq!(width("面包"), 4);
        assert_eq!(clip("面包店", 5), "面包…");
    }
}
