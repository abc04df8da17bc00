//! Colours, in one place: a word for each meaning.

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
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// What matters less.
    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// What went well.
    pub(crate) fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// What went wrong.
    pub(crate) fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// What is going on.
    pub(crate) fn busy(self, text: &str) -> String {
        self.paint("36", text)
    }

    /// What one should look at.
    pub(crate) fn warn(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// A status of duroxide in its colour.
    pub(crate) fn status(self, status: &str) -> String {
        match status {
            "Completed" => self.good(status),
            "Failed" => self.bad(status),
            "Running" => self.busy(status),
            _ => self.warn(status),
        }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.on { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}
