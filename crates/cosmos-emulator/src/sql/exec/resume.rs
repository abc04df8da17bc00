//! Where a client goes on by the values of the last row it had, and not by a continuation: `resumeFilter` of a request.

use std::cmp::Ordering;

use cosmos_wire::value_order::compare_sort_keys;
use serde_json::{Value, json};

use super::super::ast::OrderKey;
use super::super::bind::ROOT;
use super::super::eval::Env;
use super::super::function::document_number;
use super::super::source::Direction;
use super::order::keys_of;
use crate::Failure;

/// The row that a client had last.
#[derive(Debug, Clone)]
pub(crate) struct Resume {
    /// Its sort keys; `None` is undefined.
    keys: Vec<Option<Value>>,
    /// The number of its document, where it says so.
    document: Option<u64>,
    /// Whether what is equal to it comes again.
    equal: Equal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Equal {
    Comes,
    IsLeftOut,
}

impl Resume {
    /// Reads `{"value": [..], "rid": "..", "exclude": true}`. An undefined key is an empty array; of arrays and objects
    /// only the type is told, which is all that counts in an order.
    pub(crate) fn parse(filter: &Value, order: &[OrderKey]) -> Result<Self, Failure> {
        let wrong =
            || Failure::bad_request("The resumeFilter of the query does not fit its ORDER BY clause.");
        let values =
            filter["value"].as_array().filter(|values| values.len() == order.len() && !order.is_empty());
        let keys = values.ok_or_else(wrong)?.iter().map(|value| match value {
            Value::Array(none) if none.is_empty() => None,
            Value::Object(hashed) => match hashed.get("type").and_then(Value::as_str) {
                Some("array") => Some(json!([])),
                _ => Some(json!({})),
            },
            scalar => Some(scalar.clone()),
        });
        let document = match filter["rid"].as_str().unwrap_or_default() {
            "" => None,
            rid => Some(document_number(&json!({"_rid": rid})).ok_or_else(wrong)?),
        };
        let equal = if filter["exclude"] == true { Equal::IsLeftOut } else { Equal::Comes };
        Ok(Self { keys: keys.collect(), document, equal })
    }

    /// Whether what is bound comes behind that row.
    pub(crate) fn passes(&self, order: &[OrderKey], env: Env<'_>) -> Result<bool, Failure> {
        let keys = keys_of(order, env)?;
        let mut is_reverse = false;
        for (at, ((key, direction), last)) in keys.iter().zip(&self.keys).enumerate() {
            let descends = *direction == Direction::Descending;
            is_reverse |= at == 0 && descends;
            let place = compare_sort_keys(key.as_ref(), last.as_ref());
            match if descends { place.reverse() } else { place } {
                Ordering::Less => return Ok(false),
                Ordering::Greater => return Ok(true),
                Ordering::Equal => {}
            }
        }
        let own = env.lookup(ROOT).and_then(document_number);
        let place = match (self.document, own) {
            (Some(last), Some(own)) if is_reverse => last.cmp(&own),
            (Some(last), Some(own)) => own.cmp(&last),
            (None, _) | (_, None) => Ordering::Equal,
        };
        Ok(place == Ordering::Greater || place == Ordering::Equal && self.equal == Equal::Comes)
    }
}
