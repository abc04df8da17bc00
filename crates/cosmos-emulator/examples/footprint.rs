//! How much memory an account takes whose data is on disk, and how many of its documents a query reads: many documents
//! in many containers.
//!
//! `cargo run --release -p cosmos-emulator --example footprint` writes a million documents into a thousand containers,
//! queries each of them, opens the folder again, prints the resident memory after each part and fails when it was
//! ever above the limit, or when a query read more than its answer. `FOOTPRINT_DOCUMENTS`,
//! `FOOTPRINT_CONTAINERS` and `FOOTPRINT_LIMIT_MB` change the numbers; with one container all documents are in it.
//! Memory is measured on Linux only.

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cosmos_emulator::{Auth, Config, Emulator, Fsync};
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};

/// Documents of one bulk request.
const BULK: u64 = 100;
/// Logical partitions of a container.
const KEYS: u64 = 10;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let documents = number("FOOTPRINT_DOCUMENTS", 1_000_000)?;
    let containers = number("FOOTPRINT_CONTAINERS", 1_000)?;
    let limit_mb = number("FOOTPRINT_LIMIT_MB", 400)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = tempfile::tempdir()?;
    let config = Config::default().with_auth(Auth::Open).with_folder(folder.path(), Fsync::Off);
    let mut meter = Meter { started: Instant::now(), limit_mb };
    meter.report("started")?;
    let emulator = Emulator::open(config.clone())?;
    runtime.block_on(fill(&emulator, documents, containers, &mut meter))?;
    runtime.block_on(look(&emulator, documents / containers, containers))?;
    meter.report("after reads and queries")?;
    drop(emulator);
    meter.report("closed")?;
    let emulator = Emulator::open(config)?;
    meter.report("opened again")?;
    runtime.block_on(look(&emulator, documents / containers, containers))?;
    meter.report("after reads and queries")
}

async fn fill(emulator: &Emulator, documents: u64, containers: u64, meter: &mut Meter) -> Outcome<()> {
    post(emulator, "/dbs", &json!({"id": "d"}), &[]).await?;
    let key = json!({"paths": ["/pk"], "kind": "Hash", "version": 2});
    for container in 0..containers {
        post(emulator, "/dbs/d/colls", &json!({"id": name(container), "partitionKey": key}), &[]).await?;
    }
    meter.report(&format!("{containers} containers"))?;
    let each = documents / containers;
    for container in 0..containers {
        let path = format!("/dbs/d/colls/{}/docs", name(container));
        for first in (0..each).step_by(usize::try_from(BULK)?) {
            let steps: Vec<Value> = (first..each.min(first + BULK)).map(create).collect();
            let headers = [("x-ms-cosmos-is-batch-request", "True"), ("x-ms-cosmos-batch-atomic", "False")];
            let answer = post(emulator, &path, &Value::Array(steps), &headers).await?;
            let failed =
                answer.as_array().and_then(|steps| steps.iter().find(|step| step["statusCode"] != 201));
            if let Some(step) = failed {
                return Err(format!("a document was not created: {step}").into());
            }
        }
        if (container + 1) % (containers / 10).max(1) == 0 {
            meter.report(&format!("{} documents", each * (container + 1)))?;
        }
    }
    Ok(())
}

/// Queries in every container. Says how long the slowest took, without those that count.
async fn look(emulator: &Emulator, each: u64, containers: u64) -> Outcome<()> {
    let mut slowest = Duration::ZERO;
    for container in 0..containers {
        let path = format!("/dbs/d/colls/{}/docs", name(container));
        let (counted, _) = ask(emulator, &path, "SELECT VALUE COUNT(1) FROM c WHERE c.pk = 'k3'").await?;
        if counted[0].as_u64() != Some(each / KEYS) {
            return Err(format!("container {container} counts {counted}, not {}", each / KEYS).into());
        }
        // In the middle, where a search from either end would read half of the key's documents.
        let middle = each / 2 / KEYS * KEYS + 3;
        for (text, rows) in [
            (format!("SELECT * FROM c WHERE c.number = {middle}"), 1),
            (format!("SELECT * FROM c WHERE c.number IN ({middle}, 3, 4)"), 2),
            (format!("SELECT TOP 5 * FROM c WHERE c.number >= {middle} ORDER BY c.number"), 5),
            ("SELECT TOP 5 * FROM c ORDER BY c.number DESC".to_owned(), 5),
            ("SELECT TOP 5 * FROM c ORDER BY c.city".to_owned(), 5),
            ("SELECT * FROM c WHERE c.number = -1".to_owned(), 0),
        ] {
            let asked = Instant::now();
            let (found, visited) = ask(emulator, &path, &text).await?;
            slowest = slowest.max(asked.elapsed());
            let found = found.as_array().map_or(0, Vec::len);
            if found != rows || visited > rows as u64 + 2 {
                return Err(format!(
                    "{text}: {found} of {rows} rows, for which {visited} documents were read"
                )
                .into());
            }
        }
    }
    let millis = slowest.as_secs_f64() * 1e3;
    writeln!(std::io::stdout(), "the slowest query took {millis:.1} ms")?;
    Ok(())
}

/// One page of a query in one key, and how many documents were read for it.
async fn ask(emulator: &Emulator, path: &str, text: &str) -> Outcome<(Value, u64)> {
    let headers = [
        ("content-type", "application/query+json"),
        ("x-ms-documentdb-isquery", "True"),
        ("x-ms-documentdb-partitionkey", r#"["k3"]"#),
        ("x-ms-documentdb-populatequerymetrics", "True"),
    ];
    let answer = send(emulator, path, &json!({"query": text}), &headers).await?;
    let metrics = answer.headers().get("x-ms-documentdb-query-metrics").ok_or("an answer without metrics")?;
    let visited =
        metrics.to_str()?.split(';').find_map(|metric| metric.strip_prefix("retrievedDocumentCount="));
    let mut body: Value = serde_json::from_slice(answer.body())?;
    Ok((body["Documents"].take(), visited.ok_or("metrics without a count of documents")?.parse()?))
}

fn name(container: u64) -> String {
    format!("c{container}")
}

fn create(number: u64) -> Value {
    let key = format!("k{}", number % KEYS);
    let body = json!({
        "id": number.to_string(),
        "pk": key,
        "city": format!("city {}", number % 4),
        "number": number,
        "text": "a document of some two hundred bytes, as many of them are: a little text and a few numbers",
    });
    json!({"operationType": "Create", "partitionKey": json!([key]).to_string(), "resourceBody": body})
}

async fn post(emulator: &Emulator, path: &str, body: &Value, headers: &[(&str, &str)]) -> Outcome<Value> {
    let answer = send(emulator, path, body, headers).await?;
    Ok(serde_json::from_slice(answer.body()).unwrap_or_default())
}

async fn send(
    emulator: &Emulator,
    path: &str,
    body: &Value,
    headers: &[(&str, &str)],
) -> Outcome<Response<Bytes>> {
    let mut request = Request::post(path).header("x-ms-version", "2020-07-15").header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = emulator.handle(request.body(Bytes::from(body.to_string()))?).await?;
    let status = answer.status();
    if status.is_success() || status == StatusCode::MULTI_STATUS {
        return Ok(answer);
    }
    Err(format!("{path} answers {status}: {}", String::from_utf8_lossy(answer.body())).into())
}

fn number(name: &str, default: u64) -> Outcome<u64> {
    match std::env::var(name) {
        Ok(text) => Ok(text.parse().map_err(|_| format!("{name} must be a number, not {text:?}"))?),
        Err(_) => Ok(default),
    }
}

/// Watches the memory of this process.
struct Meter {
    started: Instant,
    limit_mb: u64,
}

impl Meter {
    fn report(&mut self, what: &str) -> Outcome<()> {
        let Some(resident) = resident_mb() else { return Ok(()) };
        let seconds = self.started.elapsed().as_secs_f64();
        writeln!(std::io::stdout(), "{seconds:7.1} s {resident:5} MB {what}")?;
        if resident > self.limit_mb {
            return Err(format!("{resident} MB are more than {} MB ({what})", self.limit_mb).into());
        }
        Ok(())
    }
}

fn resident_mb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes / 1024)
}
