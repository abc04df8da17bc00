//! Full text functions. The last argument may be `{"language": ..}`, which the container's policy puts there.

use serde_json::Value;

use super::{Arguments, Function, MANY};
use crate::sql::full_text::{Corpus, Language, Phrase, bm25, words};
use crate::sql::value::number;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::pure("FullTextContains", 2, 2, |a| contains(a, |found| found.iter().all(|found| *found))),
    Function::pure("FullTextContainsAll", 2, MANY, |a| contains(a, |found| found.iter().all(|found| *found))),
    Function::pure("FullTextContainsAny", 2, MANY, |a| contains(a, |found| found.contains(&true))),
    // What ORDER BY RANK ranks by; refused everywhere else, and never called.
    Function::pure("FullTextScore", 2, MANY, |_| None),
    Function::pure("RRF", 2, MANY, |_| None),
    // What clients send to each partition in place of them.
    Function::pure("_FullTextWordCount", 1, 1, |a| {
        let (_, language) = terms(a, 1);
        Some(words(a.text(0)?, language).len().into())
    }),
    Function::pure("_FullTextScore", 5, 5, score),
];

/// The key of the hidden argument.
pub(crate) const LANGUAGE: &str = "language";

/// How many arguments from `first` on are the caller's, and the language.
fn terms(arguments: &Arguments<'_>, first: usize) -> (usize, Language) {
    let last = arguments.len().checked_sub(1).filter(|last| *last >= first);
    let told = last.and_then(|last| arguments.value(last)?.get(LANGUAGE)?.as_str());
    match told {
        Some(tag) => (arguments.len() - 1, Language::by_tag(tag)),
        None => (arguments.len(), Language::English),
    }
}

fn contains(arguments: &Arguments<'_>, decide: fn(&[bool]) -> bool) -> Option<Value> {
    let (end, language) = terms(arguments, 1);
    let text = words(arguments.text(0)?, language);
    let phrases: Vec<Phrase> =
        (1..end).map(|at| phrase(arguments.value(at)?, language)).collect::<Option<_>>()?;
    let found: Vec<bool> = phrases.iter().map(|phrase| phrase.count_in(&text) > 0).collect();
    Some(decide(&found).into())
}

/// A text, or `{"term": .., "distance": ..}` for one that may be misspelt.
fn phrase(term: &Value, language: Language) -> Option<Phrase> {
    match term {
        Value::String(text) => Some(Phrase::new(text, language)),
        Value::Object(fuzzy) => {
            let edits = match fuzzy.get("distance") {
                None => 0,
                Some(distance) => {
                    usize::try_from(distance.as_u64()?).ok().filter(|edits| *edits <= EDITS_MAX)?
                }
            };
            Some(Phrase::new(fuzzy.get("term")?.as_str()?, language).within_edits(edits))
        }
        _ => None,
    }
}

/// Most edits by which a word may be misspelt.
const EDITS_MAX: usize = 2;

/// Text, phrases, documents, words of all documents, documents that hold each phrase.
fn score(arguments: &Arguments<'_>) -> Option<Value> {
    let (_, language) = terms(arguments, 5);
    let text = words(arguments.text(0)?, language);
    let phrases: Vec<Phrase> =
        arguments.array(1)?.iter().map(|term| phrase(term, language)).collect::<Option<_>>()?;
    let corpus = Corpus {
        documents: arguments.double(2)?,
        words: arguments.double(3)?,
        hits: arguments.array(4)?.iter().map(Value::as_f64).collect::<Option<_>>()?,
    };
    if corpus.hits.len() != phrases.len() {
        return None;
    }
    let counts: Vec<usize> = phrases.iter().map(|phrase| phrase.count_in(&text)).collect();
    number(bm25(&corpus, &counts, text.len()))
}
