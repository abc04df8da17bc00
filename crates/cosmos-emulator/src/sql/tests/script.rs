//! Golden scripts: documents, then queries with the rows or the refusal they must get. Any [`Source`] can run them.
//!
//! One directive per line; a value may not span lines:
//!
//! ```text
//! doc {"id": "1", "n": 5}        a document (all documents of a file, for all of its queries)
//! query SELECT VALUE c.n FROM c  a query; further lines that begin with `|` continue it
//! param @p 5                     a parameter of the query
//! row 5                          an expected row, in order
//! unordered                      the rows may come in any order
//! error 400 SC1001               instead of rows: the status, and a part of the message
//! ```

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::super::source::Source;
use super::super::value::key_of;
use super::super::{List, Page, PageLimits, Prepared, parse};
use crate::Failure;

/// One file.
pub(crate) struct Script {
    /// Its name without folder.
    pub(crate) name: &'static str,
    /// What the container holds, in order of creation.
    pub(crate) documents: Vec<Value>,
    cases: Vec<Case>,
}

/// One request of a script.
pub(crate) struct Ask<'a> {
    pub(crate) text: &'a str,
    pub(crate) parameters: &'a [(String, Value)],
    pub(crate) limits: &'a PageLimits,
    pub(crate) continuation: Option<&'a str>,
}

/// Whatever answers the requests of a script.
pub(crate) type Answer<'a> = dyn FnMut(&Ask<'_>) -> Result<Page, Failure> + 'a;

/// The time at which scripts run: 2024-02-29T12:34:56.789Z.
pub(crate) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_709_210_096_789)
}

#[derive(Default)]
struct Case {
    query: String,
    parameters: Vec<(String, Value)>,
    rows: Vec<Value>,
    is_unordered: bool,
    error: Option<(u16, String)>,
}

macro_rules! scripts {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../testscripts/", $name, ".script")))),*]
    };
}

const SCRIPTS: &[(&str, &str)] = scripts![
    "aggregate",
    "array",
    "cross_type",
    "date",
    "distinct",
    "errors",
    "from",
    "full_text",
    "functions",
    "group",
    "join",
    "like",
    "operators",
    "order",
    "projection",
    "rewritten",
    "spatial",
    "string",
    "subquery",
    "undefined",
];

/// Every script of the folder.
pub(crate) fn scripts() -> Vec<Script> {
    SCRIPTS.iter().map(|(name, text)| Script::parse(name, text)).collect()
}

impl Script {
    fn parse(name: &'static str, text: &str) -> Self {
        let mut script = Self { name, documents: Vec::new(), cases: Vec::new() };
        for (number, line) in text.lines().enumerate() {
            let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            let json = |text: &str| -> Value {
                serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}:{}: {error}", number + 1))
            };
            if word == "doc" {
                script.documents.push(json(rest));
                continue;
            }
            if word == "query" {
                script.cases.push(Case { query: rest.to_owned(), ..Case::default() });
                continue;
            }
            if word.is_empty() || word.starts_with('#') {
                continue;
            }
            let case =
                script.cases.last_mut().unwrap_or_else(|| panic!("{name}:{}: no query yet", number + 1));
            match word {
                "|" => {
                    case.query.push('\n');
                    case.query.push_str(rest);
                }
                "param" => {
                    let (key, value) = rest.split_once(' ').expect("a parameter has a value");
                    case.parameters.push((key.to_owned(), json(value)));
                }
                "row" => case.rows.push(json(rest)),
                "unordered" => case.is_unordered = true,
                "error" => {
                    let (status, message) = rest.split_once(' ').unwrap_or((rest, ""));
                    case.error = Some((status.parse().expect("a status"), message.to_owned()));
                }
                other => panic!("{name}:{}: unknown directive {other}", number + 1),
            }
        }
        script
    }

    /// Runs every query over a source, in pages of several sizes, and panics where the answer is another.
    pub(crate) fn run(&self, source: &dyn Source) {
        self.run_with(&mut |ask| {
            let prepared = Prepared::new(&parse(ask.text)?, ask.parameters)?;
            prepared.page(source, ask.limits, ask.continuation, now())
        });
    }

    /// Runs every query over whatever answers, be it a whole engine. Its clock must stand at [`now`], and it must
    /// have a composite index over `/a` ascending and `/b` descending.
    pub(crate) fn run_with(&self, answer: &mut Answer<'_>) {
        let sizes = [(1000, 100_000), (1, 100_000), (2, 3), (1000, 1)];
        for case in &self.cases {
            for (items_max, rows_visited_max) in sizes {
                let limits = PageLimits { items_max, rows_visited_max, ..PageLimits::default() };
                case.check(self.name, answer, &limits);
            }
        }
    }
}

impl Case {
    fn check(&self, name: &str, answer: &mut Answer<'_>, limits: &PageLimits) {
        let place = format!("{name}: {}\nparameters {:?}\nlimits {limits:?}", self.query, self.parameters);
        match (self.all_pages(answer, limits), &self.error) {
            (Ok(mut rows), None) => {
                let mut expected = self.rows.clone();
                if self.is_unordered {
                    rows.sort_by_key(|row| key_of(Some(row)));
                    expected.sort_by_key(|row| key_of(Some(row)));
                }
                let show = |rows: &[Value]| rows.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
                assert_eq!(show(&rows), show(&expected), "{place}");
            }
            (Err(failure), Some((status, part))) => {
                assert_eq!(failure.status, *status, "{place}\n{failure:?}");
                assert!(failure.message.contains(part), "{place}\n{failure:?}");
            }
            (Ok(rows), Some(_)) => panic!("{place}\nwas not refused: {rows:?}"),
            (Err(failure), None) => panic!("{place}\nwas refused: {failure:?}"),
        }
    }

    fn all_pages(&self, answer: &mut Answer<'_>, limits: &PageLimits) -> Result<Vec<Value>, Failure> {
        let (mut rows, mut continuation) = (Vec::new(), None::<String>);
        for _ in 0..10_000 {
            let page = answer(&Ask {
                text: &self.query,
                parameters: &self.parameters,
                limits,
                continuation: continuation.as_deref(),
            })?;
            assert!(page.rows.len() <= limits.items_max, "{}: more rows than asked for", self.query);
            rows.extend(page.rows);
            continuation = page.continuation;
            if continuation.is_none() {
                rows.iter_mut().for_each(strip);
                return Ok(rows);
            }
        }
        panic!("{}: pages without end", self.query);
    }
}

/// Takes out what an engine adds to a document.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for name in ["_rid", "_self", "_etag", "_attachments", "_ts"] {
                map.shift_remove(name);
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

#[test]
fn every_script_holds_over_a_list() {
    for script in scripts() {
        let source = List::new(script.documents.clone());
        script.run(&source);
    }
}

#[test]
fn every_file_of_the_folder_is_run() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sql/testscripts");
    for entry in std::fs::read_dir(folder).expect("the folder of scripts") {
        let name = entry.expect("an entry").file_name().into_string().expect("a plain name");
        let name = name.strip_suffix(".script").expect("only scripts").to_owned();
        assert!(SCRIPTS.iter().any(|(known, _)| *known == name), "{name}.script is not in SCRIPTS");
    }
}
