//! Where a report goes: JSON, Markdown, charts, the marked section of docs/measurements.md, and the README's five figures.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::headline;
use crate::plot;
use crate::process::{root, target_folder};
use crate::report::Report;

/// Where the files of a report go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Beside what was built: for looking at it.
    Target,
    /// Into the repository, the documents included.
    Repository,
}

/// Writes everything of a report and says what was written.
pub fn publish(name: &str, report: &Report, destination: Destination) -> anyhow::Result<Vec<PathBuf>> {
    let (results, figures) = match destination {
        Destination::Target => (target_folder().join("compare"), target_folder().join("compare")),
        Destination::Repository => (results(), root().join("docs/figures")),
    };
    let mut written = Vec::new();
    let mut write = |path: PathBuf, text: &str| -> anyhow::Result<()> {
        save(&path, text)?;
        written.push(path);
        Ok(())
    };
    write(results.join(format!("{name}.json")), &format!("{}\n", serde_json::to_string_pretty(report)?))?;
    let title = format!("# {}{}, compared\n\n", name[..1].to_uppercase(), &name[1..]);
    let command = format!("`{}{name}`\n\n", COMMAND);
    write(results.join(format!("{name}.md")), &format!("{title}{command}{}", report.to_markdown()))?;
    for table in &report.tables {
        if let Some(chart) = &table.chart {
            write(figures.join(format!("{chart}.svg")), &plot::bars(table))?;
        }
    }
    if destination == Destination::Repository {
        for (page, section, content) in [
            ("docs/measurements.md", name, report.to_page()),
            ("README.md", "headlines", headline::table(stored)?),
        ] {
            let path = root().join(page);
            let text = std::fs::read_to_string(&path)?;
            write(path, &replace_section(&text, section, &content).with_context(|| page.to_owned())?)?;
        }
    }
    Ok(written)
}

/// Reads a report that was published to the repository.
pub fn stored(name: &str) -> anyhow::Result<Report> {
    let path = results().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} is not there: measure it with --write-docs", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// Replaces what is between the two marks of a section.
fn replace_section(text: &str, name: &str, section: &str) -> anyhow::Result<String> {
    let (begin, end) = (format!("<!-- compare:{name} -->"), format!("<!-- /compare:{name} -->"));
    let (Some(from), Some(to)) = (text.find(&begin), text.find(&end)) else {
        bail!("there is no section {begin} … {end}");
    };
    let from = from + begin.len();
    if to < from {
        bail!("the section {name} ends before it begins");
    }
    Ok(format!("{}\n{section}{}", &text[..from], &text[to..]))
}

fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn results() -> PathBuf {
    root().join("compare/results")
}

const COMMAND: &str = "cargo run --release --manifest-path compare/Cargo.toml -- ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marked_section_is_replaced() {
        let text = "before\n<!-- compare:x -->\nold\n<!-- /compare:x -->\nafter\n";
        let new = replace_section(text, "x", "new\n").unwrap();
        assert_eq!(new, "before\n<!-- compare:x -->\nnew\n<!-- /compare:x -->\nafter\n");
        assert_eq!(replace_section(&new, "x", "new\n").unwrap(), new, "twice is the same");
        assert!(replace_section(text, "y", "").unwrap_err().to_string().contains("compare:y"));
    }
}
