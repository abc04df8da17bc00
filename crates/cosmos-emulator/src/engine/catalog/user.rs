//! Users of a database and their permissions.
//!
//! A user is one record that holds its permissions. What a permission allows is decided where requests are admitted;
//! here it is only kept.

use std::collections::BTreeMap;

use cosmos_wire::rid::Rid;
use serde_json::{Map, Value, json};

use super::{Catalog, Database, Numbers, body, check_match, is_rid, not_found, taken};
use crate::Failure;
use crate::engine::request::{ResourceFeed, ResourceReply};
use crate::engine::{Engine, key, quota};
use crate::storage::{Batch, Change, StorageError};

/// A user of a database.
#[derive(Debug, Clone)]
pub(crate) struct User {
    number: u32,
    rid: Rid,
    body: Value,
    /// By number, which is the order of creation.
    permissions: BTreeMap<u32, Value>,
}

/// What a write does with a name.
#[derive(Debug, Clone, Copy)]
pub enum Put<'a> {
    /// The name must be free.
    Create,
    /// The name may be taken.
    Upsert,
    /// The one of this name or resource id is changed, its name included; the etag header must match.
    Replace(&'a str, Option<&'a str>),
}

impl Engine {
    /// Creates or changes a user.
    ///
    /// # Errors
    /// 400, 404, 409, 412.
    pub fn put_user(&self, database: &str, body: &[u8], put: Put<'_>) -> Result<ResourceReply, Failure> {
        let name = body::name(&body::object(body)?)?;
        self.change(database, |database, numbers, now| {
            let old = target(put, &name, database.users.values().map(|user| (user.number, &user.body)))?;
            let mut user = match old.and_then(|number| database.users.get(&number)) {
                Some(user) => user.clone(),
                None => User::new(database.rid, numbers),
            };
            let etag = numbers.next_etag(now);
            let rid = user.rid;
            user.body = json!({"id": name, "_rid": rid.to_string(), "_self": format!("dbs/{}/users/{rid}/", database.rid),
                "_etag": etag, "_permissions": "permissions/", "_ts": now});
            let answer = written(old, &user.body);
            Ok((user, answer))
        })
    }

    /// Reads a user by name or resource id.
    ///
    /// # Errors
    /// 404.
    pub fn read_user(&self, database: &str, user: &str) -> Result<ResourceReply, Failure> {
        let catalog = self.catalog();
        Ok(answer(200, &catalog.database(database)?.user(user)?.body))
    }

    /// The users of a database, in order of creation.
    ///
    /// # Errors
    /// 404.
    pub fn users(&self, database: &str) -> Result<ResourceFeed, Failure> {
        let catalog = self.catalog();
        let database = catalog.database(database)?;
        let resources = database.users.values().map(|user| user.body.clone()).collect();
        Ok(ResourceFeed { rid: database.rid.to_string(), resources, charge: quota::METADATA })
    }

    /// Removes a user and its permissions.
    ///
    /// # Errors
    /// 404, 412.
    pub fn delete_user(
        &self,
        database: &str,
        user: &str,
        if_match: Option<&str>,
    ) -> Result<ResourceReply, Failure> {
        let _control = self.control();
        let mut catalog = self.catalog_mut();
        let database = catalog.database_mut(database)?;
        let found = database.user(user)?;
        check_match(if_match, text(&found.body, "_etag"))?;
        let number = found.number;
        let changes = vec![Change::Delete(key::user(database.number, number))];
        let ticket = self.commit(Batch { changes })?;
        database.users.remove(&number);
        Ok(ResourceReply { ticket: Some(ticket), ..answer(204, &Value::Null) })
    }

    /// Creates or changes a permission of a user.
    ///
    /// # Errors
    /// 400, 404, 409, 412.
    pub fn put_permission(
        &self,
        database: &str,
        user: &str,
        body: &[u8],
        put: Put<'_>,
    ) -> Result<ResourceReply, Failure> {
        let given = body::object(body)?;
        let name = body::name(&given)?;
        check_permission(&given)?;
        self.change(database, |database, numbers, now| {
            let mut user = database.user(user)?.clone();
            let old = target(put, &name, user.permissions.iter().map(|(number, body)| (*number, body)))?;
            let number = old.unwrap_or_else(|| numbers.next_user());
            let rid = user.rid.permission(number.into());
            let mut permission = Map::new();
            permission.insert("id".into(), name.clone().into());
            for field in ["permissionMode", "resource", "resourcePartitionKey"] {
                if let Some(value) = given.get(field).filter(|value| !value.is_null()) {
                    permission.insert(field.into(), value.clone());
                }
            }
            let link = format!("dbs/{}/users/{}/permissions/{rid}/", database.rid, user.rid);
            permission.insert("_rid".into(), rid.to_string().into());
            permission.insert("_self".into(), link.into());
            permission.insert("_etag".into(), numbers.next_etag(now).into());
            permission.insert("_ts".into(), now.into());
            let permission = Value::Object(permission);
            let answer = written(old, &permission);
            user.permissions.insert(number, permission);
            Ok((user, answer))
        })
    }

    /// Reads a permission by name or resource id.
    ///
    /// # Errors
    /// 404.
    pub fn read_permission(
        &self,
        database: &str,
        user: &str,
        permission: &str,
    ) -> Result<ResourceReply, Failure> {
        let catalog = self.catalog();
        let (_, body) = catalog.database(database)?.user(user)?.permission(permission)?;
        Ok(answer(200, body))
    }

    /// The permissions of a user, in order of creation.
    ///
    /// # Errors
    /// 404.
    pub fn permissions(&self, database: &str, user: &str) -> Result<ResourceFeed, Failure> {
        let catalog = self.catalog();
        let user = catalog.database(database)?.user(user)?;
        let resources = user.permissions.values().cloned().collect();
        Ok(ResourceFeed { rid: user.rid.to_string(), resources, charge: quota::METADATA })
    }

    /// Removes a permission. Tokens made from it stay good until they expire, as with the service.
    ///
    /// # Errors
    /// 404, 412.
    pub fn delete_permission(
        &self,
        database: &str,
        user: &str,
        permission: &str,
        if_match: Option<&str>,
    ) -> Result<ResourceReply, Failure> {
        self.change(database, |database, _, _| {
            let mut user = database.user(user)?.clone();
            let (number, body) = user.permission(permission)?;
            check_match(if_match, text(body, "_etag"))?;
            user.permissions.remove(&number);
            Ok((user, answer(204, &Value::Null)))
        })
    }

    /// Changes one user of a database: commits what `make` returns, then shows it.
    fn change(
        &self,
        database: &str,
        make: impl FnOnce(&Database, &mut Numbers, u64) -> Result<(User, ResourceReply), Failure>,
    ) -> Result<ResourceReply, Failure> {
        let mut control = self.control();
        let mut catalog = self.catalog_mut();
        let database = catalog.database_mut(database)?;
        let mut numbers = control.clone();
        let (user, reply) = make(database, &mut numbers, self.clock().now_seconds())?;
        let changes = vec![
            Change::Put(key::meta(), numbers.to_record().into()),
            Change::Put(key::user(database.number, user.number), user.to_record().into()),
        ];
        let ticket = self.commit(Batch { changes })?;
        database.users.insert(user.number, user);
        *control = numbers;
        Ok(ResourceReply { ticket: Some(ticket), ..reply })
    }
}

impl Numbers {
    pub(crate) fn next_user(&mut self) -> u32 {
        self.user += 1;
        self.user
    }
}

impl Catalog {
    pub(super) fn database_mut(&mut self, name: &str) -> Result<&mut Database, Failure> {
        let number = self.database(name)?.number;
        self.databases.get_mut(&number).ok_or_else(not_found)
    }
}

impl Database {
    fn user(&self, name: &str) -> Result<&User, Failure> {
        let by_name = self.users.values().find(|user| text(&user.body, "id") == name);
        by_name.or_else(|| self.users.values().find(|user| is_rid(name, user.rid))).ok_or_else(not_found)
    }
}

impl User {
    fn new(database: Rid, numbers: &mut Numbers) -> Self {
        let number = numbers.next_user();
        Self { number, rid: database.user(number), body: Value::Null, permissions: BTreeMap::new() }
    }

    fn permission(&self, name: &str) -> Result<(u32, &Value), Failure> {
        let named = |body: &Value| text(body, "id") == name || text(body, "_rid") == name;
        let found = self.permissions.iter().find(|(_, body)| named(body));
        found.map(|(number, body)| (*number, body)).ok_or_else(not_found)
    }

    /// As kept in the store.
    fn to_record(&self) -> Vec<u8> {
        let permissions: Vec<_> =
            self.permissions.iter().map(|(number, body)| json!({"number": number, "body": body})).collect();
        json!({"body": self.body, "permissions": permissions}).to_string().into_bytes()
    }

    /// From the store; `number` is of the key.
    pub(super) fn load(number: u32, bytes: &[u8]) -> Result<Self, StorageError> {
        let parse = || {
            let mut record: Value = serde_json::from_slice(bytes).ok()?;
            let body = record["body"].take();
            let mut permissions = BTreeMap::new();
            for permission in record["permissions"].as_array_mut()? {
                let number = u32::try_from(permission["number"].as_u64()?).ok()?;
                permissions.insert(number, permission["body"].take());
            }
            Some(Self { number, rid: body["_rid"].as_str()?.parse().ok()?, body, permissions })
        };
        parse().ok_or_else(|| {
            StorageError("the record of a user cannot be read; restore the data folder from a copy".into())
        })
    }
}

/// The number of what a write replaces; 409 if the new name belongs to another.
pub(super) fn target<'a>(
    put: Put<'_>,
    name: &str,
    mut all: impl Iterator<Item = (u32, &'a Value)> + Clone,
) -> Result<Option<u32>, Failure> {
    let mut taken_by = all.clone().filter(|(_, body)| text(body, "id") == name).map(|(number, _)| number);
    match put {
        Put::Create => taken_by.next().map_or(Ok(None), |_| Err(taken())),
        Put::Upsert => Ok(taken_by.next()),
        Put::Replace(wanted, if_match) => {
            let named = |body: &Value| text(body, "id") == wanted || text(body, "_rid") == wanted;
            let (number, body) = all.find(|(_, body)| named(body)).ok_or_else(not_found)?;
            check_match(if_match, text(body, "_etag"))?;
            if taken_by.any(|owner| owner != number) { Err(taken()) } else { Ok(Some(number)) }
        }
    }
}

/// Whether a permission may name this link: a container or something inside one, never what holds users, permissions or
/// other containers.
pub(crate) fn may_be_granted(link: &str) -> bool {
    let parts: Vec<&str> = link.trim_matches('/').splitn(6, '/').collect();
    parts.iter().all(|part| !part.is_empty())
        && matches!(
            parts.as_slice(),
            ["dbs", _, "colls", _] | ["dbs", _, "colls", _, "docs" | "sprocs" | "triggers" | "udfs", _]
        )
}

fn check_permission(given: &Map<String, Value>) -> Result<(), Failure> {
    let mode = given.get("permissionMode").and_then(Value::as_str).unwrap_or_default();
    if !["read", "all"].iter().any(|known| mode.eq_ignore_ascii_case(known)) {
        return Err(Failure::bad_request("The 'permissionMode' of a permission must be 'Read' or 'All'."));
    }
    if !given.get("resource").and_then(Value::as_str).is_some_and(may_be_granted) {
        return Err(Failure::bad_request(
            "The 'resource' of a permission must be the link of a container, or of an item, stored procedure, trigger \
             or user defined function in one.",
        ));
    }
    match given.get("resourcePartitionKey") {
        None | Some(Value::Null | Value::Array(_)) => Ok(()),
        Some(_) => Err(Failure::bad_request("The 'resourcePartitionKey' of a permission must be an array.")),
    }
}

pub(super) fn written(old: Option<u32>, body: &Value) -> ResourceReply {
    answer(if old.is_some() { 200 } else { 201 }, body)
}

pub(super) fn answer(status: u16, body: &Value) -> ResourceReply {
    ResourceReply {
        status,
        body: body.clone(),
        etag: text(body, "_etag").to_owned(),
        rid: text(body, "_rid").to_owned(),
        charge: quota::METADATA,
        ticket: None,
    }
}

pub(super) fn text<'a>(body: &'a Value, field: &str) -> &'a str {
    body[field].as_str().unwrap_or_default()
}
