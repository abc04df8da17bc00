//! Time by command.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::Context;
use super::answer::{Answer, Outcome};
use super::route::Request;

/// Furthest the clock is put forward at once.
const SECONDS_MAX: f64 = 1e9;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    seconds: f64,
}

pub(super) fn read(context: &Context, _: &Request<'_>) -> Outcome {
    let clock = &context.account.clock;
    Answer::ok(&json!({"now": cosmos_wire::date::format(clock.now()), "milliseconds": clock.now_millis()}))
}

/// Puts the clock of the account forward, so that what expires can be seen to expire.
pub(super) fn advance(context: &Context, request: &Request<'_>) -> Outcome {
    let Advance { seconds } = request.body()?;
    if !(0.0..=SECONDS_MAX).contains(&seconds) {
        return Err(request.bad_body("seconds must be a number from 0 to 1e9"));
    }
    context.account.clock.advance(Duration::from_secs_f64(seconds));
    read(context, request)
}
