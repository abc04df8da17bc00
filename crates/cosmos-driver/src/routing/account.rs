//! The account's regions as routes, and which of them are avoided.

use std::sync::Arc;

use serde::Deserialize;
use tokio::time::Instant;

use super::Endpoint;
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
    thin_client_readable_locations: Vec<Location>,
    thin_client_writable_locations: Vec<Location>,
    user_consistency_policy: ConsistencyPolicy,
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

/// Where reads and writes can go, best first.
#[derive(Clone, Debug)]
pub(crate) struct AccountRoutes {
    pub(crate) reads: Vec<Arc<Endpoint>>,
    pub(crate) writes: Vec<Arc<Endpoint>>,
    /// The endpoint the caller named.
    pub(crate) default: Arc<Endpoint>,
    pub(crate) is_multi_write: bool,
    /// What the account promises to reads; none if this driver does not know the level.
    pub(crate) consistency: Option<Consistency>,
    pub(crate) is_hedging_disabled: bool,
    pub(crate) gateway2: Vec<String>,
    unavailable: Vec<(Address, Instant)>,
}

impl AccountRoutes {
    /// Before the account is known: everything goes to the endpoint the caller named.
    pub(crate) fn bootstrap(default: Arc<Endpoint>) -> Self {
        Self {
            reads: vec![default.clone()],
            writes: vec![default.clone()],
            default,
            is_multi_write: false,
            consistency: Some(Consistency::Session),
            is_hedging_disabled: false,
            gateway2: Vec::new(),
            unavailable: Vec::new(),
        }
    }

    pub(crate) fn build(
        document: &AccountDocument,
        regions: &Regions,
        default: Arc<Endpoint>,
    ) -> Result<Self, Error> {
        let mut writes = endpoints(&document.writable_locations, &default.address)?;
        let mut reads = endpoints(&document.readable_locations, &default.address)?;
        if writes.is_empty() && reads.is_empty() {
            return Err(Error::protocol(no_region(document)));
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
        let mut gateway2: Vec<String> = document
            .thin_client_writable_locations
            .iter()
            .chain(&document.thin_client_readable_locations)
            .map(|location| location.database_account_endpoint.clone())
            .collect();
        gateway2.dedup();
        Ok(Self {
            reads,
            writes,
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

    pub(crate) fn candidates(&self, is_read: bool) -> &[Arc<Endpoint>] {
        if is_read { &self.reads } else { &self.writes }
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
        self
    }
}

/// The regions that may be asked, given the endpoint the caller named. One that would be asked in clear is left out.
fn endpoints(locations: &[Location], named: &Address) -> Result<Vec<Arc<Endpoint>>, Error> {
    let mut endpoints = Vec::with_capacity(locations.len());
    for location in locations {
        let address = Address::parse(&location.database_account_endpoint)?;
        if may_be_asked(&address, named) {
            endpoints.push(Arc::new(Endpoint { region: Arc::from(location.name.as_str()), address }));
        } else {
            tracing::warn!(
                region = location.name,
                endpoint = %address,
                account = %named,
                "the account names this region without https; it is not used, since signed requests and tokens would \
                 travel in clear"
            );
        }
    }
    Ok(endpoints)
}

/// Signatures and tokens travel in clear only where the caller chose so: to an endpoint named with http, on its host or
/// on this machine. Whatever else an account document names must be https, where the certificate says who answers.
fn may_be_asked(address: &Address, named: &Address) -> bool {
    address.is_tls() || (!named.is_tls() && (address.is_loopback() || address.host() == named.host()))
}

fn no_region(document: &AccountDocument) -> String {
    let plain = document.writable_locations.iter().chain(&document.readable_locations).next();
    plain.map_or_else(
        || "the account document names no region; it was not taken".to_owned(),
        |location| {
            format!(
                "the account document names regions without https only ({} at {}); it was not taken, since signed \
                 requests would travel in clear",
                location.name, location.database_account_endpoint
            )
        },
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
        let address = Address::parse(&format!("https://acct-{host}.example:443/")).expect("valid");
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
        let regions = Regions { preferred: vec!["westus".into(), "North Europe".into()], excluded: vec![] };
        let single = routes(&["East US", "North Europe", "West US"], &["East US"], false, &regions);
        assert_eq!(names(&single.reads), ["West US", "North Europe", "East US"]);
        assert_eq!(names(&single.writes), ["East US"]);
        let multi = routes(&["East US", "West US"], &["East US", "West US"], true, &regions);
        assert_eq!(names(&multi.writes), ["West US", "East US"]);
        assert!(multi.is_multi_write);
    }

    #[test]
    fn an_account_without_regions_is_not_taken() {
        let empty = AccountDocument::default();
        assert!(AccountRoutes::build(&empty, &Regions::default(), endpoint("global")).is_err());
    }

    #[test]
    fn nothing_signed_travels_in_clear_unless_the_caller_said_http() {
        // region, endpoint the caller named, whether it may be asked
        let cases = [
            ("https://acct-west.example/", "https://acct.example/", true),
            ("https://elsewhere.example/", "https://acct.example/", true),
            ("http://acct.example/", "https://acct.example/", false),
            ("http://127.0.0.1:8081/", "https://acct.example/", false),
            ("http://localhost:8082/", "https://localhost:8081/", false),
            ("http://127.0.0.1:8082/", "http://localhost:8081/", true),
            ("http://emulator:8082/", "http://emulator:8081/", true),
            ("http://elsewhere.example/", "http://localhost:8081/", false),
            ("https://elsewhere.example/", "http://localhost:8081/", true),
        ];
        for (region, named, expected) in cases {
            let [address, named] = [region, named].map(|url| Address::parse(url).expect(url));
            assert_eq!(may_be_asked(&address, &named), expected, "{address} named by {named}");
        }
    }

    #[test]
    fn gateway_two_locations_are_noticed() {
        let document = serde_json::json!({
            "writableLocations": [{ "name": "East US", "databaseAccountEndpoint": "https://a.example/" }],
            "thinClientReadableLocations": [{ "name": "East US", "databaseAccountEndpoint": "https://a.example:10250/" }],
        });
        let document: AccountDocument = serde_json::from_value(document).expect("an account");
        let routes =
            AccountRoutes::build(&document, &Regions::default(), endpoint("global")).expect("has regions");
        assert_eq!(routes.gateway2, ["https://a.example:10250/"]);
        assert_eq!(routes.reads, routes.writes, "without a list of its own, reads go where writes go");
    }

    #[test]
    fn an_account_is_fit_if_all_write_in_one_place_and_see_what_they_wrote() {
        let strict = Requirements { session_reads: true, single_write: true };
        let at = |level: &str| {
            let document = serde_json::json!({
                "writableLocations": [{ "name": "East US", "databaseAccountEndpoint": "https://a.example/" }],
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
