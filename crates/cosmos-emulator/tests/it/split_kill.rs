//! A server process killed with SIGKILL in the middle of a split and of a merge, in every phase.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;

use cosmos_emulator::{Auth, Config, Emulator, Fsync};
use serde_json::{Value, json};

use crate::again::{Again, say};
use crate::client::{Answer, Client};
use crate::management::Manager;

const FOLDER: &str = "SPLIT_KILL_FOLDER";
const DOCS: &str = "/dbs/d/colls/c/docs";
const PARTITIONS: &str = "/databases/d/containers/c/partitions";
const RANGE: &str = "x-ms-documentdb-partitionkeyrangeid";
/// Items before the first page is read.
const ITEMS: usize = 300;

/// When the process is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    Preparing,
    Swapping,
    /// After it was told to finish, and so many other requests.
    Finishing(usize),
}

const MOMENTS: [Moment; 5] =
    [Moment::Preparing, Moment::Swapping, Moment::Finishing(0), Moment::Finishing(3), Moment::Finishing(30)];

#[test]
fn a_split_goes_on_after_the_process_was_killed_in_any_phase() {
    if let Some(folder) = env::var_os(FOLDER) {
        return serve_until_killed(Path::new(&folder));
    }
    for moment in MOMENTS {
        journey(moment, &[], |manager| {
            let body = json!({"mode": "midpoint", "progressionMode": "manual"});
            manager.post(&format!("{PARTITIONS}/0/split"), &body).expect(202)
        });
    }
}

#[test]
fn a_merge_goes_on_after_the_process_was_killed_in_any_phase() {
    for moment in MOMENTS {
        journey(moment, &["0"], |manager| {
            let body = json!({"partitionIds": [1, 2], "progressionMode": "manual"});
            manager.post(&format!("{PARTITIONS}/merge"), &body).expect(202)
        });
    }
}

/// The server of a test: this program again, as a process of its own.
struct Server {
    process: Again,
    client: Client,
    manager: Manager,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let test = "split_kill::a_split_goes_on_after_the_process_was_killed_in_any_phase";
        let mut process = Again::start(test, FOLDER, folder);
        let ready = process.lines().find_map(|line| line.strip_prefix("ready ").map(str::to_owned));
        let ready = ready.expect("it starts");
        let (endpoint, management) = ready.split_once(' ').unwrap();
        let client = Client::at(endpoint, cosmos_wire::EMULATOR_KEY);
        Self { process, client, manager: Manager::at(management) }
    }

    fn kill(mut self) {
        self.process.kill();
    }

    fn ranges(&mut self, etag: Option<&str>) -> Answer {
        let request = self.client.get("/dbs/d/colls/c/pkranges").header("a-im", "Incremental Feed");
        request.header("if-none-match", etag.unwrap_or_default()).send()
    }

    fn range_ids(&mut self) -> Vec<String> {
        let list = self.ranges(None).expect(200).json()["PartitionKeyRanges"].take();
        list.as_array().unwrap().iter().map(|range| range["id"].as_str().unwrap().to_owned()).collect()
    }

    fn changes(&mut self, range: &str, etag: &str) -> Answer {
        let request = self.client.get(DOCS).header("a-im", "Incremental Feed").header(RANGE, range);
        request.header("x-ms-max-item-count", "1000").header("if-none-match", etag).send()
    }

    /// One page of all items, range by range.
    fn page(&mut self, continuation: &str) -> Answer {
        let question = json!({"query": "SELECT * FROM c"});
        let request = self.client.question(&question).header("x-ms-max-item-count", "40");
        request.header("x-ms-continuation", continuation).send().expect(200)
    }

    fn create(&mut self, id: &str) -> Answer {
        self.client.create(&json!({"id": id, "pk": format!("p{id}"), "n": id.len()}))
    }

    fn read(&mut self, id: &str) -> Answer {
        self.client.get(&format!("{DOCS}/{id}")).key(&format!("p{id}")).send()
    }

    fn phase(&mut self, operation: &str) -> String {
        let shown = self.manager.get(&format!("/operations/{operation}")).expect(200).json();
        shown["phase"].as_str().unwrap().to_owned()
    }

    fn advance(&mut self, operation: &str) {
        self.manager.post(&format!("/operations/{operation}/advance"), &json!({}));
    }
}

fn serve_until_killed(folder: &Path) {
    let config = Config::default().with_folder(folder, Fsync::On).with_auth(Auth::Open).with_management();
    let emulator = Emulator::start(config).unwrap();
    let management = emulator.management_endpoint().unwrap();
    say(&format!("\nready {} {management}", emulator.endpoint()));
    loop {
        std::thread::park();
    }
}

fn ids(answer: &Answer) -> Vec<String> {
    let rows = answer.json()["Documents"].as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

/// Fills a container, begins to read it in three ways, begins an operation, is killed, and ends all of them.
fn journey(moment: Moment, split_first: &[&str], begin: impl Fn(&mut Manager) -> Answer) {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path());
    server.client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    server.client.post("/dbs/d/colls", &body).send().expect(201);
    for id in 0..ITEMS {
        server.create(&format!("{id:03}")).expect(201);
    }
    for range in split_first {
        server.manager.post(&format!("{PARTITIONS}/{range}/split"), &json!({})).expect(202);
    }
    let parents = server.range_ids();
    let known = server.ranges(None).expect(200).header("etag").to_owned();
    let places: Vec<_> =
        parents.iter().map(|id| (id.clone(), server.changes(id, "").header("etag").to_owned())).collect();
    let first = server.page("");
    let mut written: BTreeSet<String> = (0..ITEMS).map(|id| format!("{id:03}")).collect();
    let mut late = BTreeSet::new();
    for id in ["late1", "late2", "late3", "late4"] {
        server.create(id).expect(201);
        late.insert(id.to_owned());
    }
    let operation = begin(&mut server.manager).json()["operationId"].as_str().unwrap().to_owned();
    if moment != Moment::Preparing {
        server.advance(&operation);
    }
    if let Moment::Finishing(requests) = moment {
        let asked = server.manager.post_only(&format!("/operations/{operation}/advance"), &json!({}));
        (0..requests).for_each(|id| drop(server.read(&format!("{id:03}"))));
        drop(asked);
    }
    server.kill();

    let mut server = Server::start(folder.path());
    let phase = server.phase(&operation);
    let read = server.read("001").status();
    match phase.as_str() {
        "Preparing" => {
            assert_eq!((moment, read), (Moment::Preparing, (200, 0)));
            server.create("during").expect(201);
            late.insert("during".to_owned());
        }
        "Swapping" => {
            assert_ne!(moment, Moment::Preparing);
            assert_eq!(read, (410, 1007));
            assert_eq!(server.ranges(Some(&known)).status, 304, "the parents are still the ones");
        }
        _ => assert!(matches!(moment, Moment::Finishing(_)), "{moment:?}: {phase}"),
    }
    while server.phase(&operation) != "Succeeded" {
        server.advance(&operation);
    }
    server.kill();

    let mut server = Server::start(folder.path());
    assert_eq!(server.phase(&operation), "Succeeded");
    written.extend(late.iter().cloned());
    check_ranges(&mut server, &parents, &known);
    check_items(&mut server, &written);
    check_feed(&mut server, &places, (&late, &written));
    check_pages(&mut server, &first, &written, &late);
    server.create("after").expect(201);
}

/// Who knew the old ranges is told of the new ones, and that the old ones are gone.
fn check_ranges(server: &mut Server, parents: &[String], known: &str) {
    let news = server.ranges(Some(known)).expect(200).json();
    for range in news["PartitionKeyRanges"].as_array().unwrap() {
        let named = range["parents"].as_array().unwrap();
        assert!(parents.iter().all(|parent| named.contains(&Value::from(parent.as_str()))), "{range}");
    }
    for parent in parents {
        assert_eq!(server.changes(parent, "").status(), (410, 1002));
    }
}

fn check_items(server: &mut Server, written: &BTreeSet<String>) {
    for id in written {
        assert_eq!(server.read(id).expect(200).json()["n"], id.len(), "{id}");
    }
}

/// What came after the parents' places comes once in the children, and everything does from the beginning.
fn check_feed(
    server: &mut Server,
    places: &[(String, String)],
    (late, written): (&BTreeSet<String>, &BTreeSet<String>),
) {
    let (mut all, mut news) = (Vec::new(), Vec::new());
    // A merged partition goes on from the earliest of its parents' places: an LSN is of one of them.
    let place = places.iter().map(|(_, etag)| etag).min_by_key(|etag| (etag.len(), (*etag).clone())).unwrap();
    for range in server.range_ids() {
        all.extend(ids(&server.changes(&range, "")));
        news.extend(ids(&server.changes(&range, place)));
    }
    let count = all.len();
    assert_eq!(count, written.len(), "each change comes once");
    assert_eq!(&all.into_iter().collect::<BTreeSet<_>>(), written);
    let news: BTreeSet<_> = news.into_iter().collect();
    assert!(news.is_superset(late), "{news:?}");
    if places.len() == 1 {
        assert_eq!(&news, late);
    }
}

/// A query that was begun before goes on to its end, and brings each item once.
fn check_pages(server: &mut Server, first: &Answer, written: &BTreeSet<String>, late: &BTreeSet<String>) {
    let mut seen = ids(first);
    let mut continuation = first.header("x-ms-continuation").to_owned();
    while !continuation.is_empty() {
        let page = server.page(&continuation);
        seen.extend(ids(&page));
        continuation = page.header("x-ms-continuation").to_owned();
    }
    let count = seen.len();
    let seen: BTreeSet<_> = seen.into_iter().collect();
    assert_eq!(seen.len(), count, "no item comes twice");
    // What was written behind the reader's back may come or not.
    assert_eq!(written.difference(&seen).filter(|id| !late.contains(*id)).count(), 0);
}
