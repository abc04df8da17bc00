//! The last fence around what one instance has stored: a panic over it is a fault of that instance.
//!
//! No document that can be stored should make this crate panic. If one does all the same, the task that looked at it
//! works for every other instance too: it goes on with those.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::error::Fault;
use crate::store::Strays;

/// Does something with what one instance has stored. A panic becomes a fault, is counted, and is logged once for each
/// instance.
///
/// What the work shares with others stays usable after a panic: every lock in this crate that can be poisoned is taken
/// as it is.
pub(crate) async fn contained<T>(
    strays: &Strays,
    operation: &'static str,
    instance: &str,
    work: BoxFuture<'_, Result<T, Fault>>,
) -> Result<T, Fault> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(panic) => {
            let fault = fault_of(panic.as_ref());
            strays.panicked(operation, instance, &fault);
            Err(fault)
        }
    }
}

fn fault_of(panic: &(dyn Any + Send)) -> Fault {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Fault::damaged(format!(
        "the provider panicked over what is stored ({}); this is a defect of duroxide-cdb, please report it",
        text.unwrap_or("without a message")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_told_as_damage_of_what_was_looked_at() {
        for panic in [
            std::panic::catch_unwind(|| panic!("attempt to add with overflow")).unwrap_err(),
            std::panic::catch_unwind(|| panic!("{}", "attempt to add with overflow")).unwrap_err(),
        ] {
            let fault = fault_of(panic.as_ref());
            assert!(fault.is_damage && fault.to_string().contains("add with overflow"), "{fault}");
        }
        assert!(fault_of(&5).to_string().contains("without a message"));
    }
}
