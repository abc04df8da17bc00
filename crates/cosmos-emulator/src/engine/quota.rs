//! What an operation costs in request units: pure functions fitted to published and recorded charges.
//!
//! A write costs a base that depends on the size of the document and 8/21 RU for each indexed property besides the
//! id; all recorded charges of small documents are whole multiples of 1/21. Replacing costs a write plus the
//! removal of what was there.

/// Charge of a point read that finds a document of this size.
pub fn read(size_bytes: usize) -> f64 {
    interpolate(READ_BY_KB, kilobytes(size_bytes))
}

/// Charge of a point read that finds nothing new: 304 and 404, whatever the size.
pub const READ_NOTHING: f64 = 1.0;

/// Charge of changing a script.
pub const SCRIPT_WRITE: f64 = 5.0;

/// Charge of running a stored procedure, besides its operations.
pub const SCRIPT_RUN: f64 = 1.0;

/// Charge of reading or changing a database, a container or an offer.
pub const METADATA: f64 = 1.0;

/// Charge of a write that was refused before it changed anything.
pub const REFUSED_WRITE: f64 = 1.24;

/// Charge of creating or deleting a document.
pub fn create(size_bytes: usize, indexed_properties: usize) -> f64 {
    interpolate(WRITE_BY_KB, kilobytes(size_bytes)) + PER_PROPERTY * count(indexed_properties)
}

/// Charge of deleting a document: that of creating it.
pub fn delete(size_bytes: usize, indexed_properties: usize) -> f64 {
    create(size_bytes, indexed_properties)
}

/// Charge of replacing a document, or of an upsert that finds one.
pub fn replace(old_bytes: usize, new_bytes: usize, indexed_properties: usize) -> f64 {
    create(new_bytes, indexed_properties) + interpolate(WRITE_BY_KB, kilobytes(old_bytes)) - REPLACE_SAVING
}

/// Charge of a patch: a replace and a little for each operation.
pub fn patch(old_bytes: usize, new_bytes: usize, indexed_properties: usize, operations: usize) -> f64 {
    replace(old_bytes, new_bytes, indexed_properties) + PER_PATCH_OPERATION * count(operations)
}

/// What a query did in one physical partition.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct QueryWork {
    /// Documents read.
    pub documents: u64,
    /// Their size together.
    pub document_bytes: u64,
    /// Rows in the answer.
    pub rows: u64,
    /// Their size together.
    pub row_bytes: u64,
}

/// Charge of one page of a query, per physical partition it looked at.
pub fn query(work: QueryWork) -> f64 {
    QUERY_BASE
        + PER_DOCUMENT_VISITED * whole(work.documents)
        + PER_KB_QUERIED * (whole(work.document_bytes) + whole(work.row_bytes)) / 1024.0
        + PER_ROW * whole(work.rows)
}

/// Charge of a page of a feed: never less than one.
pub fn feed(documents: usize, document_bytes: usize) -> f64 {
    READ_NOTHING + PER_DOCUMENT_VISITED * count(documents) + PER_KB_QUERIED * kilobytes(document_bytes)
}

/// Rounds as the service's header does: two digits.
pub fn rounded(charge: f64) -> f64 {
    (charge * 100.0).round() / 100.0
}

const PER_PROPERTY: f64 = 8.0 / 21.0;
const REPLACE_SAVING: f64 = 1.44;
const PER_PATCH_OPERATION: f64 = 0.4;
const QUERY_BASE: f64 = 2.25;
const PER_DOCUMENT_VISITED: f64 = 0.008;
const PER_KB_QUERIED: f64 = 0.012;
const PER_ROW: f64 = 0.0015;

/// Size in KB and charge; straight lines between, constant below, and the last slope beyond.
const READ_BY_KB: &[(f64, f64)] = &[
    (1.0, 1.0),
    (2.0, 1.04),
    (4.0, 1.14),
    (8.0, 1.33),
    (16.0, 1.67),
    (32.0, 2.19),
    (64.0, 4.95),
    (100.0, 9.4),
    (128.0, 10.4),
    (256.0, 20.3),
    (512.0, 41.0),
    (1024.0, 145.9),
    (2048.0, 291.8),
];

const WRITE_BY_KB: &[(f64, f64)] = &[
    (1.0, 5.44),
    (2.0, 5.9),
    (4.0, 6.5),
    (8.0, 7.04),
    (16.0, 9.52),
    (32.0, 11.23),
    (64.0, 22.67),
    (100.0, 46.5),
    (128.0, 48.5),
    (256.0, 98.3),
    (512.0, 184.6),
    (1024.0, 625.0),
    (2048.0, 1250.0),
];

fn interpolate(table: &[(f64, f64)], kb: f64) -> f64 {
    let first = table[0];
    if kb <= first.0 {
        return first.1;
    }
    let at = table.iter().position(|(size, _)| kb <= *size).unwrap_or(table.len() - 1);
    let (low, high) = (table[at - 1], table[at]);
    low.1 + (kb - low.0) / (high.0 - low.0) * (high.1 - low.1)
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts stay far below 2^52")]
fn count(n: usize) -> f64 {
    n as f64
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts stay far below 2^52")]
fn whole(n: u64) -> f64 {
    n as f64
}

fn kilobytes(bytes: usize) -> f64 {
    count(bytes) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: usize = 1024;

    /// Every figure within 10 %. `contradicts` marks figures that cannot be met together with a recorded one.
    #[test]
    fn charges_stay_within_ten_percent_of_every_published_and_recorded_figure() {
        let rows_of =
            |n: u64| query(QueryWork { documents: n, document_bytes: n * 300, rows: n, row_bytes: n * 40 });
        let price_list = [
            (1, 1.00, 4.95),
            (2, 1.04, 6.29),
            (4, 1.14, 6.67),
            (8, 1.33, 7.04),
            (16, 1.67, 9.52),
            (32, 2.19, 11.23),
            (64, 4.76, 22.67),
            (128, 9.95, 48.19),
            (256, 20.3, 98.3),
            (512, 41.0, 184.6),
            (1024, 145.9, 625.0),
            (2048, 291.8, 1250.0),
        ];
        let mut table = vec![
            ("published: read 1 KB", 1.0, read(KB)),
            ("published: read 100 KB", 10.0, read(100 * KB)),
            ("published: write 1 KB, no index", 5.0, create(KB, 0)),
            ("published: insert 1 KB without indexing", 5.5, create(KB, 0)),
            ("published: write 100 KB", 50.0, create(100 * KB, 0)),
            ("planner: create", 5.71, create(KB, 1)),
            ("planner: read", 1.0, read(KB)),
            ("planner: update", 10.67, replace(KB, KB, 1)),
            ("planner: delete", 5.71, delete(KB, 1)),
            ("recorded: read", 1.0, read(300)),
            ("recorded: create id, pk, n, s", 6.67, create(300, 3)),
            ("recorded: delete id, pk, n, s", 6.67, delete(300, 3)),
            ("recorded: upsert over existing", 10.67, replace(300, 300, 3)),
            ("recorded: replace", 11.05, replace(300, 300, 4)),
            ("recorded: batch create, 5 fields", 7.0476, create(300, 4)),
            ("recorded: batch create, 3 fields", 6.2857, create(300, 2)),
            ("recorded: query of one document", 2.26, rows_of(1)),
            ("recorded: 1000 rows of 2 columns", 17.16, rows_of(1_000)),
            ("recorded: 2500 rows", 34.72, rows_of(2_500)),
            ("published: smallest query", 2.3, rows_of(1)),
            ("published: a partition without a match", 2.5, rows_of(0)),
            ("recorded: create a database", 1.0, METADATA),
            ("measured: Orleans create", 6.29, create(300, 2)),
            ("measured: Orleans update", 10.29, replace(300, 300, 2)),
            ("measured: 304 and 404 of any size", 1.0, READ_NOTHING),
        ];
        for (kb, read_charge, write_charge) in price_list {
            // The list does not say how many properties its documents have; none besides the id is assumed, which
            // is the only number that fits its 1 KB row beside "5.5 without indexing".
            table.push(("price list: read", read_charge, read(kb * KB)));
            table.push(("price list: write", write_charge, create(kb * KB, 0)));
        }
        // "replace = 2 x insert" (published) and replace 10.67 beside create 6.67 (recorded, ratio 1.6) contradict
        // each other for small documents; the recording wins there, the rule holds from 16 KB on.
        for kb in [16, 64, 256] {
            table.push((
                "published: replace is twice an insert",
                2.0,
                replace(kb * KB, kb * KB, 0) / create(kb * KB, 0),
            ));
        }
        for (what, expected, actual) in table {
            let off = (actual - expected).abs() / expected;
            assert!(
                off <= 0.10,
                "{what}: expected {expected}, charged {actual:.3} ({:.1} % off)",
                off * 100.0
            );
        }
    }

    #[test]
    fn larger_documents_never_cost_less() {
        let mut last = (0.0, 0.0);
        for kb in 0..2_100 {
            let now = (read(kb * KB), create(kb * KB, 0));
            assert!(now.0 >= last.0 && now.1 >= last.1, "{kb} KB");
            last = now;
        }
    }

    #[test]
    fn patch_costs_a_replace_and_a_little_more() {
        assert!((patch(KB, KB, 2, 3) - replace(KB, KB, 2) - 1.2).abs() < 1e-9);
    }
}
