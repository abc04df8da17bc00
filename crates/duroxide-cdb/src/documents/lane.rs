//! Lanes: one text that says by tag and session which workers an item is for, so that an index can keep the items of
//! each lane together.

use super::ids;

/// The lane of an item. The length before a tag keeps tags apart from what follows them; a session is hashed, so that
/// lanes are short and everybody sorts them alike.
pub(crate) fn of(tag: Option<&str>, session: Option<&str>) -> String {
    let tag = named(tag);
    match session {
        None => format!("{PLAIN}/{tag}"),
        Some(session) => format!("{SESSION}/{tag}/{}", ids::lane_of_session(session)),
    }
}

/// All lanes of items without a session are between these.
pub(crate) fn without_session() -> (String, String) {
    below(PLAIN)
}

/// All lanes of items with a session are between these.
pub(crate) fn with_session() -> (String, String) {
    below(SESSION)
}

/// All lanes of items with a tag and a session are between these.
pub(crate) fn sessions_of(tag: Option<&str>) -> (String, String) {
    below(&format!("{SESSION}/{}", named(tag)))
}

fn named(tag: Option<&str>) -> String {
    tag.map_or_else(|| UNTAGGED.to_owned(), |tag| format!("{}:{tag}", tag.len()))
}

/// What begins with a text and a slash is behind the text and before the same with the character after the slash.
fn below(text: &str) -> (String, String) {
    (text.to_owned(), format!("{text}0"))
}

const PLAIN: &str = "plain";
const SESSION: &str = "session";
const UNTAGGED: &str = "~";
