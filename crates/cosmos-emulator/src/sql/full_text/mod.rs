//! Full text: words of a text, whether it holds a phrase, and how much it is about it.
//!
//! `FullTextContains(c.text, 'Running shoes')` over "She RAN; her running-shoe broke" in English: the text becomes the
//! words `she ran her run shoe broke`, the phrase `run shoe`, and the phrase stands at the fourth word. English words
//! are taken in lower case, without the commonest ones (`the`, `of`) and by their stems; words of other languages are
//! taken in lower case and whole.

mod analysis;
mod score;
mod stem;

pub(crate) use self::analysis::{Language, Phrase, words};
pub(crate) use self::score::{Corpus, bm25};
