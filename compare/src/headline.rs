//! The five figures at the top of the README, taken from the reports in compare/results.

use std::fmt::Write as _;

use anyhow::Context;

use crate::report::{Better, Cell, Report, show};

/// One figure: where it is in the reports, and what the README calls it.
struct Headline {
    what: &'static str,
    report: &'static str,
    table: &'static str,
    row: &'static str,
    /// The column of the peer and its name.
    peer: (usize, &'static str),
    ours: usize,
    better: Better,
}

const HEADLINES: [Headline; 5] = [
    Headline {
        what: "requests for one orchestration of a backlog of 1,000",
        report: "provider",
        table: "Requests per orchestration",
        row: "one of a backlog of 1,000",
        peer: (0, "`duroxide-cdb` 0.1.10"),
        ours: 1,
        better: Better::Lower,
    },
    Headline {
        what: "milliseconds of an orchestration with one activity, 5 ms per request",
        report: "provider",
        table: "Milliseconds per orchestration, by the server's latency per request",
        row: "hello, 5 ms",
        peer: (0, "`duroxide-cdb` 0.1.10"),
        ours: 1,
        better: Better::Lower,
    },
    Headline {
        what: "requests per second of a runtime with nothing to do",
        report: "provider",
        table: "A runtime with nothing to do",
        row: "requests",
        peer: (0, "`duroxide-cdb` 0.1.10"),
        ours: 1,
        better: Better::Lower,
    },
    Headline {
        what: "point reads per second of a client, 64 in flight",
        report: "driver",
        table: "Operations per second (HTTP/2, 20 streams per connection)",
        row: "point read, 64",
        peer: (1, "`azure_data_cosmos`"),
        ours: 2,
        better: Better::Higher,
    },
    Headline {
        what: "point reads per second of a local server, 16 in flight",
        report: "emulator",
        table: "Operations per second (0.8 KB documents)",
        row: "point read, 16 in flight",
        peer: (0, "`@vercel/cosmosdb-server`"),
        ours: 1,
        better: Better::Higher,
    },
];

/// The table of the README. `read` gives the report of a name.
pub fn table(read: impl Fn(&str) -> anyhow::Result<Report>) -> anyhow::Result<String> {
    let mut out = "\n| | the peer | ours | |\n| --- | ---: | ---: | ---: |\n".to_owned();
    for headline in &HEADLINES {
        let report = read(headline.report)?;
        let missing =
            || format!("{}: no row \"{}\" in \"{}\"", headline.report, headline.row, headline.table);
        let table = report.tables.iter().find(|table| table.title == headline.table).with_context(missing)?;
        let cells = table.cells(headline.row).with_context(missing)?;
        let figure = |column: usize| match cells.get(column) {
            Some(Cell::Figure(figure)) => Ok(*figure),
            _ => Err(anyhow::anyhow!("{}, column {column}: not a figure", missing())),
        };
        let (peer, ours) = (figure(headline.peer.0)?, figure(headline.ours)?);
        let ratio = match headline.better {
            Better::Lower => format!("{} of it", show(&Cell::Figure(round(ours / peer)))),
            Better::Higher | Better::Mixed => format!("× {}", show(&Cell::Figure(round(ours / peer)))),
        };
        let (peer, ours) = (show(&Cell::Figure(peer)), show(&Cell::Figure(ours)));
        let _ = writeln!(out, "| {} | {}: {peer} | {ours} | {ratio} |", headline.what, headline.peer.1);
    }
    Ok(out)
}

fn round(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::stored;

    #[test]
    fn every_headline_is_a_figure_of_a_stored_report() {
        let table = table(stored).unwrap();
        assert_eq!(table.lines().count(), 3 + HEADLINES.len(), "{table}");
    }
}
