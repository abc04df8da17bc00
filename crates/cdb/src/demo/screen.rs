//! The demo on the screen: redrawn in place on a terminal, one line per change elsewhere.

use std::io;

use super::board::{Origin, Phase, Row};
use crate::output::{Line, Output, Style, clip, erase, line, plural, print_over, span, width};

/// Draws the workflows.
#[derive(Debug)]
pub(crate) struct Screen {
    output: Output,
    /// Lines drawn last time, to be drawn over.
    height: usize,
    frame: usize,
    /// What was written of each workflow, where nothing can be drawn over.
    written: Vec<Written>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    phase: Phase,
    steps: usize,
}

impl Screen {
    /// A screen with nothing on it.
    pub(crate) fn new(output: Output) -> Self {
        Self { output, height: 0, frame: 0, written: Vec::new() }
    }

    /// Draws what has changed. For programs nothing is drawn: they get the summary.
    pub(crate) fn draw(&mut self, rows: &[Row], hint: &str) -> io::Result<()> {
        if self.output.is_json() {
            return Ok(());
        }
        match self.output.columns {
            Some(columns) => self.redraw(rows, hint, columns),
            None => self.append(rows),
        }
    }

    /// Takes the drawing away: the summary comes in its place.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        if self.height > 0 {
            erase(self.height)?;
            self.height = 0;
        }
        Ok(())
    }

    fn redraw(&mut self, rows: &[Row], hint: &str, columns: usize) -> io::Result<()> {
        self.frame += 1;
        let mut lines: Vec<Line> =
            rows.iter().map(|row| row_line(row, self.frame, columns, self.output.style)).collect();
        lines.push(Line::default());
        lines.push(self.output.style.dim(&clip(&totals(rows, hint), columns)));
        print_over(self.height, &lines)?;
        self.height = lines.len();
        Ok(())
    }

    fn append(&mut self, rows: &[Row]) -> io::Result<()> {
        for (index, row) in rows.iter().enumerate() {
            let now = Written { phase: row.phase.clone(), steps: row.steps_done() };
            let before = self.written.get(index).cloned();
            if let Some(sentence) = sentence(row, before.as_ref()) {
                self.output.line(format!("{:<8} {sentence}", row.scenario.name))?;
            }
            match self.written.get_mut(index) {
                Some(written) => *written = now,
                None => self.written.push(now),
            }
        }
        Ok(())
    }
}

/// What to say about a workflow that was last seen as `before`; nothing if nothing is new.
fn sentence(row: &Row, before: Option<&Written>) -> Option<String> {
    let steps = row.scenario.steps;
    if before.is_some_and(|before| before.phase == row.phase && before.steps == row.steps_done()) {
        return None;
    }
    match (&row.phase, row.origin) {
        (Phase::Completed(output), Origin::Earlier) => Some(format!("was completed earlier: {output}")),
        (Phase::Failed(output), Origin::Earlier) => Some(format!("failed earlier: {output}")),
        (Phase::Completed(output), _) => Some(format!("completed after {}: {output}", span(elapsed_ms(row)))),
        (Phase::Failed(output), _) => Some(format!("failed after {}: {output}", span(elapsed_ms(row)))),
        (Phase::Waiting | Phase::Running, _) if row.steps_now > 0 => {
            Some(format!("step {} of {steps} done", row.steps_done()))
        }
        (Phase::Waiting, Origin::Continued) => {
            Some(format!("continues, {} of {steps} steps done already", row.steps_before))
        }
        (Phase::Running, _) => Some(format!("running ({})", row.scenario.shows)),
        (Phase::Waiting | Phase::Returned, _) => None,
    }
}

fn row_line(row: &Row, frame: usize, columns: usize, style: Style) -> Line {
    let (mark, note) = match &row.phase {
        Phase::Waiting => (style.dim("·"), waiting_note(row)),
        Phase::Running | Phase::Returned => (style.busy(SPINNER[frame % SPINNER.len()]), waiting_note(row)),
        Phase::Completed(output) => (style.good("✔"), output.clone()),
        Phase::Failed(output) => (style.bad("✘"), output.clone()),
    };
    let count = format!("{}/{}", row.steps_done(), row.scenario.steps);
    let left = if columns < NARROW {
        format!("{:<8}", row.scenario.name)
    } else {
        format!("{:<8} {:<20}", row.scenario.name, row.scenario.shows)
    };
    let right = format!("{count:>6} {:>8}", span(elapsed_ms(row)));
    let used = 2 + width(&left) + 1 + BAR + 1 + width(&right) + 2;
    let bar = bar(row, style);
    let note = clip(&note, columns.saturating_sub(used + 1));
    let note = if row.phase.has_ended() { note.into() } else { style.dim(&note) };
    line![mark, format!(" {left} "), bar, format!(" {right}  "), note]
}

fn waiting_note(row: &Row) -> String {
    match (row.origin, row.scenario.name) {
        (Origin::Continued, _) => format!("continued after {}", plural(row.steps_before, "step")),
        (_, "proof") => "the dough rests".to_owned(),
        (_, "approve") => "waits for the baker's yes".to_owned(),
        _ => row.instance.clone(),
    }
}

fn bar(row: &Row, style: Style) -> Line {
    let full = BAR * row.steps_done() / row.scenario.steps.max(1);
    let before = (BAR * row.steps_before / row.scenario.steps.max(1)).min(full);
    let (done_before, done_now) = ("━".repeat(before), "━".repeat(full - before));
    let rest = style.dim(&"╌".repeat(BAR - full));
    match row.origin {
        // What an earlier process did is told from what this one does.
        Origin::Continued => line![style.warn(&done_before), style.good(&done_now), rest],
        Origin::Started => line![style.good(&done_before), style.good(&done_now), rest],
        Origin::Earlier => line![style.dim(&"━".repeat(full)), rest],
    }
}

fn totals(rows: &[Row], hint: &str) -> String {
    let done = rows.iter().filter(|row| row.phase.has_ended()).count();
    let steps: usize = rows.iter().map(Row::steps_done).sum();
    let all: usize = rows.iter().map(|row| row.scenario.steps).sum();
    format!("{done} of {} workflows done, {steps} of {all} steps. {hint}", rows.len())
}

fn elapsed_ms(row: &Row) -> u64 {
    u64::try_from(row.elapsed().as_millis()).unwrap_or(u64::MAX)
}

const BAR: usize = 12;
/// Terminals narrower than this have no room for what a workflow shows.
const NARROW: usize = 90;
const SPINNER: [&str; 4] = ["◐", "◓", "◑", "◒"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::bakery::SCENARIOS;

    #[test]
    fn a_change_is_told_once() {
        let mut row = Row::new("a".to_owned(), &SCENARIOS[7], Origin::Continued, 11);
        let first = sentence(&row, None).unwrap();
        assert_eq!(first, "continues, 11 of 20 steps done already");
        let written = Written { phase: row.phase.clone(), steps: row.steps_done() };
        assert_eq!(sentence(&row, Some(&written)), None);
        row.phase = Phase::Running;
        row.steps_now = 2;
        assert_eq!(sentence(&row, Some(&written)).unwrap(), "step 13 of 20 done");
    }

    #[test]
    fn every_line_fits_the_terminal() {
        for columns in [50, 80, 120] {
            for scenario in &SCENARIOS {
                let mut row = Row::new("bakery-1-x".to_owned(), scenario, Origin::Started, 0);
                row.phase = Phase::Completed("a rather long result of a workflow, ".repeat(4));
                let line = row_line(&row, 1, columns, Style::new(false));
                assert!(width(line.text()) <= columns, "{columns}: {line:?}");
            }
        }
    }
}
