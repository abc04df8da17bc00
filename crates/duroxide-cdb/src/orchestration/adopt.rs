//! Key-values that the public crate kept, one document each.
//!
//! Together they may be far larger than a batch, so they are not copied: the head takes in the small ones and points to
//! the documents of the others. The commit removes those of the small ones; the others are rewritten one by one where
//! they are, after it. A reader takes either form, and what a dead process did not get to is done after another commit.

use futures::future::BoxFuture;

use crate::core::Core;
use crate::documents::{Pairs, ValueDocument, kind, points_to};
use crate::error::Fault;
use crate::parallel::in_parallel;
use crate::store::settle::Rests;
use crate::store::{Call, Op};

/// Which of the documents of the public crate's layout a commit removes, and which the head points to.
pub(crate) fn divide(legacy: &[String], kv: &Pairs, removed: &[String]) -> (Vec<String>, Vec<String>) {
    let left = legacy.iter().filter(|id| !removed.contains(id)).cloned();
    left.partition(|id| !points_to(kv, id))
}

/// Rewrites values in this crate's layout, where they are.
pub(crate) async fn rewrite(
    core: &Core,
    call: Call,
    instance: &str,
    ids: &[String],
    turn: u64,
) -> Result<(), Fault> {
    let rewrites = ids.iter().map(|id| -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move { rewrite_one(core, call, instance, id, turn).await })
    });
    in_parallel(REWRITES_AT_ONCE, rewrites).await.into_iter().collect()
}

async fn rewrite_one(core: &Core, call: Call, instance: &str, id: &str, turn: u64) -> Result<(), Fault> {
    let Some(found) = core.store.patient(call).read_as::<ValueDocument>(instance, id).await? else {
        return Ok(());
    };
    let value = ValueDocument { kind: kind::VALUE.to_owned(), turn, ..found.document };
    let op = Op::replace(id, &value, Some(&found.etag))?;
    // Superseded: another process has rewritten it, or it is not needed any more.
    core.store.patient(call).settle_one(instance, &op, Rests::Shared).await.map(drop)
}

const REWRITES_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::{Cell, Stored};

    #[test]
    fn what_the_head_points_to_stays_and_nothing_is_removed_twice() {
        let pointed = Stored { inline: None, document: Some("b".to_owned()), ..Stored::inline("", 1) };
        let kv = Pairs::from([("key".to_owned(), Cell { stored: Some(pointed), ..Cell::default() })]);
        let legacy = ["a", "b", "c"].map(ToOwned::to_owned);
        let (removed, kept) = divide(&legacy, &kv, &["c".to_owned()]);
        assert_eq!((removed, kept), (vec!["a".to_owned()], vec!["b".to_owned()]));
    }
}
