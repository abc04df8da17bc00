//! Colours, in one place: a word for each meaning.

use super::Line;

/// Colours of the terminal, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    on: bool,
}

impl Style {
    /// With colours or without.
    pub(crate) fn new(on: bool) -> Self {
        Self { on }
    }

    /// Titles.
    pub(crate) fn bold(self, text: &str) -> Line {
        self.paint("1", text)
    }

    /// What matters less.
    pub(crate) fn dim(self, text: &str) -> Line {
        self.paint("2", text)
    }

    /// What went well.
    pub(crate) fn good(self, text: &str) -> Line {
        self.paint("32", text)
    }

    /// What went wrong.
    pub(crate) fn bad(self, text: &str) -> Line {
        self.paint("31", text)
    }

    /// What is going on.
    pub(crate) fn busy(self, text: &str) -> Line {
        self.paint("36", text)
    }

    /// What one should look at.
    pub(crate) fn warn(self, text: &str) -> Line {
        self.paint("33", text)
    }

    /// A status of duroxide in its colour.
    pub(crate) fn status(self, status: &str) -> Line {
        match status {
            "Completed" => self.good(status),
            "Failed" => self.bad(status),
            "Running" => self.busy(status),
            "Pending" | "Cancelled" => self.dim(status),
            _ => self.warn(status),
        }
    }

    fn paint(self, code: &str, text: &str) -> Line {
        if self.on { Line::painted(code, text) } else { text.into() }
    }
}
