//! Connections by command: who is told to leave, and what clients have to trust.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::Context;
use super::answer::{Answer, Outcome};
use super::route::Request;
use crate::command;

pub(super) fn account(context: &Context, _: &Request<'_>) -> Outcome {
    Answer::ok(&command::account::document(&context.account, None, context.endpoint.trim_end_matches('/')))
}

pub(super) fn certificate(context: &Context, _: &Request<'_>) -> Outcome {
    match &context.certificate {
        Some(pem) => Answer::text("application/x-pem-file", pem.clone()),
        None => Err(Answer::problem(
            StatusCode::NOT_FOUND,
            "this account is served without TLS; start the emulator with `--tls`",
        )),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Goaway {
    region: Option<String>,
}

pub(super) fn goaway(context: &Context, request: &Request<'_>) -> Outcome {
    let Goaway { region } = request.body()?;
    let told: u64 = match region {
        None => context.gates().iter().map(|gate| gate.goaway()).sum(),
        Some(name) => {
            super::regions::check_known(context, &name)?;
            context.account.regions.gate_of(&name).map_or(0, |gate| gate.goaway())
        }
    };
    Answer::ok(&json!({"connections": told}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Age {
    seconds: Option<f64>,
}

/// Shortest and longest age, in seconds.
const AGE_SECONDS: std::ops::RangeInclusive<f64> = 0.001..=1e9;

pub(super) fn age(context: &Context, _: &Request<'_>) -> Outcome {
    let age_max = context.gates().first().and_then(|gate| gate.age_max());
    Answer::ok(&json!({"seconds": age_max.map(|age| age.as_secs_f64())}))
}

pub(super) fn limit_age(context: &Context, request: &Request<'_>) -> Outcome {
    let Age { seconds } = request.body()?;
    if seconds.is_some_and(|seconds| !AGE_SECONDS.contains(&seconds)) {
        return Err(request.bad_body("seconds must be a number from 0.001 to 1e9, or null for any age"));
    }
    context.gates().iter().for_each(|gate| gate.limit_age(seconds.map(Duration::from_secs_f64)));
    age(context, request)
}
