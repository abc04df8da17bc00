//! What people and programs read: tables or JSON on standard output, talk on standard error. Everything is written by
//! [`writer`], as a [`Line`] or as JSON, neither of which lets control characters of stored texts through.

mod full_screen;
mod line;
mod style;
mod table;
mod time;
mod writer;

pub(crate) use full_screen::{FullScreen, Keys};
pub(crate) use line::{Line, line};
pub(crate) use style::Style;
pub(crate) use table::{Column, Paint, Table, clip, plain, width};
pub(crate) use time::{ago, parse_moment, parse_span, span, utc};
pub(crate) use writer::{
    Logs, clean_panics, erase, is_error_terminal, is_terminal, json_text, print_over, raw, say, say_over,
};

use std::io;
use std::sync::OnceLock;

use serde::Serialize;

/// Where data goes, and in which form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// Tables or JSON.
    pub(crate) format: Format,
    /// Colours, if the terminal wants them.
    pub(crate) style: Style,
    /// Columns of the terminal; none when standard output is not one, and then nothing is cut.
    pub(crate) columns: Option<usize>,
}

/// When colours are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colours {
    /// On a terminal, unless the environment says otherwise.
    #[default]
    Auto,
    Always,
    Never,
}

static COLOURS: OnceLock<Colours> = OnceLock::new();

/// What was typed. The first call counts.
pub(crate) fn set_colours(colours: Colours) {
    let _ = COLOURS.set(colours);
}

/// What was typed comes first, then who wants no colours, then who wants them everywhere, then the terminal.
fn wants_colours(typed: Colours, is_terminal: bool, environment: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name: &str| environment(name).is_some_and(|value| !value.is_empty());
    let is_forced = |name: &str| environment(name).is_some_and(|value| !value.is_empty() && value != "0");
    match typed {
        Colours::Always => true,
        Colours::Never => false,
        Colours::Auto if is_set("NO_COLOR") => false,
        Colours::Auto => is_terminal || is_forced("CLICOLOR_FORCE") || is_forced("FORCE_COLOR"),
    }
}

/// The form of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

impl Output {
    /// Decides by the terminal and the flag.
    pub(crate) fn new(json: bool) -> Self {
        let is_terminal = is_terminal();
        Self {
            format: if json { Format::Json } else { Format::Table },
            style: Style::new(wants_colours(*COLOURS.get_or_init(Colours::default), is_terminal, |name| {
                std::env::var(name).ok()
            })),
            columns: is_terminal.then(terminal_columns),
        }
    }

    /// Whether programs read the data.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// One JSON document, indented for a terminal and on one line otherwise.
    pub(crate) fn json(&self, value: &impl Serialize) -> io::Result<()> {
        writer::print_json(value, self.columns.is_some())
    }

    /// One JSON document of several, each on a line of its own.
    pub(crate) fn json_line(&self, value: &impl Serialize) -> io::Result<()> {
        writer::print_json(value, false)
    }

    /// Something stored, as it is, on a line of its own.
    pub(crate) fn stored_line(&self, value: &serde_json::Value) -> io::Result<()> {
        writer::print_stored(value)
    }

    /// One JSON document that people look at as well.
    pub(crate) fn json_indented(&self, value: &impl Serialize) -> io::Result<()> {
        writer::print_json(value, true)
    }

    /// One line of text.
    pub(crate) fn line(&self, text: impl Into<Line>) -> io::Result<()> {
        writer::print(&[text.into()])
    }

    /// A table.
    pub(crate) fn table(&self, table: &Table) -> io::Result<()> {
        writer::print(&table.lines(self.columns, self.style))
    }
}

/// `1 step`, `2 steps`.
pub(crate) fn plural(count: impl std::fmt::Display, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Columns of the terminal, or what terminals had when they were paper.
pub(crate) fn terminal_columns() -> usize {
    let told =
        std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns >= 20);
    told.or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)))
        .unwrap_or(80)
        .max(20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_used_as_the_usual_variables_say() {
        type Case = (Colours, bool, &'static [(&'static str, &'static str)], bool);
        let cases: [Case; 9] = [
            (Colours::Auto, true, &[], true),
            (Colours::Auto, false, &[], false),
            (Colours::Auto, true, &[("NO_COLOR", "1")], false),
            (Colours::Auto, true, &[("NO_COLOR", "")], true),
            (Colours::Auto, false, &[("CLICOLOR_FORCE", "1")], true),
            (Colours::Auto, false, &[("FORCE_COLOR", "0")], false),
            (Colours::Auto, false, &[("FORCE_COLOR", "1"), ("NO_COLOR", "1")], false),
            (Colours::Always, false, &[("NO_COLOR", "1")], true),
            (Colours::Never, true, &[("FORCE_COLOR", "1")], false),
        ];
        for (typed, is_terminal, environment, expected) in cases {
            let lookup = |name: &str| {
                environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(
                wants_colours(typed, is_terminal, lookup),
                expected,
                "{typed:?} {is_terminal} {environment:?}"
            );
        }
    }
}
