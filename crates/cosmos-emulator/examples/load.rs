//! How many point operations a second one emulator serves over HTTP/1.1, client included, and how much processor time
//! the server takes for each.
//!
//! ```text
//! cargo run --release -p cosmos-emulator --example load -- [connections] [seconds] [folder]
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cosmos_emulator::{Config, Emulator, Fsync};
use cosmos_wire::resource::Link;
use cosmos_wire::signature::{Key, Signable};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let connections: usize = args.next().map_or(Ok(8), |text| text.parse())?;
    let seconds: u64 = args.next().map_or(Ok(3), |text| text.parse())?;
    let begun = Instant::now();
    let config = Config { threads: 2, ..Config::default() };
    let config = match args.next() {
        Some(folder) => config.with_folder(PathBuf::from(folder), Fsync::On),
        None => config,
    };
    let emulator = Emulator::start(config)?;
    let started = begun.elapsed();
    let mut out = std::io::stdout();
    writeln!(out, "started in {:.1} ms", started.as_secs_f64() * 1000.0)?;
    let host = emulator.endpoint().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut setup = Connection::new(&host)?;
    let container =
        json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}}).to_string();
    setup.send(&request(&host, "POST", "/dbs", "", r#"{"id":"d"}"#))?;
    setup.send(&request(&host, "POST", "/dbs/d/colls", "", &container))?;
    let item = |id: &str| {
        json!({
            "id": id, "pk": "k", "number": id.len(), "name": format!("customer {id}"), "status": "open",
            "tags": ["alpha", "beta"], "address": {"city": "Oslo", "street": format!("Street {id}")},
            "text": "x".repeat(560),
        })
        .to_string()
    };
    let key = "x-ms-documentdb-partitionkey: [\"k\"]\r\n";
    setup.send(&request(&host, "POST", "/dbs/d/colls/c/docs", key, &item("a")))?;
    let read = |_: usize, _: u64| request(&host, "GET", "/dbs/d/colls/c/docs/a", key, "");
    let create = |worker: usize, number: u64| {
        request(&host, "POST", "/dbs/d/colls/c/docs", key, &item(&format!("{worker}-{number}")))
    };
    let query = |_: usize, _: u64| {
        let marks = format!("{key}x-ms-documentdb-isquery: True\r\ncontent-type: application/query+json\r\n");
        request(
            &host,
            "POST",
            "/dbs/d/colls/c/docs",
            &marks,
            r#"{"query":"SELECT * FROM c WHERE c.id = 'a'"}"#,
        )
    };
    let span = Duration::from_secs(seconds);
    let reads = measure(&host, connections, span, &read, Reuse::Request)?;
    writeln!(out, "point read   {reads}")?;
    let creates = measure(&host, connections, span, &create, Reuse::Nothing)?;
    writeln!(out, "point create {creates}")?;
    let queries = measure(&host, connections, span, &query, Reuse::Request)?;
    writeln!(out, "point query  {queries}")?;
    Ok(())
}

/// Whether a worker may send the same bytes again, which keeps signing out of the figures.
#[derive(Clone, Copy, PartialEq)]
enum Reuse {
    Request,
    Nothing,
}

fn measure(
    host: &str,
    connections: usize,
    span: Duration,
    make: &(dyn Fn(usize, u64) -> String + Sync),
    reuse: Reuse,
) -> std::io::Result<Measured> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (begun, before) = (Instant::now(), server_time());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..connections)
            .map(|worker| {
                let (done, stop) = (&done, &stop);
                scope.spawn(move || -> std::io::Result<()> {
                    let mut connection = Connection::new(host)?;
                    let mut bytes = make(worker, 0);
                    for number in 1.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        connection.send(&bytes)?;
                        done.fetch_add(1, Ordering::Relaxed);
                        if reuse == Reuse::Nothing {
                            bytes = make(worker, number);
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        while begun.elapsed() < span {
            thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let count = done.load(Ordering::Relaxed) as f64;
    Ok(Measured {
        rate: count / begun.elapsed().as_secs_f64(),
        server_micros: (server_time() - before).as_secs_f64() * 1e6 / count,
    })
}

struct Measured {
    rate: f64,
    server_micros: f64,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>9.0} /s, {:>6.1} us of a processor each in the server", self.rate, self.server_micros)
    }
}

/// Processor time of the server's threads so far; zero where the system does not say.
fn server_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let used = stat.split_whitespace().next()?.parse::<u64>().ok()?;
        name.starts_with("cosmos").then_some(used)
    });
    Duration::from_nanos(nanos.sum())
}

fn request(host: &str, method: &str, path: &str, headers: &str, body: &str) -> String {
    let date = cosmos_wire::date::format(SystemTime::now());
    let link = Link::parse(path).expect("a path");
    let key = Key::from_base64(cosmos_wire::EMULATOR_KEY).expect("the well-known key");
    let token = key.authorization(&Signable::new(method, link.signed_type(), &link.signed_link(), &date));
    format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nx-ms-version: 2020-07-15\r\nx-ms-date: {date}\r\n\
         authorization: {token}\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn new(host: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn send(&mut self, request: &str) -> std::io::Result<()> {
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut line = Vec::with_capacity(256);
        self.0.read_until(b'\n', &mut line)?;
        if !line.starts_with(b"HTTP/1.1 2") {
            return Err(std::io::Error::other(String::from_utf8_lossy(&line).into_owned()));
        }
        let mut length = 0;
        loop {
            line.clear();
            self.0.read_until(b'\n', &mut line)?;
            if line.len() <= 2 {
                break;
            }
            if let Some(value) = line.strip_prefix(b"content-length: ") {
                length = String::from_utf8_lossy(value).trim().parse().map_err(std::io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)
    }
}
