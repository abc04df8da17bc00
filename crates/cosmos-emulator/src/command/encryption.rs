//! Client encryption keys: kept and told, never unwrapped.

use super::resource::{self, feed, reply};
use super::{Reply, decoded};
use crate::engine::Put;
use crate::failure::Failure;
use crate::http::headers::name;
use crate::http::route::Target;
use crate::http::{Account, Call};
use crate::operation::Operation;

const MEMBER: &str = "ClientEncryptionKeys";

pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let engine = &account.engine;
    let asked = call.asked();
    match (&call.route.target, call.operation) {
        (Target::EncryptionKeys(db), Operation::CreateEncryptionKey) => {
            Ok(reply(engine.put_encryption_key(db, &decoded(&call.body)?, Put::Create)?))
        }
        (Target::EncryptionKeys(db), Operation::QueryEncryptionKeys) => {
            resource::query(account, call, engine.encryption_keys(db)?, MEMBER)
        }
        (Target::EncryptionKeys(db), _) => feed(call, &engine.encryption_keys(db)?, MEMBER),
        (Target::EncryptionKey(db, key), Operation::ReplaceEncryptionKey) => {
            let put = Put::Replace(key, asked.text(name::IF_MATCH));
            Ok(reply(engine.put_encryption_key(db, &decoded(&call.body)?, put)?))
        }
        (Target::EncryptionKey(db, key), _) => Ok(reply(engine.read_encryption_key(db, key)?)),
        _ => Err(Failure::bad_request("Request url is invalid.")),
    }
}
