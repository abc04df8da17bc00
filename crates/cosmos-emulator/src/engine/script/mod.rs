//! Scripts of a container: kept with its record, run under the writer of one partition.

mod run;

use std::sync::Arc;

use serde_json::{Map, Value, json};

pub use self::run::{ScriptReply, ScriptRequest, Triggers};
use super::catalog::user::Put;
use super::catalog::{body, check_match, not_found, taken};
use super::container::{Container, Shape};
use super::request::{ResourceFeed, ResourceReply};
use super::{Engine, quota};
use crate::Failure;
use crate::sql::Schema;

/// The kinds of scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptKind {
    /// A stored procedure.
    Procedure,
    /// A trigger.
    Trigger,
    /// A user defined function.
    Function,
}

impl ScriptKind {
    /// The collection they are in, as paths name it.
    pub fn segment(self) -> &'static str {
        match self {
            Self::Procedure => "sprocs",
            Self::Trigger => "triggers",
            Self::Function => "udfs",
        }
    }

    /// By the name of their collection.
    pub fn of_segment(segment: &str) -> Option<Self> {
        [Self::Procedure, Self::Trigger, Self::Function].into_iter().find(|kind| kind.segment() == segment)
    }

    /// The member that lists them.
    pub fn member(self) -> &'static str {
        match self {
            Self::Procedure => "StoredProcedures",
            Self::Trigger => "Triggers",
            Self::Function => "UserDefinedFunctions",
        }
    }
}

/// A script as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Script {
    pub(crate) kind: ScriptKind,
    /// The resource as clients see it.
    pub(crate) body: Value,
}

impl Script {
    /// The name its owner gave it.
    pub(crate) fn name(&self) -> &str {
        self.body["id"].as_str().unwrap_or_default()
    }

    /// Its text.
    pub(crate) fn source(&self) -> &str {
        self.body["body"].as_str().unwrap_or_default()
    }

    /// As kept in a record.
    pub(crate) fn to_record(&self) -> Value {
        json!({"kind": self.kind.segment(), "body": self.body})
    }

    /// From a record.
    pub(crate) fn from_record(record: &Value) -> Option<Self> {
        Some(Self { kind: ScriptKind::of_segment(record["kind"].as_str()?)?, body: record["body"].clone() })
    }
}

/// What queries must know of a container with these scripts.
pub(crate) fn schema_of(body: &Value, scripts: &[Script]) -> Arc<Schema> {
    let functions = scripts.iter().filter(|script| script.kind == ScriptKind::Function);
    let functions = functions.map(|script| (script.name().to_owned(), script.source().to_owned()));
    Arc::new(Schema::of(body).with_functions(functions.collect()))
}

/// The longest text of a script.
const SOURCE_BYTES_MAX: usize = 256 << 10;

impl Engine {
    /// Creates or changes a script.
    ///
    /// # Errors
    /// 400, 404, 409, 412.
    pub fn put_script(
        &self,
        container: &Container,
        kind: ScriptKind,
        given: &[u8],
        put: Put<'_>,
    ) -> Result<ResourceReply, Failure> {
        let given = body::object(given)?;
        let name = body::name(&given)?;
        let mut fields = checked(kind, &given)?;
        let mut control = self.control();
        let shape = self.current_shape(container)?;
        let old = match put {
            Put::Replace(address, if_match) => {
                let at = position(&shape, kind, address).ok_or_else(not_found)?;
                check_match(if_match, text(&shape.scripts[at].body, "_etag"))?;
                Some(at)
            }
            Put::Create | Put::Upsert => position(&shape, kind, &name),
        };
        let is_taken = position(&shape, kind, &name).is_some_and(|at| Some(at) != old);
        if is_taken || (matches!(put, Put::Create) && old.is_some()) {
            return Err(taken());
        }
        let now = self.clock().now_seconds();
        let mut numbers = control.clone();
        let etag = numbers.next_etag(now);
        let rid = match old {
            Some(at) => text(&shape.scripts[at].body, "_rid").to_owned(),
            None => {
                let number = u64::from(numbers.next_user());
                match kind {
                    ScriptKind::Procedure => container.rid.stored_procedure(number),
                    ScriptKind::Trigger => container.rid.trigger(number),
                    ScriptKind::Function => container.rid.user_defined_function(number),
                }
                .to_string()
            }
        };
        let link = format!("{}{}/{rid}/", text(&shape.body, "_self"), kind.segment());
        for (name, value) in
            [("_rid", json!(rid)), ("_self", json!(link)), ("_etag", json!(etag)), ("_ts", json!(now))]
        {
            fields.insert(name.into(), value);
        }
        let script = Script { kind, body: Value::Object(fields) };
        let document = script.body.clone();
        let mut scripts = shape.scripts.to_vec();
        match old {
            Some(at) => scripts[at] = script,
            None => scripts.push(script),
        }
        self.keep_numbers(&numbers)?;
        *control = numbers;
        let ticket = self.set_scripts(container, &shape, scripts)?;
        let status = if old.is_some() { 200 } else { 201 };
        Ok(ResourceReply {
            status,
            body: document,
            etag,
            rid,
            charge: quota::SCRIPT_WRITE,
            ticket: Some(ticket),
        })
    }

    /// Reads a script by name or resource id.
    ///
    /// # Errors
    /// 404.
    pub fn read_script(
        &self,
        container: &Container,
        kind: ScriptKind,
        name: &str,
    ) -> Result<ResourceReply, Failure> {
        let shape = self.current_shape(container)?;
        let script = find(&shape, kind, name).ok_or_else(not_found)?;
        let (etag, rid) = (text(&script.body, "_etag").to_owned(), text(&script.body, "_rid").to_owned());
        Ok(ResourceReply {
            status: 200,
            body: script.body.clone(),
            etag,
            rid,
            charge: quota::METADATA,
            ticket: None,
        })
    }

    /// The scripts of a kind, in order of creation.
    ///
    /// # Errors
    /// 404.
    pub fn scripts(&self, container: &Container, kind: ScriptKind) -> Result<ResourceFeed, Failure> {
        let shape = self.current_shape(container)?;
        let scripts = shape.scripts.iter().filter(|script| script.kind == kind);
        let resources = scripts.map(|script| script.body.clone()).collect();
        Ok(ResourceFeed { rid: container.rid(), resources, charge: quota::METADATA })
    }

    /// Removes a script.
    ///
    /// # Errors
    /// 404, 412.
    pub fn delete_script(
        &self,
        container: &Container,
        kind: ScriptKind,
        name: &str,
        if_match: Option<&str>,
    ) -> Result<ResourceReply, Failure> {
        let _control = self.control();
        let shape = self.current_shape(container)?;
        let at = position(&shape, kind, name).ok_or_else(not_found)?;
        check_match(if_match, text(&shape.scripts[at].body, "_etag"))?;
        let mut scripts = shape.scripts.to_vec();
        scripts.remove(at);
        let ticket = Some(self.set_scripts(container, &shape, scripts)?);
        let (body, etag, rid) = (Value::Null, String::new(), container.rid());
        Ok(ResourceReply { status: 204, body, etag, rid, charge: quota::SCRIPT_WRITE, ticket })
    }

    fn set_scripts(
        &self,
        container: &Container,
        shape: &Shape,
        scripts: Vec<Script>,
    ) -> Result<crate::storage::Ticket, Failure> {
        let schema = schema_of(&shape.body, &scripts);
        self.reshape(container, &Shape { schema, scripts: scripts.into(), ..shape.clone() })
    }
}

/// The properties of a script that clients may set, if they make one.
fn checked(kind: ScriptKind, given: &Map<String, Value>) -> Result<Map<String, Value>, Failure> {
    let source = match given.get("body").and_then(Value::as_str) {
        Some(source) if source.len() <= SOURCE_BYTES_MAX => source,
        Some(_) => return Err(Failure::new(413, "Request size is too large")),
        None => {
            return Err(Failure::bad_request(
                "The input content is invalid because the required properties - 'body; ' - are missing",
            ));
        }
    };
    // Whether it is a function is found out by whoever runs it, as with the service.
    let mut fields = Map::new();
    fields.insert("id".into(), given.get("id").cloned().unwrap_or_default());
    fields.insert("body".into(), json!(source));
    if kind == ScriptKind::Trigger {
        for (field, known, default) in [
            ("triggerType", &["Pre", "Post"][..], None),
            (
                "triggerOperation",
                &["All", "Create", "Update", "Delete", "Replace", "Upsert"][..],
                Some("All"),
            ),
        ] {
            let told = given.get(field).and_then(Value::as_str).or(default).unwrap_or_default();
            if !known.iter().any(|known| known.eq_ignore_ascii_case(told)) {
                return Err(Failure::bad_request(format!(
                    "The '{field}' of a trigger must be one of {known:?}, not '{told}'."
                )));
            }
            fields.insert(field.into(), json!(told));
        }
    }
    Ok(fields)
}

fn position(shape: &Shape, kind: ScriptKind, name: &str) -> Option<usize> {
    shape.scripts.iter().position(|script| {
        script.kind == kind && (script.name() == name || script.body["_rid"].as_str() == Some(name))
    })
}

fn find<'s>(shape: &'s Shape, kind: ScriptKind, name: &str) -> Option<&'s Script> {
    position(shape, kind, name).map(|at| &shape.scripts[at])
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}
