//! The export format: a header line, documents, and an end line with count and checksum.

use std::fmt::Write as _;
use std::io::{self, BufRead, Write};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::output::json_text;

/// Writes an export.
pub(crate) struct Writer<W: Write> {
    sink: W,
    digest: Sha256,
    count: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    pub(crate) fn begin(mut sink: W, database: &str, container: &str, now_ms: u64) -> io::Result<Self> {
        let header =
            json!({MARK: VERSION, "database": database, "container": container, "exportedAt": now_ms});
        writeln!(sink, "{}", json_text(&header))?;
        Ok(Self { sink, digest: Sha256::new(), count: 0 })
    }

    /// Writes a document without what the server adds.
    pub(crate) fn document(&mut self, mut document: Value) -> io::Result<()> {
        strip(&mut document);
        let line = json_text(&document);
        self.digest.update(line.as_bytes());
        self.digest.update(b"\n");
        self.count += 1;
        writeln!(self.sink, "{line}")
    }

    /// Writes the end and returns the number of documents.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        let end = json!({END: true, "documents": self.count, "sha256": hex(&self.digest.finalize())});
        writeln!(self.sink, "{end}")?;
        self.sink.flush()?;
        Ok(self.count)
    }
}

/// Reads a whole export, or says where it is wrong: nothing is believed before everything is checked.
pub(crate) fn read(source: impl BufRead) -> Result<Vec<Value>, String> {
    let mut lines = source.lines().zip(1_u64..);
    let mut next = || -> Result<Option<(Value, String, u64)>, String> {
        let Some((line, number)) = lines.next() else { return Ok(None) };
        let line = line.map_err(|error| format!("line {number} cannot be read: {error}"))?;
        let value =
            serde_json::from_str(&line).map_err(|error| format!("line {number} is not JSON: {error}"))?;
        Ok(Some((value, line, number)))
    };
    let header = next()?.ok_or("it is empty")?.0;
    match header.get(MARK).and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(version) => {
            return Err(format!("it has format {version}; this program knows {VERSION}: use a newer one"));
        }
        None => return Err("it does not begin like an export of cdb".to_owned()),
    }
    let mut documents = Vec::new();
    let mut digest = Sha256::new();
    while let Some((value, line, number)) = next()? {
        if value.get(END).is_some() {
            if value.get("documents").and_then(Value::as_u64) != Some(documents.len() as u64) {
                return Err(format!(
                    "it has {} documents and says it has {}",
                    documents.len(),
                    value["documents"]
                ));
            }
            if value.get("sha256").and_then(Value::as_str) != Some(hex(&digest.finalize()).as_str()) {
                return Err("its checksum is wrong: a line was changed".to_owned());
            }
            return match next()? {
                None => Ok(documents),
                Some((_, _, number)) => Err(format!("line {number} comes after the end")),
            };
        }
        let is_document =
            ["id", "instanceId"].iter().all(|name| value.get(name).is_some_and(Value::is_string));
        if !is_document {
            return Err(format!("line {number} is not a document: it has no id or no instanceId"));
        }
        digest.update(line.as_bytes());
        digest.update(b"\n");
        documents.push(value);
    }
    Err(format!("it ends after {} documents without its end line: it is cut off", documents.len()))
}

/// Takes away what the server adds to a document.
pub(crate) fn strip(document: &mut Value) {
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|name, _| !SYSTEM.contains(&name.as_str()));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

const MARK: &str = "cdb-export";
const END: &str = "cdb-end";
const VERSION: u64 = 1;
const SYSTEM: [&str; 6] = ["_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"];

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> String {
        let mut sink = Vec::new();
        let mut writer = Writer::begin(&mut sink, "d", "c", 1).unwrap();
        for id in ["a", "b"] {
            writer.document(json!({"id": id, "instanceId": "x", "n": 1.5, "_etag": "e", "_ts": 1})).unwrap();
        }
        assert_eq!(writer.finish().unwrap(), 2);
        String::from_utf8(sink).unwrap()
    }

    #[test]
    fn what_was_written_is_read_without_the_servers_properties() {
        let documents = read(export().as_bytes()).unwrap();
        assert_eq!(
            documents,
            [
                json!({"id": "a", "instanceId": "x", "n": 1.5}),
                json!({"id": "b", "instanceId": "x", "n": 1.5})
            ]
        );
    }

    #[test]
    fn every_damage_is_noticed_and_named() {
        let whole = export();
        let lines: Vec<&str> = whole.lines().collect();
        let cases = [
            (String::new(), "empty"),
            (lines[1..].join("\n"), "does not begin"),
            (lines[..3].join("\n"), "cut off"),
            (whole.replace("1.5", "1.25"), "checksum"),
            ([lines[0], lines[1], lines[3]].join("\n"), "1 documents"),
            (whole.replacen("\"id\"", "\"di\"", 1), "line 2 is not a document"),
            (whole.replacen("{\"id\"", "{\"id", 1), "line 2 is not JSON"),
            (whole.replacen("\"cdb-export\":1", "\"cdb-export\":9", 1), "format 9"),
            (format!("{whole}{{}}\n"), "after the end"),
        ];
        for (text, expected) in cases {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
