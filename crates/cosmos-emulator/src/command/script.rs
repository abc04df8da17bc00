//! Stored procedures, triggers and user defined functions: kept, listed, and procedures run.

use cosmos_wire::header;
use http::{HeaderName, HeaderValue};

use super::resource::{self, feed, reply};
use super::{Reply, container, decoded, partition_key, session_token};
use crate::engine::{Put, ScriptRequest};
use crate::failure::Failure;
use crate::http::headers::name;
use crate::http::route::Target;
use crate::http::{Account, Call};
use crate::operation::Operation;

pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let engine = &account.engine;
    let asked = call.asked();
    let container = container(account, call)?;
    let if_match = asked.text(name::IF_MATCH);
    match &call.route.target {
        Target::Scripts(_, kind) => match call.operation {
            Operation::CreateScript => {
                let put = if asked.is_upsert() { Put::Upsert } else { Put::Create };
                Ok(reply(engine.put_script(&container, *kind, &decoded(&call.body)?, put)?))
            }
            Operation::QueryScripts => {
                resource::query(account, call, engine.scripts(&container, *kind)?, kind.member())
            }
            _ => feed(call, &engine.scripts(&container, *kind)?, kind.member()),
        },
        Target::Script(_, kind, id) => match call.operation {
            Operation::ReplaceScript => {
                let put = Put::Replace(id, if_match);
                Ok(reply(engine.put_script(&container, *kind, &decoded(&call.body)?, put)?))
            }
            Operation::DeleteScript => Ok(reply(engine.delete_script(&container, *kind, id, if_match)?)),
            Operation::ExecuteScript => execute(account, call, id),
            _ => Ok(reply(engine.read_script(&container, *kind, id)?)),
        },
        _ => Err(Failure::bad_request("Request url is invalid.")),
    }
}

/// Runs a stored procedure.
fn execute(account: &Account, call: &Call, id: &str) -> Result<Reply, Failure> {
    const LOG: HeaderName = HeaderName::from_static(header::SCRIPT_LOG_RESULTS);
    let asked = call.asked();
    let container = container(account, call)?;
    let request = ScriptRequest {
        name: id.to_owned(),
        arguments: if call.body.is_empty() { call.body.clone() } else { decoded(&call.body)? },
        partition_key: partition_key(&asked)?,
        session_token: session_token(account, &asked),
    };
    let done = account.engine.execute(&container, &request)?;
    let is_logged = asked.text(name::SCRIPT_ENABLE_LOGGING).is_some_and(header::is_true);
    let mut log = String::new();
    cosmos_wire::resource::percent_encode(&mut log, &done.log);
    let log = is_logged.then(|| HeaderValue::from_str(&log).ok()).flatten();
    Ok(Reply {
        body: done.body,
        charge: done.charge,
        ticket: done.ticket,
        extra: log.map(|log| (LOG, log)).into_iter().collect(),
        ..Reply::standing(&container, done.standing, None)
    })
}
