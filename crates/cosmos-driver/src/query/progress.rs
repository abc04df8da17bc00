//! Whether the pages of a feed lead anywhere. What a server sends is not believed without end.

use serde::de::IgnoredAny;

use super::Feed;
use crate::error::Error;

/// How many empty pages of one feed came in a row.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    empty: u32,
}

impl Progress {
    /// Takes note of a page: the token it was asked with, the one it gave, and whether it has no rows.
    ///
    /// # Errors
    /// When the same page would be asked for again, or nothing has come for longer than any real search goes on.
    pub(crate) fn note(
        &mut self,
        asked_with: Option<&str>,
        given: Option<&str>,
        is_empty: bool,
    ) -> Result<(), Error> {
        if given.is_some() && given == asked_with {
            return Err(Error::protocol(
                "the server gave the same continuation twice, so the query would never end; report it to whoever runs \
                 the endpoint",
            ));
        }
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        if self.empty > EMPTY_PAGES_MAX {
            return Err(Error::protocol(format!(
                "the server gave {EMPTY_PAGES_MAX} pages without a row in a row; narrow the query, or ask whoever runs \
                 the endpoint"
            )));
        }
        Ok(())
    }
}

/// Whether the body of a page has no rows. Only a short one is looked at: a long one has some.
pub(crate) fn is_empty(body: &[u8]) -> bool {
    body.len() <= EMPTY_BYTES_MAX
        && serde_json::from_slice::<Feed<IgnoredAny>>(body).is_ok_and(|feed| feed.documents.is_empty())
}

/// A page without rows means that the server looked at megabytes, or seconds, for nothing: this many are more than any
/// partition holds.
const EMPTY_PAGES_MAX: u32 = 100_000;
const EMPTY_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continuation_that_stands_still_is_an_error() {
        let mut progress = Progress::default();
        progress.note(None, Some("a"), true).expect("the first");
        progress.note(Some("a"), Some("b"), true).expect("another");
        assert!(progress.note(Some("b"), Some("b"), true).is_err());
        assert!(progress.note(Some("b"), Some("b"), false).is_err());
        progress.note(Some("b"), None, true).expect("the last");
    }

    #[test]
    fn empty_pages_without_end_are_an_error_and_a_row_begins_anew() {
        let mut progress = Progress::default();
        for page in 0..EMPTY_PAGES_MAX {
            progress.note(Some("a"), Some("b"), true).unwrap_or_else(|e| panic!("page {page}: {e}"));
        }
        assert!(progress.note(Some("a"), Some("b"), true).is_err());
        let mut progress = Progress { empty: EMPTY_PAGES_MAX };
        progress.note(Some("a"), Some("b"), false).expect("it has rows");
        progress.note(Some("b"), Some("c"), true).expect("counted from there");
    }

    #[test]
    fn a_page_without_rows_is_told_from_one_with_some() {
        assert!(is_empty(br#"{"_rid":"x","Documents":[],"_count":0}"#));
        assert!(!is_empty(br#"{"_rid":"x","Documents":[1],"_count":1}"#));
        assert!(!is_empty(b"nonsense"));
    }
}
