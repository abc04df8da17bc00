//! The only place that writes to standard output and standard error. What is written are [`Line`]s, JSON without
//! control characters, and the sequences below that move the cursor.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

use super::line::{Line, clean, clean_json};
use super::time::rfc_3339;

/// Whether people read standard output as it comes.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether people read standard error as it comes.
pub(crate) fn is_error_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Lines on standard output.
pub(crate) fn print<'a>(lines: impl IntoIterator<Item = &'a Line>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        writeln!(out, "{}", line.as_str())?;
    }
    out.flush()
}

/// JSON on standard output: on one line, or indented.
pub(crate) fn print_json(value: &impl Serialize, is_indented: bool) -> io::Result<()> {
    let mut value = serde_json::to_value(value)?;
    write_out_times(&mut value);
    let text =
        if is_indented { serde_json::to_string_pretty(&value)? } else { serde_json::to_string(&value)? };
    let mut out = io::stdout().lock();
    writeln!(out, "{}", clean_json(&text))?;
    out.flush()
}

/// A stored value as JSON on one line, with nothing changed.
pub(crate) fn print_stored(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", json_text(value))?;
    out.flush()
}

/// Moments are written as RFC 3339 has them, wherever they are: fields whose names end with `At` or `Until` hold
/// milliseconds since 1970. Documents as they are stored are not touched by this: what is in them is theirs.
fn write_out_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let is_moment = name == "at" || name.ends_with("At") || name.ends_with("Until");
                match field.as_u64().filter(|_| is_moment) {
                    Some(ms) => *field = Value::String(rfc_3339(ms)),
                    None if name == STORED => {}
                    None => write_out_times(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_out_times),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The field that holds a document as it is stored.
const STORED: &str = "message";

/// Standard output for what must reach it byte by byte: exports, whose lines are made by [`json_text`], and scripts that
/// are part of this program.
pub(crate) fn raw() -> io::Stdout {
    io::stdout()
}

/// A value as JSON without control characters.
pub(crate) fn json_text(value: &Value) -> String {
    clean_json(&value.to_string()).into_owned()
}

/// Says something that is not data. Nothing can be done when even standard error is closed.
pub(crate) fn say(text: impl Into<Line>) {
    let _ = writeln!(io::stderr(), "{}", text.into().as_str());
}

/// Draws over the line that was drawn last on standard error; an empty one takes it away.
pub(crate) fn say_over(text: &str) {
    // As with `say`.
    let mut out = io::stderr().lock();
    let _ = write!(out, "\r\u{1b}[K{}", clean(text));
    let _ = out.flush();
}

/// Draws lines over those drawn last, of which there are `height`.
pub(crate) fn print_over(height: usize, lines: &[Line]) -> io::Result<()> {
    let mut text = up(height);
    for line in lines {
        text.push_str(line.as_str());
        text.push_str("\u{1b}[K\n");
    }
    write_out(&text)
}

/// Takes away the lines drawn last, of which there are `height`.
pub(crate) fn erase(height: usize) -> io::Result<()> {
    write_out(&format!("{}\u{1b}[J", up(height)))
}

/// To the left, because the terminal may have echoed ^C, and up.
fn up(height: usize) -> String {
    if height == 0 { String::new() } else { format!("\r\u{1b}[{height}A") }
}

/// Draws the whole screen.
pub(super) fn draw_screen(lines: &[Line]) -> io::Result<()> {
    let lines: Vec<&str> = lines.iter().map(Line::as_str).collect();
    write_out(&format!("\u{1b}[H{}\u{1b}[K\u{1b}[J", lines.join("\u{1b}[K\r\n")))
}

/// The alternate screen without a cursor, on which lines that are too long end at the edge.
pub(super) fn enter_screen() -> io::Result<()> {
    write_out("\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l")
}

/// Back to how it was.
pub(super) fn leave_screen() -> io::Result<()> {
    write_out("\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l")
}

fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Standard error for logs: libraries log names and messages as they are, each event in one piece.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logs;

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let event = text.strip_suffix('\n').unwrap_or(&text);
        writeln!(io::stderr(), "{}", clean(event))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

/// A bug may be met on data of others: what a panic says of them is cleaned as everything is.
pub(crate) fn clean_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        // The first line says where, the others what.
        say(format!("thread '{name}' {}", panic.to_string().replace(":\n", ": ")));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            trace.to_string().lines().for_each(say);
        }
    }));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn moments_are_written_in_one_form_and_documents_as_they_are() {
        let mut value = json!({"createdAt": 1_794_717_571_042_u64, "leaseUntil": 0, "oldestMs": 5, "completedAt": null,
            "rows": [{"at": 1}], "message": {"visibleAt": 7}});
        write_out_times(&mut value);
        let expected = json!({"createdAt": "2026-11-15T04:39:31.042Z", "leaseUntil": "1970-01-01T00:00:00.000Z", "oldestMs": 5,
            "completedAt": null, "rows": [{"at": "1970-01-01T00:00:00.001Z"}], "message": {"visibleAt": 7}});
        assert_eq!(value, expected);
    }
}
