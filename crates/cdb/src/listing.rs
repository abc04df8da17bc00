//! Which instances are meant, and a list of them in the order in which they moved last: the same for commands and pages.
//!
//! Every container has an index by status, by parent and by the time of the last write. A question that one of them
//! answers costs as much as it shows, however many instances there are. Any other filter is looked for in the order of the
//! last write, so what is common is found at once; what is rare makes the list look at everything, which is why it stops
//! at a bound and says so.

use clap::{Args, ValueEnum};
use cosmos_driver::Query;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::now_ms;
use crate::documents::Documents;
use crate::ending::{CANCELLED, shown_status};
use crate::exit::Problem;
use crate::model::{Queued, text_of};
use crate::output::parse_moment;

/// Which instances.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which instances")]
pub(crate) struct FilterArgs {
    /// Only these statuses; several with commas.
    #[arg(long, value_enum, ignore_case = true, value_delimiter = ',', value_name = "STATUS")]
    pub(crate) status: Vec<Status>,

    /// Only this orchestration.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Only this version of it.
    #[arg(long, value_name = "VERSION")]
    pub(crate) of_version: Option<String>,

    /// Only ids that begin like this.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,

    /// Only ids that have this in them.
    #[arg(long, value_name = "TEXT")]
    pub(crate) contains: Option<String>,

    /// Only what moved since then: 15m, 2h, 7d, yesterday, or a date: in UTC, or with an offset such as +02:00.
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<String>,

    /// Only what has not moved since then.
    #[arg(long, value_name = "WHEN")]
    pub(crate) before: Option<String>,

    /// Only what was created since then.
    #[arg(long, value_name = "WHEN")]
    pub(crate) created_since: Option<String>,

    /// Only what was created before then.
    #[arg(long, value_name = "WHEN")]
    pub(crate) created_before: Option<String>,

    /// Only those whose custom status has this in it, in capitals or not.
    #[arg(long, value_name = "TEXT")]
    pub(crate) custom_status: Option<String>,

    /// Only those whose error has this in it, in capitals or not.
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,

    /// Only children of this instance.
    #[arg(long, value_name = "ID")]
    pub(crate) parent: Option<String>,

    /// Leave children of other instances out.
    #[arg(long, conflicts_with = "parent")]
    pub(crate) roots: bool,
}

/// Statuses one can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Status {
    /// Started, and no runtime has taken it.
    Pending,
    Running,
    Completed,
    Failed,
    /// Failed because somebody asked it to stop.
    #[value(alias = "canceled")]
    Cancelled,
}

impl Status {
    /// As it is shown.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
        }
    }

    /// As heads have it; one that is pending has no head.
    fn stored(self) -> Option<&'static str> {
        match self {
            Self::Pending => None,
            Self::Running => Some("Running"),
            Self::Completed => Some("Completed"),
            Self::Failed | Self::Cancelled => Some("Failed"),
        }
    }
}

/// What a filter asks for, with nothing left to parse.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) statuses: Vec<Status>,
    pub(crate) name: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) contains: Option<String>,
    pub(crate) since_ms: Option<u64>,
    pub(crate) before_ms: Option<u64>,
    pub(crate) created_since_ms: Option<u64>,
    pub(crate) created_before_ms: Option<u64>,
    pub(crate) custom_status: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) parent: Option<String>,
    pub(crate) is_roots: bool,
    /// Times are those that the provider wrote, not the service's of the last write: they survive an import.
    pub(crate) is_exact: bool,
}

impl FilterArgs {
    /// Whether anything is asked for.
    pub(crate) fn is_any(&self) -> bool {
        let texts = [
            &self.name,
            &self.of_version,
            &self.prefix,
            &self.contains,
            &self.since,
            &self.before,
            &self.created_since,
            &self.created_before,
            &self.custom_status,
            &self.error,
            &self.parent,
        ];
        !self.status.is_empty() || texts.into_iter().any(Option::is_some)
    }

    /// With its moments read.
    pub(crate) fn wanted(&self) -> Result<Wanted, Problem> {
        let now = now_ms();
        let moment = |text: &Option<String>| {
            text.as_deref().map(|text| parse_moment(text, now)).transpose().map_err(Problem::Usage)
        };
        Ok(Wanted {
            statuses: self.status.clone(),
            name: self.name.clone(),
            version: self.of_version.clone(),
            prefix: self.prefix.clone(),
            contains: self.contains.clone(),
            since_ms: moment(&self.since)?,
            before_ms: moment(&self.before)?,
            created_since_ms: moment(&self.created_since)?,
            created_before_ms: moment(&self.created_before)?,
            custom_status: self.custom_status.clone(),
            error: self.error.clone(),
            parent: self.parent.clone(),
            is_roots: self.roots,
            is_exact: false,
        })
    }
}

/// In which order rows come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// What moved last first.
    Latest,
    /// As they are stored.
    Stored,
}

impl Wanted {
    /// Whether an index leads to few, unless something is very wrong.
    pub(crate) fn is_rare(&self) -> bool {
        self.parent.is_some() || (!self.statuses.is_empty() && !self.statuses.contains(&Status::Completed))
    }

    /// Whether instances that nobody has taken are meant as well.
    pub(crate) fn has_pending(&self) -> bool {
        let needs_a_head = self.before_ms.is_some()
            || self.created_before_ms.is_some()
            || self.custom_status.is_some()
            || self.error.is_some();
        !needs_a_head && (self.statuses.is_empty() || self.statuses.contains(&Status::Pending))
    }

    /// Whether only such are meant.
    pub(crate) fn is_only_pending(&self) -> bool {
        !self.statuses.is_empty() && self.statuses.iter().all(|status| *status == Status::Pending)
    }

    /// The first condition is the one that has an index; the service takes any, the emulator the first.
    pub(crate) fn query(&self, order: Order) -> Query {
        let mut conditions: Vec<String> = Vec::new();
        if self.parent.is_some() {
            conditions.push("c.parentInstanceId = @parent".to_owned());
        }
        conditions.extend(self.status_conditions());
        conditions.push("c.type = 'instance'".to_owned());
        conditions.push(BEGUN.to_owned());
        let time = |column: &'static str, exact: &'static str| if self.is_exact { exact } else { column };
        let (since, before) = (
            time("c._ts >= @since", "c.updatedAt >= @since"),
            time("c._ts <= @before", "c.updatedAt <= @before"),
        );
        for (is_asked_for, condition) in [
            (self.name.is_some(), "c.orchestrationName = @name"),
            (self.version.is_some(), "c.orchestrationVersion = @version"),
            (self.prefix.is_some(), "STARTSWITH(c.instanceId, @prefix)"),
            (self.contains.is_some(), "CONTAINS(c.instanceId, @contains)"),
            (self.since_ms.is_some(), since),
            (self.before_ms.is_some(), before),
            (self.created_since_ms.is_some(), "c.createdAt >= @createdSince"),
            (self.created_before_ms.is_some(), "c.createdAt <= @createdBefore"),
            (self.custom_status.is_some(), "CONTAINS(c.customStatus, @customStatus, true)"),
            (self.error.is_some(), "c.status = 'Failed' AND CONTAINS(c.output, @error, true)"),
            (self.is_roots, "NOT IS_STRING(c.parentInstanceId)"),
        ] {
            if is_asked_for {
                conditions.push(condition.to_owned());
            }
        }
        let order = match order {
            Order::Latest => " ORDER BY c._ts DESC",
            Order::Stored => "",
        };
        self.with_parameters(format!("SELECT {COLUMNS} FROM c WHERE {}{order}", conditions.join(" AND ")))
    }

    /// A plain list is what indexes are good for; the rest is sorted out of it.
    fn status_conditions(&self) -> Vec<String> {
        let mut stored: Vec<&str> = self.statuses.iter().filter_map(|status| status.stored()).collect();
        stored.sort_unstable();
        stored.dedup();
        let mut conditions = match stored.as_slice() {
            [] => return Vec::new(),
            [one] => vec![format!("c.status = '{one}'")],
            several => vec![format!("c.status IN ('{}')", several.join("', '"))],
        };
        let has = |status: Status| self.statuses.contains(&status);
        match (has(Status::Failed), has(Status::Cancelled)) {
            (true, false) => {
                conditions
                    .push(format!("NOT (c.status = 'Failed' AND STARTSWITH(c.output ?? '', '{CANCELLED}'))"));
            }
            (false, true) => {
                conditions.push(format!("(c.status != 'Failed' OR STARTSWITH(c.output, '{CANCELLED}'))"));
            }
            (true, true) | (false, false) => {}
        }
        conditions
    }

    fn with_parameters(&self, text: String) -> Query {
        let mut query = Query::new(text);
        for (name, value) in [
            ("@name", &self.name),
            ("@version", &self.version),
            ("@prefix", &self.prefix),
            ("@contains", &self.contains),
            ("@parent", &self.parent),
            ("@customStatus", &self.custom_status),
            ("@error", &self.error),
        ] {
            if let Some(value) = value {
                query = query.with(name, value.as_str());
            }
        }
        let unit = if self.is_exact { 1 } else { 1000 };
        for (name, value, unit) in [
            ("@since", self.since_ms, unit),
            ("@before", self.before_ms, unit),
            ("@createdSince", self.created_since_ms, 1),
            ("@createdBefore", self.created_before_ms, 1),
        ] {
            if let Some(value) = value {
                query = query.with(name, value / unit);
            }
        }
        query
    }

    /// Whether an instance that has not begun is meant.
    fn means_pending(&self, row: &Listed) -> bool {
        let is = |wanted: &Option<String>, known: &str| wanted.as_ref().is_none_or(|wanted| wanted == known);
        let since = self.since_ms.max(self.created_since_ms).unwrap_or(0);
        is(&self.name, &row.orchestration)
            && is(&self.version, &row.version)
            && self.prefix.as_ref().is_none_or(|prefix| row.instance.starts_with(prefix.as_str()))
            && self.contains.as_ref().is_none_or(|text| row.instance.contains(text.as_str()))
            && self.parent.as_ref().is_none_or(|parent| row.parent.as_ref() == Some(parent))
            && !(self.is_roots && row.parent.is_some())
            && row.created_at >= since
    }
}

/// One instance in a list.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listed {
    pub(crate) instance: String,
    pub(crate) orchestration: String,
    pub(crate) version: String,
    pub(crate) status: String,
    pub(crate) execution: u64,
    pub(crate) parent: Option<String>,
    pub(crate) custom_status: Option<String>,
    pub(crate) created_at: u64,
    pub(crate) updated_at: u64,
    pub(crate) completed_at: Option<u64>,
    /// The first line of what it failed with.
    pub(crate) error: Option<String>,
    /// When the service wrote it last, in seconds.
    #[serde(skip)]
    pub(crate) ts: u64,
}

/// A head, as far as lists need it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Row {
    instance_id: String,
    orchestration_name: String,
    orchestration_version: String,
    status: String,
    current_execution_id: u64,
    parent_instance_id: Option<String>,
    custom_status: Option<String>,
    created_at: u64,
    updated_at: u64,
    completed_at: Option<u64>,
    output: Option<String>,
    #[serde(rename = "_ts")]
    ts: u64,
}

impl Listed {
    /// Whether the workflow has ended for good: one that continues as new has not.
    pub(crate) fn has_ended(&self) -> bool {
        ["Completed", "Failed", "Cancelled"].contains(&self.status.as_str())
    }

    fn of(row: Row) -> Self {
        let output = crate::sealed::shown(row.output.unwrap_or_default());
        let error = (row.status == "Failed").then(|| output.lines().next().unwrap_or_default().to_owned());
        Self {
            instance: row.instance_id,
            orchestration: row.orchestration_name,
            version: row.orchestration_version,
            status: shown_status(&row.status, &output).to_owned(),
            execution: row.current_execution_id,
            parent: row.parent_instance_id,
            custom_status: row.custom_status.map(crate::sealed::shown),
            created_at: row.created_at,
            updated_at: row.updated_at,
            completed_at: row.completed_at,
            error,
            ts: row.ts,
        }
    }
}

/// A part of a list.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) rows: Vec<Listed>,
    /// Those that cannot be read may be among those that are meant.
    pub(crate) unreadable: Vec<Value>,
    /// Whether there are more behind them.
    pub(crate) has_more: bool,
    /// Request units spent when the bound was met, before the list was full.
    pub(crate) stopped_at: Option<f64>,
}

impl Listing {
    fn add(&mut self, rows: Vec<Value>) {
        for row in rows {
            match Row::deserialize(&row) {
                Ok(read) => self.rows.push(Listed::of(read)),
                Err(_) => self.unreadable.push(row),
            }
        }
    }

    /// The service knows seconds; within one the provider's milliseconds decide, and the id between equals: without it
    /// an instance could be on two pages, or on none.
    fn latest_first(&mut self) {
        self.rows.sort_by(|a, b| (b.ts, b.updated_at, &a.instance).cmp(&(a.ts, a.updated_at, &b.instance)));
    }
}

/// The first `count` instances in the order in which they moved last, for no more than about `units_max` request units. The
/// service knows seconds; within one its order stays, so that a longer list begins like a shorter one.
pub(crate) async fn latest(
    documents: &Documents,
    wanted: &Wanted,
    count: usize,
    units_max: Option<f64>,
) -> anyhow::Result<Listing> {
    let mut listing = Listing::default();
    let pending = if wanted.has_pending() { pending(documents, wanted).await? } else { Vec::new() };
    let is_read =
        wanted.is_only_pending() || (wanted.is_rare() && all_of_few(documents, wanted, &mut listing).await?);
    if !is_read {
        let began = documents.meter().read().1;
        let mut next: Option<String> = None;
        loop {
            let rows = u32::try_from(count.saturating_sub(listing.rows.len())).unwrap_or(u32::MAX);
            let query = wanted.query(Order::Latest);
            let (rows, more) = documents.page(query, rows.clamp(1, PAGE_MAX), next.as_deref()).await?;
            listing.add(rows);
            next = more;
            listing.has_more = next.is_some();
            if next.is_none() || listing.rows.len() >= count {
                break;
            }
            let spent = documents.meter().read().1 - began;
            if units_max.is_some_and(|most| spent >= most) {
                listing.stopped_at = Some(spent);
                break;
            }
        }
    }
    listing.rows.splice(0..0, pending);
    listing.has_more |= listing.rows.len() > count;
    listing.rows.truncate(count);
    Ok(listing)
}

/// All that are meant if they are few, by the index that leads to them; false if they are not.
async fn all_of_few(documents: &Documents, wanted: &Wanted, listing: &mut Listing) -> anyhow::Result<bool> {
    let (rows, has_more) = documents.up_to(wanted.query(Order::Stored), RARE_MAX).await?;
    if !has_more {
        listing.add(rows);
        listing.latest_first();
    }
    Ok(!has_more)
}

/// All instances that are meant, in no order.
pub(crate) async fn all(documents: &Documents, wanted: &Wanted) -> anyhow::Result<Listing> {
    let mut listing = Listing::default();
    if !wanted.is_only_pending() {
        let (rows, _) = documents.up_to(wanted.query(Order::Stored), u32::MAX).await?;
        listing.add(rows);
    }
    if wanted.has_pending() {
        listing.rows.extend(pending(documents, wanted).await?);
    }
    Ok(listing)
}

/// Starts that no runtime has taken, the latest first.
pub(crate) async fn pending(documents: &Documents, wanted: &Wanted) -> anyhow::Result<Vec<Listed>> {
    let (rows, _) = documents.up_to(Query::new(PENDING), RARE_MAX).await?;
    let mut pending: Vec<Listed> =
        rows.iter().filter_map(starting).filter(|row| wanted.means_pending(row)).collect();
    pending.sort_by(|a, b| (b.updated_at, &a.instance).cmp(&(a.updated_at, &b.instance)));
    Ok(pending)
}

/// The instance that a start will make.
fn starting(row: &Value) -> Option<Listed> {
    let queued = Queued::deserialize(row).ok()?;
    let (_, fields) = queued.item();
    let text = |name: &str| text_of(&fields, name).to_owned();
    Some(Listed {
        orchestration: text("orchestration"),
        version: text("version"),
        status: Status::Pending.name().to_owned(),
        parent: fields.get("parent_instance").and_then(Value::as_str).map(str::to_owned),
        created_at: queued.enqueued_at,
        updated_at: queued.enqueued_at,
        ts: row.get("_ts").and_then(Value::as_u64).unwrap_or(0),
        instance: queued.instance_id,
        ..Listed::default()
    })
}

/// Starts that wait. One for an instance that has begun is no instance of its own: its runtime drops it.
const PENDING: &str = "SELECT c.instanceId, c.workItem, c.enqueuedAt, c.visibleAt, c._ts FROM c \
    WHERE c.type = 'orch_queue' AND STARTSWITH(c.workItem, '{\"StartOrchestration\"')";
/// Heads that only hold a lock are not instances yet. Those of which that cannot be told are.
const BEGUN: &str = "(c.started = true OR (IS_DEFINED(c.started) AND NOT IS_BOOL(c.started)) \
    OR ((NOT IS_DEFINED(c.formatVersion) OR c.formatVersion = 0) \
        AND (c.orchestrationName != '' OR NOT IS_STRING(c.orchestrationName))))";
/// What a row is made of.
pub(crate) const COLUMNS: &str = "c.instanceId, c.orchestrationName, c.orchestrationVersion, c.status, \
    c.currentExecutionId, c.parentInstanceId, c.customStatus, c.createdAt, c.updatedAt, c.completedAt, \
    c.lockedUntil, c._ts, SUBSTRING(c.output, 0, 400) AS output";
const PAGE_MAX: u32 = 1000;
/// So many rows are put in order here; about twenty request units.
const RARE_MAX: u32 = 1000;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(wanted: &Wanted) -> String {
        wanted.query(Order::Latest).text().to_owned()
    }

    #[test]
    fn values_never_become_part_of_the_query() {
        let evil = || Some("x' OR true OR '\"; --".to_owned());
        let wanted = Wanted {
            name: evil(),
            version: evil(),
            prefix: evil(),
            contains: evil(),
            parent: evil(),
            custom_status: evil(),
            error: evil(),
            ..Wanted::default()
        };
        assert!(!text(&wanted).contains("OR true") && !text(&wanted).contains("--"));
    }

    #[test]
    fn several_statuses_are_one_list_for_the_index_and_cancelled_ones_are_sorted_out_of_it() {
        let of = |statuses: &[Status]| text(&Wanted { statuses: statuses.to_vec(), ..Wanted::default() });
        assert!(
            of(&[Status::Running, Status::Failed])
                .contains("WHERE c.status IN ('Failed', 'Running') AND NOT")
        );
        assert!(
            of(&[Status::Cancelled])
                .contains("WHERE c.status = 'Failed' AND (c.status != 'Failed' OR STARTSWITH")
        );
        let both = of(&[Status::Cancelled, Status::Failed]);
        assert!(both.contains("WHERE c.status = 'Failed' AND c.type") && !both.contains(CANCELLED), "{both}");
        assert!(of(&[]).contains("WHERE c.type = 'instance'"));
    }

    #[test]
    fn a_row_tells_cancelled_from_failed_and_why() {
        let listing = |row: Value| {
            let mut listing = Listing::default();
            listing.add(vec![row]);
            listing
        };
        let row = |output: &str| json!({"instanceId": "a", "status": "Failed", "output": output});
        let failed = listing(row("no flour\nat all")).rows.remove(0);
        assert_eq!((failed.status.as_str(), failed.error.as_deref()), ("Failed", Some("no flour")));
        let cancelled = listing(row("canceled: enough")).rows.remove(0);
        assert!(cancelled.status == "Cancelled" && cancelled.has_ended());
        assert_eq!(listing(json!({"instanceId": "a", "createdAt": -1})).unreadable.len(), 1);
    }

    #[test]
    fn instances_that_moved_at_the_same_time_have_one_order() {
        let row = |instance: &str, at: u64| Listed {
            instance: instance.to_owned(),
            updated_at: at,
            ts: at / 1000,
            ..Listed::default()
        };
        let rows = vec![row("c", 1100), row("a", 1100), row("d", 2000), row("b", 1100), row("e", 1200)];
        let mut listing = Listing { rows, ..Listing::default() };
        listing.latest_first();
        let ids: Vec<&str> = listing.rows.iter().map(|row| row.instance.as_str()).collect();
        assert_eq!(ids, ["d", "e", "a", "b", "c"]);
    }
}
