//! Resource tokens: what one permission allows, signed with the account key.
//!
//! A token carries its grant, so that checking it needs nothing but the key:
//! `type=resource&ver=1.0&sig={signature};{grant in base64};`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cosmos_wire::partition_key::PartitionKey;
use cosmos_wire::signature::{Key, Signable};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::may_be_granted;
use crate::failure::Failure;
use crate::http::headers::{Asked, name};
use crate::http::route::{Route, Target};
use crate::operation::Operation;

/// What a token allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Grant {
    /// The resource, in every way it may be addressed.
    pub(crate) links: Vec<String>,
    /// Whether it may be changed as well as read.
    pub(crate) may_write: bool,
    /// Only items of this partition key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) partition_key: Option<Value>,
    /// Seconds since 1970.
    pub(crate) expires: u64,
}

impl Grant {
    /// The token of this grant.
    pub(crate) fn to_token(&self, key: &Key) -> String {
        let payload = STANDARD.encode(serde_json::to_vec(self).unwrap_or_default());
        let signature = key.sign(&signable(&payload));
        format!("type=resource&ver=1.0&sig={signature};{payload};")
    }

    /// The grant in the signature part of a token, if the account signed it.
    pub(crate) fn from_signature(text: &str, key: &Key) -> Option<Self> {
        let (signature, payload) = text.trim_end_matches(';').split_once(';')?;
        if !key.verify(&signable(payload), signature) {
            return None;
        }
        serde_json::from_slice(&STANDARD.decode(payload).ok()?).ok()
    }

    /// Refuses what the grant does not allow.
    pub(crate) fn check(
        &self,
        route: &Route,
        operation: Operation,
        asked: &Asked<'_>,
        now: SystemTime,
    ) -> Result<(), Failure> {
        if now > UNIX_EPOCH + Duration::from_secs(self.expires) {
            return Err(Failure::new(
                403,
                "The authorization token is not valid at the current time: it has expired. Please create another \
                 token and retry.",
            ));
        }
        // Permissions of older folders may name more than a container.
        let mut links = self.links.iter().filter(|link| may_be_granted(link));
        let within = links.clone().any(|link| is_within(&route.link, link));
        // Clients read the container of an item they may use, and its ranges, to find the item.
        let leads_to = matches!(operation, Operation::ReadContainer | Operation::ReadRanges)
            && links.any(|link| is_within(link, &route.link));
        let is_allowed = operation == Operation::ReadAccount
            || leads_to
            || (within
                && (self.may_write || !operation.is_write())
                && self.allows_key(route, operation, asked));
        if is_allowed { Ok(()) } else { Err(insufficient()) }
    }

    /// Whether a request stays with the partition key of the grant. Without one, mode All deletes even the container, as
    /// the service has it (`ContainerResourcePermissionTest` of the .NET SDK).
    fn allows_key(&self, route: &Route, operation: Operation, asked: &Asked<'_>) -> bool {
        let Some(allowed) = &self.partition_key else { return true };
        match route.target {
            Target::Items(_) | Target::Item(..) | Target::PartitionDelete(_) | Target::Conflicts(_) => {}
            Target::Script(..) if operation == Operation::ExecuteScript => {}
            // What leads to items says nothing of those under other keys.
            _ => {
                return matches!(operation, Operation::ReadContainer | Operation::ReadRanges);
            }
        }
        // A range of keys goes before the key, and each step of a bulk request may have a key of its own.
        if operation == Operation::Bulk || asked.epk_range() != Ok(None) {
            return false;
        }
        let given = asked.utf8(name::PARTITION_KEY).and_then(|text| text.parse::<PartitionKey>().ok());
        given.is_some() && given == allowed.to_string().parse().ok()
    }
}

/// Whether a link names a resource or something below it.
fn is_within(link: &str, resource: &str) -> bool {
    link.strip_prefix(resource).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn signable(payload: &str) -> Signable<'_> {
    Signable { verb: "", resource_type: "permissions", resource_link: payload, x_ms_date: "", date: "" }
}

fn insufficient() -> Failure {
    Failure::new(
        403,
        "Insufficient permissions provided in the authorization header for the corresponding request. Please retry \
         with another authorization header.",
    )
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use serde_json::json;

    use super::*;
    use crate::http::route::route;

    fn key() -> Key {
        Key::from_base64(cosmos_wire::EMULATOR_KEY).expect("the emulator's key is base64")
    }

    fn grant() -> Grant {
        Grant { links: vec!["dbs/d/colls/c".into()], may_write: false, partition_key: None, expires: 1000 }
    }

    fn ask(grant: &Grant, path: &str, operation: Operation, partition_key: Option<&'static str>) -> u16 {
        let mut headers = HeaderMap::new();
        if let Some(key) = partition_key {
            headers.insert(name::PARTITION_KEY, HeaderValue::from_static(key));
        }
        let now = UNIX_EPOCH + Duration::from_secs(999);
        let verdict = grant.check(&route(path).unwrap(), operation, &Asked::new(&headers), now);
        verdict.map_or_else(|failure| failure.status, |()| 200)
    }

    #[test]
    fn a_token_carries_its_grant_and_cannot_be_changed() {
        let token = grant().to_token(&key());
        let signature = token.strip_prefix("type=resource&ver=1.0&sig=").unwrap();
        assert_eq!(Grant::from_signature(signature, &key()), Some(grant()));
        let other = Grant { may_write: true, ..grant() }.to_token(&key());
        let forged = format!(
            "{};{}",
            signature.split(';').next().unwrap(),
            other.trim_end_matches(';').rsplit(';').next().unwrap()
        );
        assert_eq!(Grant::from_signature(&forged, &key()), None);
    }

    #[test]
    fn a_grant_to_read_covers_what_is_below_its_resource() {
        let read = grant();
        assert_eq!(ask(&read, "/dbs/d/colls/c", Operation::ReadContainer, None), 200);
        assert_eq!(ask(&read, "/dbs/d/colls/c/docs/i", Operation::ReadItem, None), 200);
        assert_eq!(ask(&read, "/dbs/d/colls/c/docs", Operation::Query, None), 200);
        assert_eq!(ask(&read, "/", Operation::ReadAccount, None), 200);
        assert_eq!(ask(&read, "/dbs/d/colls/c/docs/i", Operation::DeleteItem, None), 403);
        assert_eq!(ask(&read, "/dbs/d/colls/cc", Operation::ReadContainer, None), 403);
        assert_eq!(ask(&read, "/dbs/d", Operation::ReadDatabase, None), 403);
    }

    #[test]
    fn a_grant_on_an_item_leads_to_it() {
        let item = Grant { links: vec!["dbs/d/colls/c/docs/i".into()], may_write: true, ..grant() };
        assert_eq!(ask(&item, "/dbs/d/colls/c", Operation::ReadContainer, None), 200);
        assert_eq!(ask(&item, "/dbs/d/colls/c/docs/i", Operation::DeleteItem, None), 200);
        assert_eq!(ask(&item, "/dbs/d/colls/c/docs/j", Operation::ReadItem, None), 403);
        assert_eq!(ask(&item, "/dbs/d/colls/c", Operation::DeleteContainer, None), 403);
    }

    #[test]
    fn a_grant_for_one_partition_key_stops_at_others_and_at_none() {
        let one = Grant { partition_key: Some(json!([1])), ..grant() };
        assert_eq!(ask(&one, "/dbs/d/colls/c/docs/i", Operation::ReadItem, Some("[1]")), 200);
        assert_eq!(ask(&one, "/dbs/d/colls/c/docs/i", Operation::ReadItem, Some("[2]")), 403);
        assert_eq!(ask(&one, "/dbs/d/colls/c/docs", Operation::Query, None), 403);
        assert_eq!(ask(&one, "/dbs/d/colls/c", Operation::ReadContainer, None), 200);
    }

    #[test]
    fn a_grant_for_one_partition_key_covers_neither_the_container_nor_what_names_no_key() {
        let one = Grant { partition_key: Some(json!([1])), may_write: true, ..grant() };
        assert_eq!(ask(&one, "/dbs/d/colls/c", Operation::ReplaceContainer, Some("[1]")), 403);
        assert_eq!(ask(&one, "/dbs/d/colls/c", Operation::DeleteContainer, Some("[1]")), 403);
        assert_eq!(ask(&one, "/dbs/d/colls/c/conflicts", Operation::ListConflicts, None), 403);
        assert_eq!(ask(&one, "/dbs/d/colls/c/conflicts", Operation::ListConflicts, Some("[1]")), 200);
        assert_eq!(ask(&one, "/dbs/d/colls/c/conflicts/x", Operation::ReadConflict, Some("[1]")), 403);
        assert_eq!(ask(&one, "/dbs/d/colls/c/conflicts/x", Operation::DeleteConflict, Some("[1]")), 403);
    }

    #[test]
    fn a_grant_of_more_than_a_container_allows_nothing() {
        for link in ["", "dbs", "dbs/d", "dbs/d/users/u"] {
            let wide = Grant { links: vec![link.into()], may_write: true, ..grant() };
            assert_eq!(
                ask(&wide, "/dbs/d/users/u/permissions", Operation::ListPermissions, None),
                403,
                "{link}"
            );
            assert_eq!(ask(&wide, "/dbs/d/colls/c/docs/i", Operation::ReadItem, None), 403, "{link}");
        }
    }

    #[test]
    fn a_grant_for_one_partition_key_is_not_widened_by_a_range_or_by_the_steps_of_a_bulk_request() {
        let one = Grant { partition_key: Some(json!([1])), may_write: true, ..grant() };
        assert_eq!(ask(&one, "/dbs/d/colls/c/docs", Operation::Batch, Some("[1]")), 200);
        assert_eq!(ask(&one, "/dbs/d/colls/c/docs", Operation::Bulk, Some("[1]")), 403);
        let mut headers = HeaderMap::new();
        headers.insert(name::PARTITION_KEY, HeaderValue::from_static("[1]"));
        let docs = route("/dbs/d/colls/c/docs").unwrap();
        let query = |headers: &HeaderMap| {
            one.check(&docs, Operation::Query, &Asked::new(headers), UNIX_EPOCH)
                .map_err(|failure| failure.status)
        };
        assert_eq!(query(&headers), Ok(()));
        for bound in [name::START_EPK, name::END_EPK] {
            let mut ranged = headers.clone();
            ranged.insert(bound, HeaderValue::from_static("05"));
            assert_eq!(query(&ranged), Err(403));
        }
    }

    #[test]
    fn an_expired_grant_allows_nothing() {
        let old = Grant { expires: 998, ..grant() };
        assert_eq!(ask(&old, "/dbs/d/colls/c", Operation::ReadContainer, None), 403);
    }
}
