//! Golden scripts: commands with the answers they must get, run on memory and on disk.
//!
//! A line is a command, an answer (`= …`, below its command), a comment (`# …`) or empty. Commands:
//!
//! ```text
//! container {..}           a new container in place of the one before, with these properties
//! alter {..}               gives the container these properties in place of those it has
//! create PK {..}           also upsert PK {..}, replace PK ID {..}, read PK ID, delete PK ID, patch PK ID {..}|[..]
//! if-match ETAG COMMAND    also if-none-match; ETAG is * or "..", or @ID: the etag this item was last answered with
//! keep ID as NAME          lets @NAME be the etag that @ID is now
//! batch PK [..]            steps as they are on the wire; also bulk [..]
//! query SCOPE SQL          SCOPE is * or a partition key; the answer says how many documents were read
//! pages N SCOPE SQL        the same, N rows at a time
//! feed SCOPE start         changes from the beginning; also now, or @: behind the last answer
//! advance SECONDS          moves the clock
//! sweep                    removes what has expired
//! reopen                   closes and opens the store, where it has a folder
//! ```
//!
//! `GOLDEN_WRITE=1 cargo test -p cosmos-emulator golden` writes the answers; read them before you keep them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::*;
use crate::command::batch_operations;
use crate::engine::index::terms::is_system_property;

#[test]
fn golden_scripts_get_the_same_answers_in_memory_and_on_disk() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/testscripts");
    let mut scripts: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("a file").path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 8, "the scripts are gone");
    for script in scripts {
        let text = std::fs::read_to_string(&script).expect("a script");
        let expected = if std::env::var_os("GOLDEN_WRITE").is_some() {
            let answered = Run::on_disk().answer(&text);
            std::fs::write(&script, &answered).expect("the folder can be written");
            answered
        } else {
            text
        };
        for (store, run) in [("memory", Run::in_memory()), ("disk", Run::on_disk())] {
            let found = run.answer(&expected);
            assert_same(&script, store, &expected, &found);
        }
    }
}

fn assert_same(script: &Path, store: &str, expected: &str, found: &str) {
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        let place = format!("{} line {}, on {store}", script.display(), number + 1);
        assert_eq!(found, expected, "{place}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{} on {store}", script.display());
}

struct Run {
    world: World,
    etags: HashMap<String, String>,
    feed: String,
}

impl Run {
    fn in_memory() -> Self {
        Self { world: World::in_memory(json!({})), etags: HashMap::new(), feed: String::new() }
    }

    fn on_disk() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let disk = DiskStorage::open(folder.path(), fast()).expect("a new store opens");
        let world = World::on(Arc::new(disk), Some(folder), json!({}), EngineOptions::default());
        Self { world, ..Self::in_memory() }
    }

    /// The script with the answers it got.
    fn answer(mut self, script: &str) -> String {
        let mut out = String::new();
        for line in script.lines().filter(|line| !line.starts_with('=')) {
            let _ = writeln!(out, "{line}");
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line == "reopen" {
                self.world = if self.world.folder.is_some() { self.world.reopened() } else { self.world };
                continue;
            }
            for answer in self.command(line, Conditions::default()) {
                let _ = writeln!(out, "= {answer}");
            }
        }
        out
    }

    fn command(&mut self, line: &str, conditions: Conditions) -> Vec<String> {
        let (name, rest) = split(line);
        let body = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        match name {
            "container" => {
                let _ = self.world.engine.delete_container("d", "c", None);
                let properties = serde_json::from_str(rest).expect("properties are JSON");
                vec![said(self.world.create_container("c", properties).map(|reply| reply.status.to_string()))]
            }
            "alter" => {
                let properties = serde_json::from_str(rest).expect("properties are JSON");
                vec![said(self.world.replace_container(properties).map(|reply| reply.status.to_string()))]
            }
            "if-match" | "if-none-match" => {
                let (etag, rest) = split(rest);
                let etag = Some(etag.strip_prefix('@').map_or(etag, |id| &self.etags[id]).to_owned());
                self.command(
                    rest,
                    match name {
                        "if-match" => Conditions { if_match: etag, ..conditions },
                        _ => Conditions { if_none_match: etag, ..conditions },
                    },
                )
            }
            "keep" => {
                let (id, name) = rest.split_once(" as ").expect("keep ID as NAME");
                self.etags.insert(name.to_owned(), self.etags[id].clone());
                Vec::new()
            }
            "create" | "upsert" => {
                let (pk, text) = split(rest);
                let op = if name == "create" {
                    ItemOp::Create { body: body(text) }
                } else {
                    ItemOp::Upsert { body: body(text) }
                };
                vec![self.item(pk, op, conditions)]
            }
            "replace" | "read" | "delete" | "patch" => {
                let (pk, rest) = split(rest);
                let (id, text) = split(rest);
                let id = id.to_owned();
                let op = match name {
                    "replace" => ItemOp::Replace { id, body: body(text) },
                    "read" => ItemOp::Read { id },
                    "delete" => ItemOp::Delete { id },
                    _ => match Patch::parse(text.as_bytes()) {
                        Ok(patch) => ItemOp::Patch { id, patch },
                        Err(failure) => return vec![refused(&failure)],
                    },
                };
                vec![self.item(pk, op, conditions)]
            }
            "batch" => {
                let (pk, steps) = split(rest);
                self.batch(BatchMode::Atomic, Some(key(pk)), steps)
            }
            "bulk" => self.batch(BatchMode::Bulk, None, rest),
            "query" => {
                let (scope, sql) = split(rest);
                self.query(scope, sql, PageSize::DEFAULT)
            }
            "pages" => {
                let (count, rest) = split(rest);
                let (scope, sql) = split(rest);
                self.query(scope, sql, PageSize::AtMost(count.parse().expect("pages N")))
            }
            "feed" => self.changes(rest),
            "advance" => {
                self.world.hand.advance(Duration::from_secs(rest.parse().expect("advance SECONDS")));
                Vec::new()
            }
            "sweep" => {
                vec![said(self.world.engine.sweep(1_000).map(|removed| format!("removed {removed}")))]
            }
            other => panic!("no such command: {other}"),
        }
    }

    fn item(&mut self, pk: &str, op: ItemOp, conditions: Conditions) -> String {
        let answer = self.world.item_if(pk, op, conditions);
        said(answer.map(|reply| {
            let document = (!reply.body.is_empty()).then(|| body(&reply));
            if let (Some(etag), Some(id)) = (&reply.etag, document.as_ref().and_then(|d| d["id"].as_str())) {
                self.etags.insert(id.to_owned(), etag.clone());
            }
            let shown = document.map(|document| format!(" {}", own(document))).unwrap_or_default();
            format!("{} lsn {} charge {:.2}{shown}", reply.status, reply.standing.lsn, reply.charge)
        }))
    }

    fn batch(&mut self, mode: BatchMode, pk: Option<PartitionKey>, steps: &str) -> Vec<String> {
        let request = batch_operations(steps.as_bytes()).map(|operations| BatchRequest {
            mode,
            partition_key: pk,
            operations,
            body_bytes: steps.len(),
            range: None,
            content: Content::All,
            session_token: None,
        });
        let answer = request.and_then(|request| self.world.engine.batch(&self.world.container(), request));
        match answer {
            Err(failure) => vec![refused(&failure)],
            Ok(reply) => {
                let head = format!("{} lsn {} charge {:.2}", reply.status, reply.standing.lsn, reply.charge);
                let steps = reply.results.iter().map(|result| {
                    let document = serde_json::from_slice(&result.body).map(|body| format!(" {}", own(body)));
                    format!("  {}{}", code(result.status, result.sub_status), document.unwrap_or_default())
                });
                std::iter::once(head).chain(steps).collect()
            }
        }
    }

    fn query(&self, scope: &str, sql: &str, page_size: PageSize) -> Vec<String> {
        match self.world.query_pages(&scope_of(scope), sql, page_size) {
            Err(failure) => vec![refused(&failure)],
            Ok((rows, visited)) => {
                let head = format!("{} rows, {visited} read", rows.len());
                std::iter::once(head).chain(rows.into_iter().map(|row| format!("  {}", own(row)))).collect()
            }
        }
    }

    fn changes(&mut self, rest: &str) -> Vec<String> {
        let (scope, start) = split(rest);
        let start = match start {
            "start" => FeedStart::Beginning,
            "now" => FeedStart::Now,
            "@" => FeedStart::After(self.feed.clone()),
            other => panic!("a feed begins at start, now or @, not at {other}"),
        };
        let page_size = PageSize::AtMost(3);
        let request = FeedRequest { scope: scope_of(scope), start, page_size, session_token: None };
        match self.world.engine.change_feed(&self.world.container(), request) {
            Err(failure) => vec![refused(&failure)],
            Ok(page) => {
                self.feed.clone_from(&page.etag);
                let documents = page.documents.iter().map(|bytes| {
                    let document: Value = serde_json::from_slice(bytes).expect("JSON");
                    format!("  lsn {} {}", document["_lsn"].clone(), own(document))
                });
                std::iter::once(format!("{} {}", page.status, page.etag)).chain(documents).collect()
            }
        }
    }
}

fn split(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}

fn scope_of(text: &str) -> Scope {
    if text == "*" { Scope::All } else { in_key(text) }
}

/// A document without what the service adds.
fn own(mut document: Value) -> String {
    if let Value::Object(fields) = &mut document {
        fields.retain(|name, _| name != "_lsn" && !is_system_property(name));
    }
    document.to_string()
}

fn code(status: u16, sub_status: u32) -> String {
    if sub_status == 0 { status.to_string() } else { format!("{status}/{sub_status}") }
}

fn refused(failure: &Failure) -> String {
    let message = failure.message.lines().next().unwrap_or_default();
    format!("{} charge {:.2} {message}", code(failure.status, failure.sub_status), failure.charge)
}

fn said(answer: Result<String, Failure>) -> String {
    answer.unwrap_or_else(|failure| refused(&failure))
}
