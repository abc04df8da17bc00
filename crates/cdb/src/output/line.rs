//! Texts that may be shown. Names, results and messages come from containers, files and servers, which may hold
//! anything: sequences that rewrite the screen or a window's title, marks that turn the direction of writing, characters
//! that nobody sees. Every text becomes a [`Line`] before it is written, and only here.

use std::borrow::Cow;
use std::fmt::Write as _;

/// One line without control characters but for the colours of [`super::Style`].
///
/// It is made from a text by escaping it, and has no `Display`: a painted line put into a `format!` would either be
/// escaped again or let the texts around it through unescaped. `line![..]` joins lines and texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Line(String);

impl Line {
    /// The text in a colour.
    pub(super) fn painted(code: &str, text: &str) -> Self {
        Self(format!("\u{1b}[{code}m{}\u{1b}[0m", clean(text)))
    }

    /// What is written.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// What a test of another module looks at.
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        self.as_str()
    }

    /// Appends another line, or a text.
    pub(crate) fn push(&mut self, more: impl Into<Self>) {
        self.0.push_str(&more.into().0);
    }

    /// Without blanks at its end.
    pub(crate) fn trim_end(mut self) -> Self {
        self.0.truncate(self.0.trim_end().len());
        self
    }
}

impl<T: AsRef<str>> From<T> for Line {
    fn from(text: T) -> Self {
        Self(clean(text.as_ref()).into_owned())
    }
}

/// Joins lines and texts to one line.
macro_rules! line {
    ($($part:expr),+ $(,)?) => {{
        let mut line = $crate::output::Line::default();
        $(line.push($part);)+
        line
    }};
}
pub(crate) use line;

/// The text with everything escaped that could fake or hide output. What is clean stays as it is, so that cleaning
/// twice changes nothing.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_deceptive) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_deceptive(character) {
            clean.extend(character.escape_default());
        } else {
            clean.push(character);
        }
    }
    Cow::Owned(clean)
}

/// JSON that says the same: what terminals act on is escaped in its strings, and outside of strings there is none.
pub(crate) fn clean_json(json: &str) -> Cow<'_, str> {
    // Line ends of indented JSON are outside of its strings.
    let is_escaped = |character: char| character != '\n' && is_deceptive(character);
    if !json.chars().any(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut clean = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_escaped(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(clean, "\\u{unit:04x}");
            }
        } else {
            clean.push(character);
        }
    }
    Cow::Owned(clean)
}

/// Whether a terminal acts on the character, or shows nothing for it, or shows what follows in another order.
fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' // soft hyphen
            | '\u{34f}' // grapheme joiner
            | '\u{61c}' // bidi mark
            | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' // fillers: letters without a shape
            | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' // zero width, bidi marks
            | '\u{2028}'..='\u{202e}' // line and paragraph separators, bidi embeddings and overrides
            | '\u{2060}'..='\u{206f}' // invisible operators, bidi isolates
            | '\u{feff}'
            | '\u{fff0}'..='\u{fffb}' // annotations
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}') // tags, and selectors that can carry hidden texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_or_hides_is_written_out() {
        assert_eq!(clean("a\u{1b}]0;t\u{7}\u{9b}2J\u{7f}"), "a\\u{1b}]0;t\\u{7}\\u{9b}2J\\u{7f}");
        assert_eq!(clean("two\r\n\tlines"), "two\\r\\n\\tlines");
        assert_eq!(clean("\u{202e}\u{2066}\u{200f}\u{61c}"), "\\u{202e}\\u{2066}\\u{200f}\\u{61c}");
        assert_eq!(clean("\u{2028}\u{200b}\u{feff}\u{e0041}"), "\\u{2028}\\u{200b}\\u{feff}\\u{e0041}");
    }

    #[test]
    fn every_control_character_and_every_bidi_control_is_escaped() {
        let bidi = ('\u{202a}'..='\u{202e}')
            .chain('\u{2066}'..='\u{2069}')
            .chain(['\u{200e}', '\u{200f}', '\u{61c}']);
        for character in ('\0'..='\u{9f}').filter(|character| character.is_control()).chain(bidi) {
            let text = character.to_string();
            assert!(clean(&text).chars().all(|shown| shown.is_ascii_graphic()), "{character:?}");
            let json = serde_json::to_string(&text).unwrap();
            assert!(clean_json(&json).chars().all(|shown| shown.is_ascii_graphic()), "{character:?}");
        }
    }

    #[test]
    fn ordinary_texts_stay_as_they_are_and_cleaning_twice_changes_nothing() {
        for text in ["", "Brötchen", "面包 🥐 ✔", "a\\n b", "مخبز", "e\u{301}"] {
            assert!(matches!(clean(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        let once = clean("\u{1b}[2J\u{202e}").into_owned();
        assert_eq!(clean(&once), once);
    }

    #[test]
    fn json_is_read_back_as_it_was() {
        let value = serde_json::json!({"a\u{9b}\u{e0041}": "\u{7f}\u{202e}\n\\ \u{1b}", "b": ["Brötchen"]});
        for text in [value.to_string(), format!("{value:#}")] {
            let clean = clean_json(&text);
            assert!(!clean.chars().any(|shown| shown != '\n' && is_deceptive(shown)), "{clean}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&clean).unwrap(), value);
        }
    }

    #[test]
    fn joined_parts_are_cleaned_and_keep_their_colours() {
        let line = line![Line::painted("31", "a\u{1b}"), " b\u{9b}", String::from("c"), "  "].trim_end();
        assert_eq!(line.as_str(), "\u{1b}[31ma\\u{1b}\u{1b}[0m b\\u{9b}c");
    }
}
