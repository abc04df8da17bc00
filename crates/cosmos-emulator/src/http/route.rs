//! Method, path and markers in headers -> what is asked and of which resource.

use cosmos_wire::resource::percent_decode;
use cosmos_wire::rid::{self, Rid};
use http::Method;

use crate::engine::ScriptKind;
use crate::failure::Failure;
use crate::http::headers::Asked;
use crate::operation::Operation;

/// The resource a path names. Names may be resource ids; the engine tells them apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Account,
    Databases,
    Database(String),
    Containers(String),
    Container(ContainerPath),
    Items(ContainerPath),
    Item(ContainerPath, String),
    Ranges(ContainerPath),
    /// Where the items of one logical partition are deleted.
    PartitionDelete(ContainerPath),
    Offers,
    Offer(String),
    EncryptionKeys(String),
    EncryptionKey(String, String),
    Users(String),
    User(String, String),
    Permissions(String, String),
    Permission(String, String, String),
    Conflicts(ContainerPath),
    Conflict(ContainerPath, String),
    Scripts(ContainerPath, ScriptKind),
    Script(ContainerPath, ScriptKind, String),
}

/// A container by the two names of its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerPath {
    pub(crate) database: String,
    pub(crate) container: String,
}

/// A path, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) target: Target,
    /// Kind of resource as signatures spell it.
    pub(crate) kind: &'static str,
    /// Decoded link that signatures cover: of the resource, or of the parent of a feed.
    pub(crate) link: String,
    /// The resource id that signatures cover instead, in lower case, where the path addresses by resource ids.
    pub(crate) signed_rid: Option<String>,
    /// `dbs/{db}/colls/{container}`, where there is one.
    pub(crate) container: Option<String>,
}

/// Parses the path of a request.
pub(crate) fn route(path: &str) -> Result<Route, Failure> {
    let mut segments = Vec::with_capacity(6);
    for raw in path.split('/').filter(|segment| !segment.is_empty()) {
        segments.push(percent_decode(raw).ok_or_else(invalid_url)?);
        if segments.len() > SEGMENTS_MAX {
            return Err(invalid_url());
        }
    }
    let parts: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
    let target = target(&parts).ok_or_else(invalid_url)?;
    let (kind, link) = signed(&target, &parts);
    let container = match &target {
        Target::Container(_)
        | Target::Items(_)
        | Target::Item(..)
        | Target::Ranges(_)
        | Target::Scripts(..)
        | Target::Script(..)
        | Target::PartitionDelete(_) => Some(parts[..4].join("/")),
        _ => None,
    };
    let signed_rid = signed_rid(&target, &parts);
    Ok(Route { target, kind, link, signed_rid, container })
}

/// The service takes a path for one of resource ids when its database is one, and then all of it must be: each id holds
/// those of its owners, so that the last one says everything.
fn signed_rid(target: &Target, parts: &[&str]) -> Option<String> {
    if let Target::Offer(rid) = target {
        return Some(rid.to_ascii_lowercase());
    }
    let is_operation = matches!(target, Target::PartitionDelete(_));
    let ids = parts.iter().skip(1).step_by(2).take(if is_operation { 2 } else { usize::MAX });
    let mut last: Option<(Rid, &str)> = None;
    for text in ids {
        let rid: Rid = text.parse().ok()?;
        let is_owned = match last {
            None => rid.kind() == rid::Kind::Database,
            Some((owner, _)) => {
                rid.as_bytes().len() > owner.as_bytes().len() && rid.as_bytes().starts_with(owner.as_bytes())
            }
        };
        if !is_owned {
            return None;
        }
        last = Some((rid, text));
    }
    last.map(|(_, text)| text.to_ascii_lowercase())
}

/// Kind and link as signatures cover them.
fn signed(target: &Target, parts: &[&str]) -> (&'static str, String) {
    match target {
        Target::Offers => ("offers", String::new()),
        Target::Offer(rid) => ("offers", rid.clone()),
        Target::PartitionDelete(_) => ("colls", parts[..4].join("/")),
        _ => {
            let kind = parts.iter().step_by(2).next_back().map_or("", |kind| known_kind(kind));
            // A feed signs its parent.
            (kind, parts[..parts.len() - parts.len() % 2].join("/"))
        }
    }
}

/// Deepest path: `dbs/d/users/u/permissions/p` and `dbs/d/colls/c/docs/i` with attachments below.
const SEGMENTS_MAX: usize = 8;

fn target(parts: &[&str]) -> Option<Target> {
    let path = |database: &str, container: &str| ContainerPath {
        database: database.to_owned(),
        container: container.to_owned(),
    };
    Some(match *parts {
        [] => Target::Account,
        ["dbs"] => Target::Databases,
        ["dbs", db] => Target::Database(db.to_owned()),
        ["dbs", db, "colls"] => Target::Containers(db.to_owned()),
        ["dbs", db, "colls", c] => Target::Container(path(db, c)),
        ["dbs", db, "colls", c, "docs"] => Target::Items(path(db, c)),
        ["dbs", db, "colls", c, "docs", id] => Target::Item(path(db, c), id.to_owned()),
        ["dbs", db, "colls", c, "pkranges"] => Target::Ranges(path(db, c)),
        ["dbs", db, "colls", c, "operations", "partitionkeydelete"] => Target::PartitionDelete(path(db, c)),
        ["offers"] => Target::Offers,
        ["offers", rid] => Target::Offer(rid.to_owned()),
        ["dbs", db, "colls", c, kind @ ("sprocs" | "triggers" | "udfs")] => {
            Target::Scripts(path(db, c), ScriptKind::of_segment(kind)?)
        }
        ["dbs", db, "colls", c, kind @ ("sprocs" | "triggers" | "udfs"), id] => {
            Target::Script(path(db, c), ScriptKind::of_segment(kind)?, id.to_owned())
        }
        ["dbs", db, "colls", c, "conflicts"] => Target::Conflicts(path(db, c)),
        ["dbs", db, "colls", c, "conflicts", id] => Target::Conflict(path(db, c), id.to_owned()),
        ["dbs", db, "clientencryptionkeys"] => Target::EncryptionKeys(db.to_owned()),
        ["dbs", db, "clientencryptionkeys", key] => Target::EncryptionKey(db.to_owned(), key.to_owned()),
        ["dbs", db, "users"] => Target::Users(db.to_owned()),
        ["dbs", db, "users", user] => Target::User(db.to_owned(), user.to_owned()),
        ["dbs", db, "users", user, "permissions"] => Target::Permissions(db.to_owned(), user.to_owned()),
        ["dbs", db, "users", user, "permissions", permission] => {
            Target::Permission(db.to_owned(), user.to_owned(), permission.to_owned())
        }
        _ => return None,
    })
}

fn known_kind(kind: &str) -> &'static str {
    const KINDS: [&str; 11] = [
        "clientencryptionkeys",
        "dbs",
        "colls",
        "docs",
        "pkranges",
        "sprocs",
        "triggers",
        "udfs",
        "conflicts",
        "users",
        "permissions",
    ];
    KINDS.into_iter().find(|known| *known == kind).unwrap_or_default()
}

/// Decides what a request asks for.
pub(crate) fn operation(method: &Method, target: &Target, asked: &Asked<'_>) -> Result<Operation, Failure> {
    // A HEAD is a GET whose answer has no body; the server leaves it out.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let is = |wanted: &Method| method == wanted;
    Ok(match target {
        Target::Account if is(&Method::GET) => Operation::ReadAccount,
        Target::Databases if is(&Method::GET) => Operation::ListDatabases,
        Target::Databases if is(&Method::POST) && asked.is_query() => Operation::QueryDatabases,
        Target::Databases if is(&Method::POST) => Operation::CreateDatabase,
        Target::Database(_) if is(&Method::GET) => Operation::ReadDatabase,
        Target::Database(_) if is(&Method::DELETE) => Operation::DeleteDatabase,
        Target::Containers(_) if is(&Method::GET) => Operation::ListContainers,
        Target::Containers(_) if is(&Method::POST) && asked.is_query() => Operation::QueryContainers,
        Target::Containers(_) if is(&Method::POST) => Operation::CreateContainer,
        Target::Container(_) if is(&Method::GET) => Operation::ReadContainer,
        Target::Container(_) if is(&Method::PUT) => Operation::ReplaceContainer,
        Target::Container(_) if is(&Method::DELETE) => Operation::DeleteContainer,
        Target::Items(_) if is(&Method::POST) => posted(asked),
        Target::Items(_) if is(&Method::GET) && asked.is_change_feed() => Operation::ChangeFeed,
        Target::Items(_) if is(&Method::GET) => Operation::ReadFeed,
        Target::Item(..) if is(&Method::GET) => Operation::ReadItem,
        Target::Item(..) if is(&Method::PUT) => Operation::ReplaceItem,
        Target::Item(..) if is(&Method::PATCH) => Operation::PatchItem,
        Target::Item(..) if is(&Method::DELETE) => Operation::DeleteItem,
        Target::Ranges(_) if is(&Method::GET) => Operation::ReadRanges,
        Target::PartitionDelete(_) if is(&Method::POST) => Operation::DeletePartition,
        Target::Offers if is(&Method::GET) => Operation::ListOffers,
        Target::Offers if is(&Method::POST) => Operation::QueryOffers,
        Target::Offer(_) if is(&Method::GET) => Operation::ReadOffer,
        Target::Offer(_) if is(&Method::PUT) => Operation::ReplaceOffer,
        Target::EncryptionKeys(_) if is(&Method::GET) => Operation::ListEncryptionKeys,
        Target::EncryptionKeys(_) if is(&Method::POST) && asked.is_query() => Operation::QueryEncryptionKeys,
        Target::EncryptionKeys(_) if is(&Method::POST) => Operation::CreateEncryptionKey,
        Target::EncryptionKey(..) if is(&Method::GET) => Operation::ReadEncryptionKey,
        Target::EncryptionKey(..) if is(&Method::PUT) => Operation::ReplaceEncryptionKey,
        Target::Users(_) if is(&Method::GET) => Operation::ListUsers,
        Target::Users(_) if is(&Method::POST) && asked.is_query() => Operation::QueryUsers,
        Target::Users(_) if is(&Method::POST) => Operation::CreateUser,
        Target::User(..) if is(&Method::GET) => Operation::ReadUser,
        Target::User(..) if is(&Method::PUT) => Operation::ReplaceUser,
        Target::User(..) if is(&Method::DELETE) => Operation::DeleteUser,
        Target::Permissions(..) if is(&Method::GET) => Operation::ListPermissions,
        Target::Permissions(..) if is(&Method::POST) && asked.is_query() => Operation::QueryPermissions,
        Target::Permissions(..) if is(&Method::POST) => Operation::CreatePermission,
        Target::Permission(..) if is(&Method::GET) => Operation::ReadPermission,
        Target::Permission(..) if is(&Method::PUT) => Operation::ReplacePermission,
        Target::Permission(..) if is(&Method::DELETE) => Operation::DeletePermission,
        Target::Conflicts(_) if is(&Method::GET) || asked.is_query() => Operation::ListConflicts,
        Target::Conflict(..) if is(&Method::GET) => Operation::ReadConflict,
        Target::Conflict(..) if is(&Method::DELETE) => Operation::DeleteConflict,
        Target::Scripts(..) if is(&Method::GET) => Operation::ListScripts,
        Target::Scripts(..) if is(&Method::POST) && asked.is_query() => Operation::QueryScripts,
        Target::Scripts(..) if is(&Method::POST) => Operation::CreateScript,
        Target::Script(..) if is(&Method::GET) => Operation::ReadScript,
        Target::Script(..) if is(&Method::PUT) => Operation::ReplaceScript,
        Target::Script(..) if is(&Method::DELETE) => Operation::DeleteScript,
        Target::Script(_, ScriptKind::Procedure, _) if is(&Method::POST) => Operation::ExecuteScript,
        _ => return Err(wrong_verb()),
    })
}

/// A POST to the items of a container says by its headers what it is.
fn posted(asked: &Asked<'_>) -> Operation {
    if asked.is_query_plan() {
        Operation::QueryPlan
    } else if asked.is_query() {
        Operation::Query
    } else if asked.is_batch() {
        if asked.is_atomic() { Operation::Batch } else { Operation::Bulk }
    } else if asked.is_upsert() {
        Operation::UpsertItem
    } else {
        Operation::CreateItem
    }
}

fn invalid_url() -> Failure {
    Failure::bad_request("Request url is invalid.")
}

fn wrong_verb() -> Failure {
    Failure::new(405, "The requested verb is not supported.")
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    fn ask(method: &Method, path: &str, headers: &[(&'static str, &'static str)]) -> Result<Operation, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        let route = route(path).map_err(|failure| failure.status)?;
        operation(method, &route.target, &Asked::new(&map)).map_err(|failure| failure.status)
    }

    #[test]
    fn paths_and_verbs_name_operations() {
        let docs = "/dbs/d/colls/c/docs";
        assert_eq!(ask(&Method::GET, "/", &[]), Ok(Operation::ReadAccount));
        assert_eq!(ask(&Method::GET, "", &[]), Ok(Operation::ReadAccount));
        assert_eq!(ask(&Method::POST, "/dbs", &[]), Ok(Operation::CreateDatabase));
        assert_eq!(
            ask(&Method::POST, "/dbs/", &[("x-ms-documentdb-isquery", "True")]),
            Ok(Operation::QueryDatabases)
        );
        assert_eq!(ask(&Method::PUT, "/dbs/d/colls/c", &[]), Ok(Operation::ReplaceContainer));
        assert_eq!(ask(&Method::GET, "/dbs/d/colls/c/pkranges", &[]), Ok(Operation::ReadRanges));
        assert_eq!(ask(&Method::POST, docs, &[]), Ok(Operation::CreateItem));
        assert_eq!(
            ask(&Method::POST, docs, &[("x-ms-documentdb-is-upsert", "True")]),
            Ok(Operation::UpsertItem)
        );
        assert_eq!(ask(&Method::POST, docs, &[("x-ms-documentdb-query", "true")]), Ok(Operation::Query));
        assert_eq!(
            ask(&Method::POST, docs, &[("content-type", "application/query+json")]),
            Ok(Operation::Query)
        );
        assert_eq!(ask(&Method::GET, docs, &[("a-im", "Incremental Feed")]), Ok(Operation::ChangeFeed));
        assert_eq!(
            ask(
                &Method::POST,
                docs,
                &[("x-ms-cosmos-is-query-plan-request", "True"), ("x-ms-documentdb-isquery", "True")]
            ),
            Ok(Operation::QueryPlan)
        );
        assert_eq!(
            ask(
                &Method::POST,
                docs,
                &[("x-ms-cosmos-is-batch-request", "True"), ("x-ms-cosmos-batch-atomic", "True")]
            ),
            Ok(Operation::Batch)
        );
        assert_eq!(
            ask(&Method::POST, docs, &[("x-ms-cosmos-is-batch-request", "True")]),
            Ok(Operation::Bulk)
        );
    }

    #[test]
    fn wrong_paths_are_400_and_wrong_verbs_405() {
        assert_eq!(ask(&Method::GET, "/nothing", &[]), Err(400));
        assert_eq!(ask(&Method::GET, "/dbs/d/colls/c/docs/i/x", &[]), Err(400));
        assert_eq!(ask(&Method::GET, "/dbs/%zz", &[]), Err(400));
        assert_eq!(ask(&Method::GET, "/a/b/c/d/e/f/g/h/i/j/k", &[]), Err(400));
        assert_eq!(ask(&Method::DELETE, "/", &[]), Err(405));
        assert_eq!(ask(&Method::PATCH, "/dbs/d", &[]), Err(405));
        assert_eq!(ask(&Method::PUT, "/dbs/d/users", &[]), Err(405));
        assert_eq!(ask(&Method::POST, "/dbs/d/colls/c/udfs/f", &[]), Err(405));
        assert_eq!(ask(&Method::PATCH, "/dbs/d/colls/c/sprocs/s", &[]), Err(405));
    }

    #[test]
    fn links_are_decoded_and_feeds_sign_their_parent() {
        let item = route("/dbs/d%20b/colls/c/docs/a%2Fb/").unwrap();
        assert_eq!((item.kind, item.link.as_str()), ("docs", "dbs/d b/colls/c/docs/a/b"));
        assert_eq!(item.container.as_deref(), Some("dbs/d b/colls/c"));
        let feed = route("/dbs/d/colls/c/docs").unwrap();
        assert_eq!((feed.kind, feed.link.as_str()), ("docs", "dbs/d/colls/c"));
        let account = route("/").unwrap();
        assert_eq!((account.kind, account.link.as_str()), ("", ""));
        let offer = route("/offers/AbC").unwrap();
        assert_eq!((offer.kind, offer.link.as_str()), ("offers", "AbC"));
    }
}
