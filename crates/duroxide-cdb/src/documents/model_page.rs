//! Keeps `docs/data-model.md` true: what the page says of types, fields, ids, indexes and queries is compared with the code.
//!
//! Who adds a field fills it in below, sees the test fail, and adds a row to the page.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::{DeserializeOwned, Deserializer, Visitor, value::Error};
use serde_json::{Value, json};

use super::*;
use crate::bootstrap::container_definition;
use crate::layout::Stamp;

const PAGE: &str = include_str!("../../../../docs/data-model.md");
const KINDS: &str = include_str!("mod.rs");
const QUERIES: &str = include_str!("../queries.rs");
const LEGACY: &str = include_str!("../../tests/fixtures/public-0.1.10.ndjson");

type Names = BTreeSet<String>;

/// The part of the page under a heading, up to the next heading of the same or a higher level.
fn section(heading: &str) -> &'static str {
    let level = heading.chars().take_while(|character| *character == '#').count();
    let start = PAGE.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("the page lacks {heading:?}"));
    let rest = &PAGE[start + heading.len() + 2..];
    let ends = |at: &(usize, &str)| {
        let hashes = at.1.chars().take_while(|character| *character == '#').count();
        (1..=level).contains(&hashes)
    };
    let lines = rest.split_inclusive('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        Some((start, line))
    });
    lines.clone().find(ends).map_or(rest, |(end, _)| &rest[..end])
}

/// The first cells, between backticks, of the rows of the first table whose first column is `column`.
fn first_cells(text: &str, column: &str) -> Vec<String> {
    let rows = text.lines().skip_while(|line| !line.starts_with(&format!("| {column} |"))).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('`').nth(1).unwrap_or_else(|| panic!("no name in {row:?}")).to_owned()).collect()
}

/// The fields that a section lists, none of them twice.
fn listed(heading: &str) -> Names {
    let cells = first_cells(section(heading), "field");
    let names: Names = cells.iter().cloned().collect();
    assert_eq!(cells.len(), names.len(), "{heading} lists a field twice: {cells:?}");
    names
}

/// The names of the fields that a value is stored with.
fn stored(value: &impl Serialize) -> Names {
    let Value::Object(fields) = serde_json::to_value(value).unwrap() else { panic!("not an object") };
    fields.into_iter().map(|(name, _)| name).collect()
}

/// The names that a type reads, whatever a value of it leaves out.
fn declared<T: DeserializeOwned>() -> Names {
    struct Ask<'a>(&'a mut Names);
    impl<'de> Deserializer<'de> for Ask<'_> {
        type Error = Error;
        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(serde::de::Error::custom("only asked for the names of the fields"))
        }
        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Error> {
            self.0.extend(fields.iter().map(|name| (*name).to_owned()));
            self.deserialize_any(visitor)
        }
        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut names = Names::new();
    drop(T::deserialize(Ask(&mut names)));
    names
}

/// Compares a section with a value in which every field is filled, and returns the name of its type. `read_only` are names
/// that are read and not written.
fn compare<T: Serialize + DeserializeOwned>(heading: &str, value: &T, read_only: &[&str]) -> &'static str {
    let mut read = stored(value);
    read.extend(read_only.iter().map(|name| (*name).to_owned()));
    assert_eq!(read, declared::<T>(), "fill in every field of the value for {heading}");
    assert_eq!(listed(heading), stored(value), "the field table of {heading}; left: page, right: code");
    std::any::type_name::<T>().rsplit("::").next().unwrap_or_default()
}

fn pieces() -> ChunkRef {
    ChunkRef { commit: "c".into(), first: 0, count: 1, bytes: 1, packed: true }
}

fn value_in_pieces() -> super::kv::Stored {
    let inline = super::kv::Stored::inline("v", 1);
    super::kv::Stored { document: Some("value:1:0".into()), pieces: Some(pieces()), ..inline }
}

fn head() -> Head {
    let mut head = Head {
        output: Some("o".into()),
        output_in_record: true,
        parent_instance_id: Some("p".into()),
        pinned_duroxide_version_packed: Some(1032),
        pinned_version: Some([0, 1, 32]),
        custom_status: Some("s".into()),
        custom_status_value: Some("value:1:0".into()),
        custom_status_pieces: Some(pieces()),
        attempts: [("m".to_owned(), 1)].into(),
        put_off: vec![PutOff { after: 1, upto: 2, until: 3 }],
        commit: Some("c".into()),
        events: vec!["{}".into()],
        record_written: true,
        kv: [("k".to_owned(), Cell::default())].into(),
        completed_at: Some(1),
        deletion: Some("deletion:1".into()),
        doomed: Some(Vec::new()),
        sweep_at: Some(1),
        ttl: Some(1),
        wreck: Some("{".to_owned()),
        ..Head::unstarted("a", 1)
    };
    let held = Held { id: "m".into(), attempts: 1, delivered: true, chunks: Some(pieces()) };
    (head.batch, head.lock_token, head.locked_until) = (vec![held], Some("s".into()), Some(1));
    head.lock_owner = Some("o".into());
    head
}

fn message() -> Message {
    let item = WorkItem::QueueMessage { instance: "a".into(), name: "q".into(), data: String::new() };
    let message = Message::new(&item, None, &Clock::default(), 0, &mut Chunks::new("c")).unwrap();
    Message {
        chunks: Some(pieces()),
        attempt_count: 1,
        delivered: true,
        parent_instance_id: Some("p".into()),
        parked_at: 1,
        ..message
    }
}

fn work() -> WorkDocument {
    let item = WorkItem::ActivityExecute {
        instance: "a".into(),
        execution_id: 1,
        id: 2,
        name: "n".into(),
        input: String::new(),
        session_id: Some("s".into()),
        tag: Some("t".into()),
    };
    let work = WorkDocument::new(&item, &Clock::default(), 0, &mut Chunks::new("c")).unwrap();
    WorkDocument {
        chunks: Some(pieces()),
        spread_to: Some(1),
        lock_token: Some("s".into()),
        locked_until: Some(1),
        delivered: true,
        nonce: Some("n".into()),
        ..work
    }
}

fn history() -> HistoryDocument {
    let document = pack("a", 1, 1, &[(1, "{}".to_owned())], &mut Chunks::new("c")).remove(0);
    HistoryDocument {
        packed: Some("p".into()),
        packed_bytes: Some(1),
        chunks: Some(pieces()),
        event_data: Some("{}".into()),
        ..document
    }
}

fn intent() -> Intent {
    let intent = Intent::new("a", "life", ids::intent(1, 0), "b", json!({}), 1);
    Intent { payload: Some("{}".into()), chunks: Some(pieces()), ..intent }
}

fn member() -> Member {
    let text =
        json!({ "id": "member:o", "instanceId": ids::LEASES, "type": kind::MEMBER, "owner": "o", "ttl": 1 });
    serde_json::from_value(text).unwrap()
}

fn share() -> TableShare {
    TableShare { first: 0, last: 255, owner: "o".into(), next: Some("p".into()) }
}

fn rung() -> Rung {
    let message = RungMessage { n: 1, i: "a".into(), id: "m".into(), s: 1, v: 1 };
    Rung { n: 2, m: vec![message], w: vec![RungWork { n: 2, slot: 1 }] }
}

fn manifest() -> Manifest {
    let mark = Manifest::prepared("a", "c", 1, 1, 1);
    Manifest { deletes: vec!["work:1:2".into()], drops: vec![pieces()], ..mark }
}

#[test]
fn every_type_has_a_section_and_a_row() {
    let kinds = KINDS.split("pub mod kind {").nth(1).unwrap().split("\n}").next().unwrap();
    let kinds = kinds.lines().filter(|line| line.contains("pub const "));
    let mut kinds: Names = kinds.map(|line| line.split('"').nth(1).unwrap().to_owned()).collect();
    assert!(kinds.contains(kind::INSTANCE) && kinds.contains(kind::LEGACY_KV_DELTA), "{kinds:?}");
    kinds.insert(ids::FORMAT.to_owned());
    for kind in &kinds {
        section(&format!("### `{kind}`"));
    }
    let rows: Names = first_cells(section("## The documents"), "type").into_iter().collect();
    assert_eq!(rows, kinds, "the table of all types; left: page, right: code");
}

/// Compares what an instance is made of, and what waits for it.
fn compare_instance() -> Vec<&'static str> {
    let cell = Cell { stored: Some(value_in_pieces()), changed: Some(value_in_pieces()), cleared: true };
    let mut record = ExecutionRecord::of(&head(), None, &mut Chunks::new("c"));
    record.chunks = Some(pieces());
    let value = ValueDocument {
        id: ids::value(1, 0),
        instance_id: "a".into(),
        kind: kind::VALUE.into(),
        turn: 1,
        value: "v".into(),
        chunks: Some(pieces()),
    };
    vec![
        compare("### `instance`", &head(), &[]),
        compare("#### A held message", &head().batch[0], &[]),
        compare("#### Messages that were put off", &head().put_off[0], &[]),
        compare("#### A key", &cell, &[]),
        compare("#### A value of a key", &value_in_pieces(), &[]),
        compare("#### Where the pieces of a text are", &pieces(), &[]),
        compare("### `orch_queue`", &message(), &["_etag"]),
        compare("### `worker_queue`", &work(), &["executionId"]),
        compare("### `history`", &history(), &[]),
        compare("### `execution`", &record, &[]),
        compare("### `value`", &value, &[]),
        compare("### `chunk`", &Chunk::new("a", "c", 0, "d"), &[]),
    ]
}

/// Compares what is under way between instances and processes.
fn compare_what_is_under_way() -> Vec<&'static str> {
    vec![
        compare("### `outbox_intent`", &intent(), &["_etag"]),
        compare("#### A cancellation", &Cancellation::of(1, 2), &[]),
        compare("### `dead_letter`", &DeadLetter::of(&intent(), "r".into(), 1), &[]),
        compare("### `manifest`", &manifest(), &[]),
        compare("### `staged`", &Staged::new("a", "c", 0, Vec::new()), &[]),
        compare("### `tombstone`", &Tombstone::new("a", "m", 60), &[]),
        compare("### `deletion`", &Deletion::new("d", &[], vec!["m".into()], 1), &[]),
        compare("### `session`", &Session::claimed("s", "o", 1, 1), &[]),
        compare("### `format`", &Stamp::filled(), &[]),
        compare("### `member`", &member(), &[]),
        compare("### `slot_table`", &SlotTable::new(1, vec![share()]), &[]),
        compare("#### A share of the slots", &share(), &[]),
        compare("### `bell`", &Bell::silent(), &[]),
        compare("#### The rings of a process", &rung(), &[]),
        compare("#### A message that was rung for", &rung().m[0], &[]),
        compare("#### Activities that were rung for", &rung().w[0], &[]),
    ]
}

#[test]
fn the_fields_of_an_instance_and_of_what_waits_for_it_are_those_on_the_page() {
    compare_instance();
}

#[test]
fn the_fields_of_what_is_under_way_are_those_on_the_page() {
    compare_what_is_under_way();
}

#[test]
fn every_document_is_compared_with_the_page() {
    let compared = [compare_instance(), compare_what_is_under_way()].concat();
    let documents = KINDS.split("\ndocuments!(").nth(1).unwrap().split(");").next().unwrap();
    let documents: Vec<&str> = documents.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    assert!(documents.contains(&"Head"), "{documents:?}");
    let missing: Vec<&&str> = documents.iter().filter(|name| !compared.contains(name)).collect();
    assert!(missing.is_empty(), "compare {missing:?} with a section of the page");
}

#[test]
fn the_public_crates_key_values_have_the_fields_on_the_page() {
    let rows = LEGACY.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rows: Vec<Value> = rows.filter(|row| row["type"] == kind::LEGACY_KV_DELTA).collect();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(listed("### `kv_delta`"), stored(&row));
    }
}

#[test]
fn ids_look_as_the_page_says() {
    let table = section("## The documents");
    let pattern = |kind: &str| {
        let row = table.lines().find(|line| line.starts_with(&format!("| `{kind}` |")));
        row.and_then(|row| row.split('`').nth(3)).unwrap_or_else(|| panic!("no id of {kind}")).to_owned()
    };
    for (kind, id) in [
        (kind::INSTANCE, ids::head("a")),
        (kind::DELETING, ids::head("a")),
        (kind::EXECUTION, ids::execution("a", 1)),
        (kind::HISTORY, ids::history("a", 1, 1)),
        (kind::MESSAGE, ids::message()),
        (kind::WORK, ids::work(1, 2)),
        (kind::INTENT, ids::intent(1, 0)),
        (kind::MANIFEST, ids::manifest("c")),
        (kind::STAGED, ids::staged("c", 0)),
        (kind::VALUE, ids::value(1, 0)),
        (kind::CHUNK, ids::chunk("c", 0)),
        (kind::SESSION, ids::SESSION.to_owned()),
        (kind::DEAD_LETTER, ids::dead_letter(&ids::intent(1, 0))),
        (ids::FORMAT, ids::FORMAT.to_owned()),
        (kind::MEMBER, ids::member("o")),
        (kind::SLOT_TABLE, ids::SLOT_TABLE.to_owned()),
        (kind::BELL, ids::BELL.to_owned()),
    ] {
        let pattern = pattern(kind);
        let (parts, named): (Vec<&str>, Vec<&str>) = (pattern.split(':').collect(), id.split(':').collect());
        let fits = |(part, named): (&&str, &&str)| part.starts_with('<') || part == named;
        let is_such = parts.len() == named.len() && parts.iter().zip(&named).all(fits);
        assert!(is_such, "{kind}: {id} is not {pattern}");
    }
}

#[test]
fn indexes_and_queries_are_those_on_the_page() {
    let text = section("## Indexes and queries");
    let policy = container_definition("c").indexing_policy.unwrap();
    let path = |entry: &Value| entry["path"].as_str().unwrap().trim_end_matches("/?").to_owned();
    let single = policy["includedPaths"].as_array().unwrap().iter().map(path);
    let composite = policy["compositeIndexes"].as_array().unwrap().iter().map(|paths| {
        let paths: Vec<String> = paths.as_array().unwrap().iter().map(path).collect();
        paths.join(", ")
    });
    let indexes: Names = first_cells(text, "index").into_iter().collect();
    assert_eq!(indexes, single.chain(composite).collect::<Names>(), "left: page, right: code");
    let names = QUERIES.split("pub(crate) const ").skip(1).map(|rest| rest.split(':').next().unwrap());
    let named: Names = first_cells(text, "query").into_iter().collect();
    assert_eq!(named, names.map(ToOwned::to_owned).collect::<Names>(), "left: page, right: code");
}

/// What a view reads is there: the documents and the views of them are one model.
#[test]
fn a_view_names_no_field_that_its_document_does_not_have() {
    use crate::inspect;
    fn holds<View: DeserializeOwned, Document: DeserializeOwned>() {
        holds_with::<View>(declared::<Document>());
    }
    fn holds_with<View: DeserializeOwned>(mut known: Names) {
        // The service's own.
        known.insert("_etag".to_owned());
        let unknown: Vec<String> = declared::<View>().difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", std::any::type_name::<View>());
    }
    holds::<inspect::Head, Head>();
    holds::<inspect::Held, Held>();
    holds::<inspect::Cell, Cell>();
    holds::<inspect::Stored, super::kv::Stored>();
    holds::<inspect::Intent, Intent>();
    holds::<inspect::DeadLetter, DeadLetter>();
    holds::<inspect::Manifest, Manifest>();
    holds_with::<inspect::Queued>(&declared::<Message>() | &declared::<WorkDocument>());
    assert!(declared::<inspect::Head>().len() > 20, "the names were found");
}
