//! Users and their permissions, whose answers carry resource tokens.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;

use super::resource::{self, feed, reply};
use super::{Reply, decoded};
use crate::engine::{Put, ResourceFeed, ResourceReply};
use crate::failure::Failure;
use crate::http::grant::Grant;
use crate::http::headers::name;
use crate::http::route::Target;
use crate::http::{Account, Call};
use crate::operation::Operation;

/// How long a token is good for unless the request says so.
const LIFE_DEFAULT: Duration = Duration::from_secs(60 * 60);
const LIFE_SECONDS: std::ops::RangeInclusive<u64> = 10 * 60..=24 * 60 * 60;

pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let engine = &account.engine;
    let asked = call.asked();
    // Before anything is written that the answer could not speak of.
    life(call)?;
    let if_match = asked.text(name::IF_MATCH);
    let create = if asked.is_upsert() { Put::Upsert } else { Put::Create };
    match &call.route.target {
        Target::Users(db) => match call.operation {
            Operation::CreateUser => Ok(reply(engine.put_user(db, &decoded(&call.body)?, create)?)),
            Operation::QueryUsers => resource::query(account, call, engine.users(db)?, "Users"),
            _ => feed(call, &engine.users(db)?, "Users"),
        },
        Target::User(db, user) => Ok(reply(match call.operation {
            Operation::ReplaceUser => {
                engine.put_user(db, &decoded(&call.body)?, Put::Replace(user, if_match))?
            }
            Operation::DeleteUser => engine.delete_user(db, user, if_match)?,
            _ => engine.read_user(db, user)?,
        })),
        Target::Permissions(db, user) => match call.operation {
            Operation::CreatePermission => {
                let answer = engine.put_permission(db, user, &decoded(&call.body)?, create)?;
                Ok(reply(with_token(account, call, answer)?))
            }
            Operation::QueryPermissions => resource::query(
                account,
                call,
                with_tokens(account, call, engine.permissions(db, user)?)?,
                "Permissions",
            ),
            _ => feed(call, &with_tokens(account, call, engine.permissions(db, user)?)?, "Permissions"),
        },
        Target::Permission(db, user, permission) => match call.operation {
            Operation::ReplacePermission => {
                let put = Put::Replace(permission, if_match);
                let answer = engine.put_permission(db, user, &decoded(&call.body)?, put)?;
                Ok(reply(with_token(account, call, answer)?))
            }
            Operation::DeletePermission => {
                Ok(reply(engine.delete_permission(db, user, permission, if_match)?))
            }
            _ => Ok(reply(with_token(account, call, engine.read_permission(db, user, permission)?)?)),
        },
        _ => Err(Failure::bad_request("Request url is invalid.")),
    }
}

fn with_token(account: &Account, call: &Call, mut answer: ResourceReply) -> Result<ResourceReply, Failure> {
    answer.body["_token"] = token(account, call, &answer.body)?.into();
    Ok(answer)
}

fn with_tokens(account: &Account, call: &Call, mut list: ResourceFeed) -> Result<ResourceFeed, Failure> {
    for permission in &mut list.resources {
        permission["_token"] = token(account, call, permission)?.into();
    }
    Ok(list)
}

/// How long the tokens of an answer are good for.
fn life(call: &Call) -> Result<Duration, Failure> {
    match call.asked().text(name::RESOURCE_TOKEN_EXPIRY).map(|text| text.trim().parse()) {
        None => Ok(LIFE_DEFAULT),
        Some(Ok(seconds)) if LIFE_SECONDS.contains(&seconds) => Ok(Duration::from_secs(seconds)),
        Some(_) => Err(Failure::bad_request(
            "Invalid x-ms-documentdb-expiry-seconds header: it must be a number from 600 to 86400.",
        )),
    }
}

/// A fresh token for a permission.
fn token(account: &Account, call: &Call, permission: &Value) -> Result<String, Failure> {
    let life = life(call)?;
    let expires = (account.clock.now() + life).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let link = permission["resource"].as_str().unwrap_or_default().trim_matches('/');
    let grant = Grant {
        links: spellings(account, link),
        may_write: permission["permissionMode"].as_str().is_some_and(|mode| mode.eq_ignore_ascii_case("all")),
        partition_key: permission.get("resourcePartitionKey").cloned(),
        expires,
    };
    Ok(account.sign(&grant))
}

/// The link as it was given, and with names and resource ids of its container.
fn spellings(account: &Account, link: &str) -> Vec<String> {
    let mut links = vec![link.to_owned()];
    let parts: Vec<&str> = link.splitn(5, '/').collect();
    if let ["dbs", db, "colls", container, rest @ ..] = parts.as_slice()
        && let Ok(found) = account.engine.container(db, container)
        && let Ok(database) = account.engine.read_database(db)
    {
        let below = rest.first().map_or(String::new(), |rest| format!("/{rest}"));
        links.push(format!("{}{below}", found.alt_link()));
        links.push(format!("dbs/{}/colls/{}{below}", database.rid, found.rid()));
    }
    links.dedup();
    links
}
