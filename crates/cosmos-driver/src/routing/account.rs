//! The account's regions as routes, and which of them are avoided.

use std::sync::Arc;

use serde::Deserialize;
use tokio::time::Instant;

use super::Endpoint;
use super::gateway2::Gateway2;
use crate::config::{Regions, Requirements};
use crate::error::Error;
use crate::options::Consistency;
use crate::transport::Address;

/// The account document, as far as routing needs it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AccountDocument {
    writable_locations: Vec<Location>,
    readable_locations: Vec<Location>,
    enable_multiple_write_locations: bool,
    disable_cross_regional_hedging: bool,
    enable_per_partition_failover_behavior: bool,
    thin_client_readable_locations: Vec<Location>,
    thin_client_writable_locations: Vec<Location>,
    user_consistency_policy: ConsistencyPolicy,
    id: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    name: String,
    database_account_endpoint: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConsistencyPolicy {
    default_consistency_level: String,
}

impl Default for ConsistencyPolicy {
    fn default() -> Self {
        Self { default_consistency_level: "Session".to_owned() }
    }
}

/// What sort of place a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    Read,
    Write,
    /// A write to one partition.
    PartitionWrite,
}

/// Where reads and writes can go, best first.
#[derive(Clone, Debug)]
pub(crate) struct AccountRoutes {
    pub(crate) reads: Vec<Arc<Endpoint>>,
    pub(crate) writes: Vec<Arc<Endpoint>>,
    /// Where writes of one partition can go: as `writes`, and after those, where partitions fail over on their own, the
    /// regions that serve reads. One that has not taken a partition over refuses its writes.
    partition_writes: Vec<Arc<Endpoint>>,
    /// The endpoint the caller named.
    pub(crate) default: Arc<Endpoint>,
    pub(crate) is_multi_write: bool,
    /// What the account promises to reads; none if this driver does not know the level.
    pub(crate) consistency: Option<Consistency>,
    pub(crate) is_hedging_disabled: bool,
    pub(crate) gateway2: Gateway2,
    unavailable: Vec<(Address, Instant)>,
}

impl AccountRoutes {
    /// Before the account is known: everything goes to the endpoint the caller named.
    pub(crate) fn bootstrap(default: Arc<Endpoint>) -> Self {
        Self {
            reads: vec![default.clone()],
            writes: vec![default.clone()],
            partition_writes: vec![default.clone()],
            default,
            is_multi_write: false,
            consistency: Some(Consistency::Session),
            is_hedging_disabled: false,
            gateway2: Gateway2::default(),
            unavailable: Vec::new(),
        }
    }

    pub(crate) fn build(
        document: &AccountDocument,
        regions: &Regions,
        default: Arc<Endpoint>,
    ) -> Result<Self, Error> {
        let mut writes = endpoints(&document.writable_locations, &default.address, regions)?;
        let mut reads = endpoints(&document.readable_locations, &default.address, regions)?;
        if writes.is_empty() && reads.is_empty() {
            return Err(Error::protocol(no_region(document, &default.address)));
        }
        if reads.is_empty() {
            reads.clone_from(&writes);
        }
        let is_multi_write = document.enable_multiple_write_locations && writes.len() > 1;
        let preferred = |endpoint: &Arc<Endpoint>| {
            regions
                .preferred
                .iter()
                .position(|name| same_region(name, &endpoint.region))
                .unwrap_or(usize::MAX)
        };
        reads.sort_by_key(preferred);
        if is_multi_write {
            writes.sort_by_key(preferred);
        }
        if writes.is_empty() {
            writes.push(default.clone());
        }
        let mut partition_writes = writes.clone();
        if document.enable_per_partition_failover_behavior && !is_multi_write {
            let others = reads.iter().filter(|read| writes.iter().all(|write| write.address != read.address));
            partition_writes.extend(others.cloned());
        }
        let gateway2 = gateway2(document, &default.address, regions, &reads, &writes);
        Ok(Self {
            reads,
            writes,
            partition_writes,
            default,
            is_multi_write,
            consistency: Consistency::parse(&document.user_consistency_policy.default_consistency_level),
            is_hedging_disabled: document.disable_cross_regional_hedging,
            gateway2,
            unavailable: Vec::new(),
        })
    }

    /// Why the account does not promise what is required, and what to change; none if it does.
    pub(crate) fn unmet(&self, requirements: Requirements) -> Option<String> {
        if requirements.single_write && self.is_multi_write {
            let names: Vec<&str> = self.writes.iter().map(|endpoint| &*endpoint.region).collect();
            return Some(format!(
                "the account takes writes in several regions ({}), so two processes could each commit a change of the \
                 same item: turn multi-region writes off",
                names.join(", ")
            ));
        }
        if !requirements.session_reads {
            return None;
        }
        match self.consistency {
            Some(Consistency::Strong | Consistency::BoundedStaleness | Consistency::Session) => None,
            Some(weak @ (Consistency::ConsistentPrefix | Consistency::Eventual)) => Some(format!(
                "the account's default consistency is {}, so a process may not see what it has written, and requests \
                 cannot ask for more: set it to Session, BoundedStaleness or Strong",
                weak.as_str()
            )),
            None => Some(
                "the account's default consistency is none that this version knows: set it to Session, \
                 BoundedStaleness or Strong"
                    .to_owned(),
            ),
        }
    }

    /// The level that reads of items ask for, where they have to see what was written before. It is said even where it
    /// is the account's own: if that is lowered, the service refuses such reads before this driver has noticed.
    pub(crate) fn level_asked(&self, requirements: Requirements) -> Option<Consistency> {
        let is_strong = self.consistency == Some(Consistency::Strong);
        requirements.session_reads.then_some(if is_strong {
            Consistency::Strong
        } else {
            Consistency::Session
        })
    }

    pub(crate) fn candidates(&self, traffic: Traffic) -> &[Arc<Endpoint>] {
        match traffic {
            Traffic::Read => &self.reads,
            Traffic::Write => &self.writes,
            Traffic::PartitionWrite => &self.partition_writes,
        }
    }

    /// Whether a partition can have another write region than the account.
    pub(crate) fn has_partition_failover(&self) -> bool {
        self.partition_writes.len() > self.writes.len()
    }

    pub(crate) fn is_unavailable(&self, address: &Address) -> bool {
        self.unavailable.iter().any(|(marked, _)| marked == address)
    }

    /// Endpoints whose time is over and that want a probe before traffic returns.
    pub(crate) fn due_for_probe(&self, now: Instant) -> Vec<Address> {
        self.unavailable
            .iter()
            .filter(|(_, until)| *until <= now)
            .map(|(address, _)| address.clone())
            .collect()
    }

    pub(crate) fn marking_unavailable(&self, address: &Address, until: Instant) -> Self {
        let mut next = self.marking_available(address);
        next.unavailable.push((address.clone(), until));
        next
    }

    pub(crate) fn marking_available(&self, address: &Address) -> Self {
        let mut next = self.clone();
        next.unavailable.retain(|(marked, _)| marked != address);
        next
    }

    pub(crate) fn keeping_marks_of(mut self, old: &Self) -> Self {
        let known = |address: &Address| self.reads.iter().chain(&self.writes).any(|e| e.address == *address);
        let kept = old.unavailable.iter().filter(|(address, _)| known(address)).cloned().collect();
        self.unavailable = kept;
        self.gateway2.keep_marks_of(&old.gateway2);
        self
    }
}

/// The regions that may be asked, given the endpoint the caller named. Others are left out.
fn endpoints(
    locations: &[Location],
    named: &Address,
    regions: &Regions,
) -> Result<Vec<Arc<Endpoint>>, Error> {
    let mut endpoints = Vec::with_capacity(locations.len());
    for location in locations {
        let address = Address::parse(&location.database_account_endpoint)?;
        match refusal(&address, named, &regions.trusted_domains) {
            None => endpoints.push(Arc::new(Endpoint { region: Arc::from(location.name.as_str()), address })),
            Some(why) => {
                tracing::warn!(
                    region = location.name,
                    endpoint = %address,
                    account = %named,
                    "the account names a region that is not used: {why}"
                );
            }
        }
    }
    Ok(endpoints)
}

/// The endpoints of Gateway 2.0 that may be asked. One that may not, or that is none, is as good as not there: its region
/// has another.
fn gateway2(
    document: &AccountDocument,
    named: &Address,
    regions: &Regions,
    reads: &[Arc<Endpoint>],
    writes: &[Arc<Endpoint>],
) -> Gateway2 {
    let lists = [
        (&document.thin_client_writable_locations, Traffic::Write, writes),
        (&document.thin_client_readable_locations, Traffic::Read, reads),
    ];
    let mut announced: Vec<String> = Vec::new();
    for location in lists.iter().flat_map(|(locations, ..)| locations.iter()) {
        if !announced.contains(&location.database_account_endpoint) {
            announced.push(location.database_account_endpoint.clone());
        }
    }
    let mut gateway2 = Gateway2::new(&document.id, announced);
    for (locations, traffic, endpoints) in lists {
        for location in locations {
            let address =
                Address::parse(&location.database_account_endpoint).map_err(|error| error.to_string());
            let why = match &address {
                Ok(address) => refusal(address, named, &regions.trusted_domains).map(str::to_owned),
                Err(error) => Some(error.clone()),
            };
            match (address, why) {
                (Ok(address), None) => gateway2.add(&location.name, &address, traffic, endpoints),
                (_, why) => tracing::warn!(
                    region = location.name,
                    "an endpoint of Gateway 2.0 is not used: {}",
                    why.unwrap_or_default()
                ),
            }
        }
    }
    gateway2
}

/// Why signed requests and tokens are not sent to an endpoint that an account document names. Pure.
///
/// In clear they travel only where the caller chose so: to an endpoint named with http, on its host or on this machine.
/// With https they go where the account is: to its host, or to a host beside it in the same domain, or on this machine if
/// the account is; whatever else a document names must be trusted by the caller.
fn refusal(address: &Address, named: &Address, trusted: &[String]) -> Option<&'static str> {
    let is_local = address.is_loopback() && named.is_loopback();
    let is_same_host = address.host().eq_ignore_ascii_case(named.host());
    if !address.is_tls() {
        let is_chosen = !named.is_tls() && (address.is_loopback() || is_same_host);
        return (!is_chosen).then_some("without https, signatures and tokens would travel in clear");
    }
    let is_near = is_local || is_same_host || are_neighbours(address.host(), named.host());
    let is_trusted = || trusted.iter().any(|domain| is_in_domain(address.host(), domain));
    (!is_near && !is_trusted())
        .then_some("its host is not in the account's domain; regions.trusted_domains can allow it")
}

/// Whether two hosts have the same domain, one that has a dot itself: `a.documents.azure.com`, not `a.com`.
fn are_neighbours(left: &str, right: &str) -> bool {
    let domain = |host: &str| {
        let is_name = host.parse::<std::net::IpAddr>().is_err();
        let (_, domain) = host.split_once('.').filter(|(_, domain)| is_name && domain.contains('.'))?;
        Some(domain.to_ascii_lowercase())
    };
    domain(left).is_some() && domain(left) == domain(right)
}

fn is_in_domain(host: &str, domain: &str) -> bool {
    let (host, domain) = (host.to_ascii_lowercase(), domain.trim_start_matches('.').to_ascii_lowercase());
    !domain.is_empty()
        && host.strip_suffix(&domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn no_region(document: &AccountDocument, named: &Address) -> String {
    let refused = document.writable_locations.iter().chain(&document.readable_locations).next();
    let Some(location) = refused else {
        return "the account document names no region; it was not taken".to_owned();
    };
    let why = Address::parse(&location.database_account_endpoint)
        .ok()
        .and_then(|address| refusal(&address, named, &[]))
        .unwrap_or("it cannot be used");
    format!(
        "the account document names no region that may be asked, such as {} at {}: {why}",
        location.name, location.database_account_endpoint
    )
}

/// Region names are written with and without spaces, in any case.
pub(crate) fn same_region(left: &str, right: &str) -> bool {
    let plain = |name: &'_ str| {
        name.chars().filter(|c| *c != ' ').map(|c| c.to_ascii_lowercase()).collect::<String>()
    };
    left == right || plain(left) == plain(right)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;

    pub(crate) fn endpoint(region: &str) -> Arc<Endpoint> {
        let host = region.to_ascii_lowercase().replace(' ', "");
        let address = Address::parse(&format!("https://acct-{host}.db.example:443/")).expect("valid");
        Arc::new(Endpoint { region: region.into(), address })
    }

    pub(crate) fn routes(reads: &[&str], writes: &[&str], multi: bool, regions: &Regions) -> AccountRoutes {
        let locations = |names: &[&str]| {
            names
                .iter()
                .map(|name| Location {
                    name: (*name).to_owned(),
                    database_account_endpoint: format!("{}/", endpoint(name).address),
                })
                .collect()
        };
        let document = AccountDocument {
            writable_locations: locations(writes),
            readable_locations: locations(reads),
            enable_multiple_write_locations: multi,
            ..AccountDocument::default()
        };
        AccountRoutes::build(&document, regions, endpoint("global")).expect("has regions")
    }

    fn names(endpoints: &[Arc<Endpoint>]) -> Vec<&str> {
        endpoints.iter().map(|endpoint| &*endpoint.region).collect()
    }

    #[test]
    fn preferred_regions_come_first_for_reads_and_for_multi_write() {
        let regions =
            Regions { preferred: vec!["westus".into(), "North Europe".into()], ..Regions::default() };
        let single = routes(&["East US", "North Europe", "West US"], &["East US"], false, &regions);
        assert_eq!(names(&single.reads), ["West US", "North Europe", "East US"]);
        assert_eq!(names(&single.writes), ["East US"]);
        let multi = routes(&["East US", "West US"], &["East US", "West US"], true, &regions);
        assert_eq!(names(&multi.writes), ["West US", "East US"]);
        assert!(multi.is_multi_write);
    }

    #[test]
    fn writes_of_a_partition_have_other_places_only_where_partitions_fail_over() {
        let of = |flag: bool, multi: bool| {
            let location = |name: &str| serde_json::json!({ "name": name, "databaseAccountEndpoint": format!("https://{name}.db.example/") });
            let writable = if multi { vec![location("b"), location("a")] } else { vec![location("b")] };
            let document = serde_json::json!({
                "writableLocations": writable,
                "readableLocations": [location("a"), location("b"), location("c")],
                "enableMultipleWriteLocations": multi,
                "enablePerPartitionFailoverBehavior": flag,
            });
            let document = serde_json::from_value(document).expect("an account");
            AccountRoutes::build(&document, &Regions::default(), endpoint("global")).expect("has regions")
        };
        let places = |routes: &AccountRoutes| names(routes.candidates(Traffic::PartitionWrite)).join(" ");
        assert_eq!(places(&of(true, false)), "b a c", "the account's write region first");
        assert_eq!(
            names(of(true, false).candidates(Traffic::Write)),
            ["b"],
            "containers are written there only"
        );
        assert_eq!(places(&of(false, false)), "b");
        assert_eq!(places(&of(true, true)), "b a", "several regions write anyway");
        assert!(of(true, false).has_partition_failover() && !of(true, true).has_partition_failover());
    }

    #[test]
    fn an_account_without_regions_is_not_taken() {
        let empty = AccountDocument::default();
        assert!(AccountRoutes::build(&empty, &Regions::default(), endpoint("global")).is_err());
    }

    #[test]
    fn signed_requests_go_to_the_account_and_not_in_clear() {
        // region, endpoint the caller named, whether it may be asked
        let cases = [
            ("https://acct-west.documents.example/", "https://acct.documents.example/", true),
            ("https://ACCT-west.Documents.example/", "https://acct.documents.example/", true),
            ("https://elsewhere.example/", "https://acct.documents.example/", false),
            ("https://evil.example/", "https://acct.example/", false),
            ("https://acct.example:444/", "https://acct.example/", true),
            ("https://10.0.0.2/", "https://10.0.0.1/", false),
            ("https://acct.inner.trusted.example/", "https://acct.documents.example/", true),
            ("https://nottrusted.example/", "https://acct.documents.example/", false),
            ("http://acct.example/", "https://acct.example/", false),
            ("http://127.0.0.1:8081/", "https://acct.example/", false),
            ("http://localhost:8082/", "https://localhost:8081/", false),
            ("https://127.0.0.1:8082/", "https://localhost:8081/", true),
            ("http://127.0.0.1:8082/", "http://localhost:8081/", true),
            ("http://emulator:8082/", "http://emulator:8081/", true),
            ("http://elsewhere.example/", "http://localhost:8081/", false),
            ("https://elsewhere.example/", "http://localhost:8081/", false),
        ];
        let trusted = ["trusted.example".to_owned()];
        for (region, named, expected) in cases {
            let [address, named] = [region, named].map(|url| Address::parse(url).expect(url));
            assert_eq!(refusal(&address, &named, &trusted).is_none(), expected, "{address} named by {named}");
        }
    }

    #[test]
    fn gateway_two_locations_are_noticed() {
        let document = serde_json::json!({
            "writableLocations": [{ "name": "East US", "databaseAccountEndpoint": "https://a.db.example/" }],
            "thinClientReadableLocations": [{ "name": "East US", "databaseAccountEndpoint": "https://a.example:10250/" }],
        });
        let document: AccountDocument = serde_json::from_value(document).expect("an account");
        let routes =
            AccountRoutes::build(&document, &Regions::default(), endpoint("global")).expect("has regions");
        assert_eq!(routes.gateway2.announced, ["https://a.example:10250/"]);
        assert_eq!(routes.gateway2.due(Instant::now()), [], "it is not in the account's domain");
        assert_eq!(routes.reads, routes.writes, "without a list of its own, reads go where writes go");
    }

    #[test]
    fn gateway_two_is_asked_only_where_signed_requests_may_go() {
        let at = |endpoint: &str| {
            let location = serde_json::json!([{ "name": "eastus", "databaseAccountEndpoint": endpoint }]);
            let document = serde_json::json!({
                "writableLocations": [{ "name": "East US", "databaseAccountEndpoint": "https://a.db.example/" }],
                "thinClientReadableLocations": location,
                "thinClientWritableLocations": location,
            });
            let document: AccountDocument = serde_json::from_value(document).expect("an account");
            let routes =
                AccountRoutes::build(&document, &Regions::default(), super::tests::endpoint("global"))
                    .expect("has regions");
            routes.gateway2.due(Instant::now()).len()
        };
        for (endpoint, expected) in [
            ("https://a-thin.db.example:10250/", 1),
            ("http://a-thin.db.example:10250/", 0),
            ("https://elsewhere.example:10250/", 0),
            ("https://me:secret@a.db.example:10250/", 0),
            ("nonsense", 0),
        ] {
            assert_eq!(at(endpoint), expected, "{endpoint}");
        }
    }

    #[test]
    fn an_account_is_fit_if_all_write_in_one_place_and_see_what_they_wrote() {
        let strict = Requirements { session_reads: true, single_write: true };
        let at = |level: &str| {
            let document = serde_json::json!({
                "writableLocations": [{ "name": "East US", "databaseAccountEndpoint": "https://a.db.example/" }],
                "userConsistencyPolicy": { "defaultConsistencyLevel": level },
            });
            let document: AccountDocument = serde_json::from_value(document).expect("an account");
            AccountRoutes::build(&document, &Regions::default(), endpoint("global")).expect("has regions")
        };
        for (level, asked) in [
            ("Strong", Consistency::Strong),
            ("BoundedStaleness", Consistency::Session),
            ("Session", Consistency::Session),
        ] {
            assert_eq!(at(level).unmet(strict), None, "{level}");
            assert_eq!(at(level).level_asked(strict), Some(asked), "{level}");
        }
        for level in ["ConsistentPrefix", "Eventual", "Whatever"] {
            let sentence = at(level).unmet(strict).expect(level);
            assert!(sentence.contains("set it to Session"), "{sentence}");
            assert_eq!(at(level).unmet(Requirements::default()), None, "nothing is required");
            assert_eq!(at(level).level_asked(Requirements::default()), None);
        }
        let names = ["East US", "West US"];
        let multi = routes(&names, &names, true, &Regions::default());
        let sentence = multi.unmet(strict).expect("two places");
        assert!(sentence.contains("East US, West US") && sentence.contains("turn"), "{sentence}");
        assert_eq!(multi.unmet(Requirements { single_write: false, ..strict }), None);
        let one = routes(&names, &["East US"], true, &Regions::default());
        assert_eq!(one.unmet(strict), None, "one region takes writes, whatever others may come");
    }

    #[tokio::test(start_paused = true)]
    async fn marks_survive_a_refresh_and_end_with_a_probe() {
        let routes = routes(&["East US", "West US"], &["East US"], false, &Regions::default());
        let now = Instant::now();
        let east = endpoint("East US").address.clone();
        let marked = routes.marking_unavailable(&east, now + Duration::from_secs(60));
        let refreshed = routes.clone().keeping_marks_of(&marked);
        assert!(refreshed.is_unavailable(&east));
        assert!(refreshed.due_for_probe(now + Duration::from_secs(59)).is_empty());
        assert_eq!(refreshed.due_for_probe(now + Duration::from_secs(60)), std::slice::from_ref(&east));
        // Time alone does not bring traffic back; the probe does.
        assert!(refreshed.is_unavailable(&east));
        assert!(!refreshed.marking_available(&east).is_unavailable(&east));
    }
}
