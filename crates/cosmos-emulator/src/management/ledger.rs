//! What clients asked for.

use super::Context;
use super::answer::{Answer, Outcome};
use super::route::Request;

pub(super) fn read(context: &Context, _: &Request<'_>) -> Outcome {
    Answer::ok(&context.account.ledger.snapshot())
}

pub(super) fn reset(context: &Context, _: &Request<'_>) -> Outcome {
    context.account.ledger.reset();
    Answer::done()
}
