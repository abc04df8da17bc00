//! Runs scripts: what one asks for is done by the writer of its partition, one after the other, and counts when the
//! script has ended, or not at all.

use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::partition_key::PartitionKey;
use serde_json::{Value, json};

use super::{Script, ScriptKind, find, text};
use crate::Failure;
use crate::engine::catalog::not_found;
use crate::engine::container::{Container, Shape, epk_key, too_few_components};
use crate::engine::item::{self, Done};
use crate::engine::key::EpkKey;
use crate::engine::request::{Conditions, ItemOp, ItemReply, ItemRequest, Standing};
use crate::engine::writer::Writer;
use crate::engine::{Engine, quota};
use crate::script::Machine;
use crate::sql::{self, List, PageLimits, Prepared};
use crate::storage::Ticket;

/// A stored procedure is to be run.
#[derive(Debug, Clone)]
pub struct ScriptRequest {
    /// Its name or resource id.
    pub name: String,
    /// A JSON array.
    pub arguments: Bytes,
    /// The logical partition it works on.
    pub partition_key: Option<PartitionKey>,
    /// `x-ms-session-token`.
    pub session_token: Option<String>,
}

/// What a stored procedure did.
#[derive(Debug, Clone)]
pub struct ScriptReply {
    /// What it left as the body of the response, as JSON; empty without one.
    pub body: Bytes,
    /// What it wrote with `console.log`.
    pub log: String,
    /// RUs.
    pub charge: f64,
    /// The partition it worked on.
    pub standing: Standing,
    /// Wait for it before answering.
    pub ticket: Option<Ticket>,
}

/// Triggers that a request names.
#[derive(Debug, Clone, Default)]
pub struct Triggers {
    /// Before the write.
    pub pre: Vec<String>,
    /// After it.
    pub post: Vec<String>,
}

impl Triggers {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pre.is_empty() && self.post.is_empty()
    }
}

/// Most operations that one script asks for.
const OPERATIONS_MAX: usize = 20_000;

impl Engine {
    /// Runs a stored procedure: all it does counts, or nothing.
    ///
    /// # Errors
    /// 400 for what it throws, 404 without it, 408 when it takes too long.
    pub fn execute(&self, container: &Container, request: &ScriptRequest) -> Result<ScriptReply, Failure> {
        let shape = self.current_shape(container)?;
        let script = find(&shape, ScriptKind::Procedure, &request.name).ok_or_else(not_found)?;
        let given: Value = match request.arguments.is_empty() {
            true => json!([]),
            false => serde_json::from_slice(&request.arguments).unwrap_or_default(),
        };
        if !given.is_array() {
            return Err(Failure::bad_request("The arguments of a stored procedure must be a JSON array."));
        }
        let key = request.partition_key.as_ref().ok_or_else(too_few_components)?;
        let epk = container.epk(key)?;
        let partition = Arc::clone(shape.partition_of(container.region, &epk));
        let turn = self.admit(container, &shape, &partition)?;
        self.catch_up(container, &partition)?;
        partition.check_session(&self.topology(), request.session_token.as_deref())?;
        let writer = Writer::begin(self, container, &partition)?;
        let mut session =
            Session { writer, shape: &shape, key, epk: epk_key(&epk), charge: quota::SCRIPT_RUN };
        let ended = session.run(script, &json!({}), &given)?;
        let Session { writer, charge, .. } = session;
        let (lsn, acted) = (writer.lsn(), writer.topology());
        let ticket = writer.commit()?;
        turn.settle(charge);
        let topology = acted.unwrap_or_else(|| Arc::clone(&self.topology()));
        let body = ended.get("response").map_or_else(Bytes::new, |body| body.to_string().into());
        let standing = partition.standing(&topology, lsn);
        Ok(ScriptReply { body, log: text(&ended, "log").to_owned(), charge, standing, ticket })
    }

    /// One write of an item, with triggers before and after it in the same transaction.
    ///
    /// # Errors
    /// As [`item`](Self::item); 400 for a trigger that is not there, does not fit or throws.
    pub fn item_with_triggers(
        &self,
        container: &Container,
        request: ItemRequest,
        triggers: &Triggers,
    ) -> Result<ItemReply, Failure> {
        let shape = self.current_shape(container)?;
        let ItemRequest { partition_key, mut op, conditions, session_token: _ } = request;
        let key = partition_key.as_ref().ok_or_else(too_few_components)?;
        let operation =
            operation_name(&op).ok_or_else(|| Failure::bad_request("Triggers run with writes only."))?;
        let pre = chosen(&shape, &triggers.pre, "Pre", operation)?;
        let post = chosen(&shape, &triggers.post, "Post", operation)?;
        let epk = container.epk(key)?;
        let partition = Arc::clone(shape.partition_of(container.region, &epk));
        let turn = self.admit(container, &shape, &partition)?;
        self.catch_up(container, &partition)?;
        let writer = Writer::begin(self, container, &partition)?;
        let mut session = Session { writer, shape: &shape, key, epk: epk_key(&epk), charge: 0.0 };
        for trigger in pre {
            let body = body_of(&mut op).and_then(|body| serde_json::from_slice::<Value>(body).ok());
            let ended =
                session.run(trigger, &json!({"request": body, "operation": operation}), &json!([]))?;
            if let (Some(slot), Some(changed)) =
                (body_of(&mut op), ended.get("request").filter(|body| body.is_object()))
            {
                *slot = changed.to_string().into();
            }
        }
        let done = session.apply(op, &conditions)?;
        for trigger in post {
            let body: Value = serde_json::from_slice(&done.body).unwrap_or_default();
            session.run(
                trigger,
                &json!({"request": body, "response": body, "operation": operation}),
                &json!([]),
            )?;
        }
        let Session { writer, charge, .. } = session;
        let (lsn, acted) = (writer.lsn(), writer.topology());
        let ticket = writer.commit()?;
        turn.settle(charge);
        let topology = acted.unwrap_or_else(|| Arc::clone(&self.topology()));
        let standing = partition.standing(&topology, lsn.max(done.item_lsn.unwrap_or(0)));
        let Done { status, body, etag, item_lsn, .. } = done;
        Ok(ItemReply { status, body, etag, charge, item_lsn, standing, ticket })
    }
}

fn operation_name(op: &ItemOp) -> Option<&'static str> {
    match op {
        ItemOp::Create { .. } => Some("Create"),
        ItemOp::Upsert { .. } => Some("Upsert"),
        ItemOp::Replace { .. } => Some("Replace"),
        ItemOp::Delete { .. } => Some("Delete"),
        ItemOp::Patch { .. } => Some("Update"),
        ItemOp::Read { .. } => None,
    }
}

fn body_of(op: &mut ItemOp) -> Option<&mut Bytes> {
    match op {
        ItemOp::Create { body } | ItemOp::Upsert { body } | ItemOp::Replace { body, .. } => Some(body),
        ItemOp::Delete { .. } | ItemOp::Patch { .. } | ItemOp::Read { .. } => None,
    }
}

/// The triggers of these names, which must be for this moment and this operation.
fn chosen<'s>(
    shape: &'s Shape,
    names: &[String],
    moment: &str,
    operation: &str,
) -> Result<Vec<&'s Script>, Failure> {
    let choose = |name: &String| {
        let wrong = |why: &str| Failure::bad_request(format!("The trigger '{name}' {why}."));
        let trigger =
            find(shape, ScriptKind::Trigger, name).ok_or_else(|| wrong("does not exist in the container"))?;
        if !text(&trigger.body, "triggerType").eq_ignore_ascii_case(moment) {
            return Err(wrong(&format!("is not of the type {moment}")));
        }
        let told = text(&trigger.body, "triggerOperation");
        let is = |name: &str| told.eq_ignore_ascii_case(name);
        let fits = is("All")
            || is(operation)
            || (is("Update") && operation == "Replace")
            || (operation == "Upsert" && (is("Create") || is("Replace")));
        if fits { Ok(trigger) } else { Err(wrong(&format!("is for {told} and not for {operation}"))) }
    };
    names.iter().map(choose).collect()
}

/// Scripts at work on one logical partition.
struct Session<'s> {
    writer: Writer<'s>,
    shape: &'s Shape,
    key: &'s PartitionKey,
    epk: EpkKey,
    charge: f64,
}

impl Session<'_> {
    /// Runs a script to its end; says what it left.
    fn run(&mut self, script: &Script, setup: &Value, arguments: &Value) -> Result<Value, Failure> {
        let machine = Machine::new()?;
        let container = self.writer.container;
        let mut setup = setup.clone();
        setup["selfLink"] = self.shape.body["_self"].clone();
        setup["altLink"] = container.alt_link().into();
        machine.call("hostStart", &[script.source(), &setup.to_string(), &arguments.to_string()])?;
        for _ in 0..OPERATIONS_MAX {
            let asked = machine.call("hostNext", &[])?;
            if asked.is_empty() {
                let ended = machine.call("hostFinish", &[])?;
                return Ok(serde_json::from_str(&ended).unwrap_or_default());
            }
            let asked: Value = serde_json::from_str(&asked).unwrap_or_default();
            let answer = match self.serve(&asked) {
                Ok(answer) => answer,
                Err(failure) => {
                    json!({"error": {"number": failure.status, "message": failure.message}}).to_string()
                }
            };
            machine.call("hostDeliver", &[&answer])?;
        }
        Err(Failure::bad_request(format!("A script may ask for {OPERATIONS_MAX} operations at most.")))
    }

    /// Does what a script asks for.
    fn serve(&mut self, asked: &Value) -> Result<String, Failure> {
        let body = || Bytes::from(asked["body"].to_string());
        let conditions = Conditions {
            if_match: asked["options"]["etag"].as_str().map(str::to_owned),
            if_none_match: None,
        };
        let op = match text(asked, "kind") {
            "create" => ItemOp::Create { body: self.with_id(asked) },
            "upsert" => ItemOp::Upsert { body: self.with_id(asked) },
            "replace" => ItemOp::Replace { id: self.id_of(text(asked, "link"))?, body: body() },
            "delete" => ItemOp::Delete { id: self.id_of(text(asked, "link"))? },
            "read" => ItemOp::Read { id: self.id_of(text(asked, "link"))? },
            _ => return self.query(asked),
        };
        let done = self.apply(op, &conditions)?;
        let resource = if done.body.is_empty() { "{}".into() } else { String::from_utf8_lossy(&done.body) };
        let options = json!({"currentCollectionSizeInMB": 0, "eTag": done.etag});
        Ok(format!("{{\"resource\":{resource},\"options\":{options}}}"))
    }

    /// A new document gets an id where it has none, as with the service's own SDKs.
    fn with_id(&self, asked: &Value) -> Bytes {
        let mut document = asked["body"].clone();
        let is_automatic = asked["options"]["disableAutomaticIdGeneration"] != true;
        if let Some(fields) =
            document.as_object_mut().filter(|fields| is_automatic && !fields.contains_key("id"))
        {
            fields.insert("id".into(), uuid::Uuid::new_v4().to_string().into());
        }
        document.to_string().into()
    }

    /// Does one operation, or leaves everything as it was.
    fn apply(&mut self, op: ItemOp, conditions: &Conditions) -> Result<Done, Failure> {
        let prepared = self.writer.engine.prepare(self.writer.container, self.key, op)?;
        let before = self.writer.mark();
        match item::apply(&mut self.writer, &self.epk, prepared, conditions) {
            Ok(done) => {
                self.charge += done.charge;
                Ok(done)
            }
            Err(failure) => {
                self.writer.go_back(before);
                Err(failure)
            }
        }
    }

    /// The id of the item that a link names, by its name or by its resource id.
    fn id_of(&self, link: &str) -> Result<String, Failure> {
        let last = link.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if self.writer.find(&self.epk, last)?.is_some() {
            return Ok(last.to_owned());
        }
        for document in self.writer.documents(&self.epk)? {
            if document["_rid"] == last {
                return Ok(text(&document, "id").to_owned());
            }
        }
        Ok(last.to_owned())
    }

    fn query(&mut self, asked: &Value) -> Result<String, Failure> {
        let (query, parameters) = match &asked["query"] {
            Value::String(query) => (query.as_str(), Vec::new()),
            spec => {
                let parameters = spec["parameters"].as_array().cloned().unwrap_or_default();
                let pairs = parameters
                    .iter()
                    .map(|parameter| (text(parameter, "name").to_owned(), parameter["value"].clone()));
                (text(spec, "query"), pairs.collect())
            }
        };
        let prepared = Prepared::in_container(&sql::parse(query)?, &parameters, &self.shape.schema)?;
        let options = &asked["options"];
        let items_max = options["pageSize"].as_u64().and_then(|size| usize::try_from(size).ok());
        let limits = PageLimits { items_max: items_max.unwrap_or(PAGE_ITEMS), ..PageLimits::default() };
        let documents = List::new(self.writer.documents(&self.epk)?);
        let page = prepared.page(&documents, &limits, options["continuation"].as_str(), self.writer.time)?;
        self.charge += quota::query(quota::QueryWork {
            documents: page.visited,
            rows: page.rows.len() as u64,
            row_bytes: page.body_bytes as u64,
            ..quota::QueryWork::default()
        });
        Ok(json!({"resource": page.rows, "options": {"continuation": page.continuation}}).to_string())
    }
}

/// Rows of a page where a script does not say.
const PAGE_ITEMS: usize = 100;
