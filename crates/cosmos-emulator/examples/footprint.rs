//! How much memory an account takes whose data is on disk: many documents in many containers.
//!
//! `cargo run --release -p cosmos-emulator --example footprint` writes a million documents into a thousand containers,
//! reads and queries some, opens the folder again, prints the resident memory after each part and fails when it was
//! ever above the limit. `FOOTPRINT_DOCUMENTS`, `FOOTPRINT_CONTAINERS` and `FOOTPRINT_LIMIT_MB` change the numbers.
//! Linux only: elsewhere nothing is measured.

use std::error::Error;
use std::io::Write as _;
use std::time::Instant;

use bytes::Bytes;
use cosmos_emulator::{Auth, Config, Emulator, Fsync};
use http::{Request, StatusCode};
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

/// Reads and queries in every container.
async fn look(emulator: &Emulator, each: u64, containers: u64) -> Outcome<()> {
    for container in 0..containers {
        let path = format!("/dbs/d/colls/{}/docs", name(container));
        let query = json!({"query": "SELECT VALUE COUNT(1) FROM c WHERE c.pk = 'k3'", "parameters": []});
        let headers = [
            ("content-type", "application/query+json"),
            ("x-ms-documentdb-isquery", "True"),
            ("x-ms-documentdb-partitionkey", r#"["k3"]"#),
        ];
        let answer = post(emulator, &path, &query, &headers).await?;
        if answer["Documents"][0].as_u64() != Some(each / KEYS) {
            return Err(format!("container {container} counts {answer}, not {}", each / KEYS).into());
        }
    }
    Ok(())
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
    let mut request = Request::post(path).header("x-ms-version", "2020-07-15").header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = emulator.handle(request.body(Bytes::from(body.to_string()))?).await?;
    let status = answer.status();
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    if status.is_success() || status == StatusCode::MULTI_STATUS {
        return Ok(body);
    }
    Err(format!("{path} answers {status}: {body}").into())
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
