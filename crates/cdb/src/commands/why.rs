//! `cdb why ID`: why an instance does not move.

use clap::Args;
use cosmos_driver::Query;
use duroxide::Event;
use duroxide::providers::Provider as _;
use duroxide_cdb::is_reserved;
use serde::Deserialize;
use serde_json::json;

use crate::context::{Connection, ConnectionArgs};
use crate::diagnosis::{Evidence, Finding, Level, diagnose, unreadable};
use crate::documents::Documents;
use crate::ending::{Cause, Failure, failure, failure_in};
use crate::exit::Problem;
use crate::fleet::Fleet;
use crate::model::{Partition, Queued, kind};
use crate::output::{Output, line};
use crate::timeline::{self, SpanKind};

/// Say why an instance is not moving.
///
/// Looks at what it waits for, who holds its lock and until when, who looks after its part of the container, attempts,
/// messages on their way, sessions, children and dead letters; for one that failed, at what failed and where that began.
/// The exit code is 8 if it looks stuck or has failed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  cdb why bakery-1-approve --data cdb-demo\n  cdb why order-17 --json")]
pub(crate) struct WhyArgs {
    /// Instance id.
    id: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Explains.
pub(crate) async fn run(args: &WhyArgs) -> anyhow::Result<()> {
    let evidence =
        Connection::during(&args.connection, async |connection| Box::pin(gather(connection, &args.id)).await)
            .await?;
    let (level, findings) = answer(&evidence);
    let output = Output::new(args.json);
    let style = output.style;
    if output.is_json() {
        output.json(&json!({"instance": args.id, "level": level, "findings": findings}))?;
    } else {
        let verdict = match level {
            Level::Fine => style.good("nothing is wrong"),
            Level::Waiting => style.busy("it waits"),
            Level::Stuck => style.bad("it looks stuck"),
            Level::Failed => style.bad("it failed"),
        };
        output.line(line![style.bold(&args.id), ": ", verdict])?;
        for finding in &findings {
            let mark = match finding.level {
                Level::Fine => style.good("✔"),
                Level::Waiting => style.busy("◔"),
                Level::Stuck | Level::Failed => style.bad("✘"),
            };
            output.line(line![mark, " ", &finding.text])?;
            if let Some(advice) = &finding.advice {
                output.line(line!["  ", style.dim(advice)])?;
            }
        }
    }
    match level {
        Level::Fine | Level::Waiting => Ok(()),
        Level::Stuck => Err(Problem::Found(format!("{:?} looks stuck", args.id)).into()),
        Level::Failed => Err(Problem::Found(format!("{:?} has failed", args.id)).into()),
    }
}

/// The worst of the sentences, and all of them.
pub(crate) fn answer(evidence: &Evidence) -> (Level, Vec<Finding>) {
    let mut findings = unreadable(&evidence.instance, &evidence.partition);
    findings.extend(diagnose(evidence));
    let level = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Fine);
    (level, findings)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Session {
    session_id: String,
    owner_id: String,
    locked_until: u64,
}

async fn gather(connection: &Connection, id: &str) -> anyhow::Result<Evidence> {
    let documents = connection.documents()?;
    let partition = Partition::new(documents.partition(id).await?);
    let provider = connection.provider().await?;
    let history = provider.read(id).await.map_err(|error| error.to_string());
    evidence(&documents, id, partition, history).await
}

/// What there is to know of an instance whose partition and current history have been read.
pub(crate) async fn evidence(
    documents: &Documents,
    id: &str,
    partition: Partition,
    history: Result<Vec<Event>, String>,
) -> anyhow::Result<Evidence> {
    let to_it = |text: &'static str| Query::new(text).with("@id", id);
    let arriving = documents.query_all(to_it(ARRIVING)).await?;
    let dead_letters = documents.query_all(to_it(DEAD_LETTERS)).await?;
    if (partition.is_empty() && arriving.is_empty() && dead_letters.is_empty()) || is_reserved(id) {
        return Err(Problem::no_instance(id).into());
    }
    let mut children = Vec::new();
    for span in history.iter().flat_map(|events| timeline::open(id, events)) {
        if span.kind == SpanKind::Child {
            let head = Partition::new(documents.partition(&span.name).await?).head();
            children.push((span.name, head.filter(|head| head.is_visible()).map(|head| head.status)));
        }
    }
    let mut wanted: Vec<String> =
        partition.of::<Queued>(kind::WORK).into_iter().filter_map(|work| work.session_id).collect();
    wanted.dedup();
    let sessions: Vec<Session> = if wanted.is_empty() {
        Vec::new()
    } else {
        documents.query_all(Query::new(SESSIONS).with("@wanted", wanted)).await?
    };
    let has_ended = partition.head().is_some_and(|head| head.has_ended());
    let fleet = if has_ended { None } else { Some(Fleet::read(documents).await?) };
    let failures = match history.as_ref().ok().and_then(|events| failure(id, events)) {
        Some(first) => trace(documents, first).await?,
        None => Vec::new(),
    };
    Ok(Evidence {
        instance: id.to_owned(),
        partition,
        history,
        arriving,
        dead_letters,
        children,
        sessions: sessions
            .into_iter()
            .map(|session| (session.session_id, session.owner_id, session.locked_until))
            .collect(),
        failures,
        fleet,
        now_ms: documents.now_ms(),
    })
}

/// A failure, and the failures of the children that it came from.
async fn trace(documents: &Documents, first: Failure) -> anyhow::Result<Vec<Failure>> {
    let mut failures = vec![first];
    while let Some(Failure { cause: Cause::Child { instance, .. }, .. }) = failures.last()
        && failures.len() < GENERATIONS_MAX
    {
        let partition = Partition::new(documents.partition(instance).await?);
        let Some(next) = failure_in(instance, &partition) else { break };
        failures.push(next);
    }
    Ok(failures)
}

/// A failure is followed through so many generations.
const GENERATIONS_MAX: usize = 16;

const ARRIVING: &str = "SELECT * FROM c WHERE c.type = 'outbox_intent' AND c.targetInstanceId = @id";
const DEAD_LETTERS: &str =
    "SELECT * FROM c WHERE c.type = 'dead_letter' AND (c.instanceId = @id OR c.targetInstanceId = @id)";
const SESSIONS: &str = "SELECT c.sessionId, c.ownerId, c.lockedUntil FROM c \
    WHERE c.type = 'session' AND ARRAY_CONTAINS(@wanted, c.sessionId)";
