//! Messages that could never be delivered: shown, sent again, or dropped.

use duroxide::providers::ProviderError;

use crate::core::Core;
use crate::documents::{DeadLetter, Tagged};
use crate::error::Fault;
use crate::queries::{self, Query};
use crate::staging::pieces;
use crate::store::settle::{Rests, Settled};
use crate::store::{Call, Op};

/// A message that could never be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterInfo {
    /// Names it, together with its source.
    pub id: String,
    /// The instance that sent it.
    pub source: String,
    /// The instance it was for.
    pub target: String,
    /// Why it was not delivered.
    pub reason: String,
    /// When that was found, in milliseconds since the Unix epoch.
    pub died_at: u64,
}

/// All dead letters that can be read.
pub(crate) async fn dead_letters(core: &Core) -> Result<Vec<DeadLetterInfo>, ProviderError> {
    let call = core.store.call("dead_letters");
    let surface = |fault: Fault| fault.surface(call.operation, "");
    let rows = core.store.query_all(call, &Query::new(queries::DEAD_LETTERS)).await.map_err(surface)?;
    let letters = rows.iter().filter_map(|row| core.strays.read::<DeadLetter>(call.operation, row));
    let info = |letter: DeadLetter| DeadLetterInfo {
        id: letter.id,
        source: letter.instance_id,
        target: letter.target_instance_id,
        reason: letter.reason,
        died_at: letter.died_at,
    };
    Ok(letters.map(info).collect())
}

/// Turns a dead letter back into an intent, in one batch, and delivers it.
pub(crate) async fn requeue(core: &Core, source: &str, id: &str) -> Result<(), ProviderError> {
    let call = core.store.call("requeue_dead_letter");
    let surface = |fault: Fault| fault.surface(call.operation, source);
    let letter = existing(core, call, source, id).await?;
    let Some(mut intent) = letter.document.revived(core.clock.now_ms()) else {
        let sentence =
            format!("The dead letter {id} of {source} holds no message that could be sent: drop it.");
        return Err(ProviderError::permanent(call.operation, sentence));
    };
    let create = Op::create(&intent).map_err(|error| surface(error.into()))?;
    let ops = [Op::delete(id, Some(&letter.etag)), create];
    let settled = core.store.patient(call).settle(source, &ops, Rests::Shared).await;
    match settled.map_err(surface)? {
        Settled::Applied(mut etags) => intent.etag = etags.pop(),
        // An earlier try of this call arrived, or another process was quicker: it is on its way.
        Settled::Arrived | Settled::Superseded(_) => {}
    }
    super::deliver(core, call.operation, vec![intent]).await;
    Ok(())
}

/// Forgets a dead letter and the pieces of its text.
pub(crate) async fn drop_letter(core: &Core, source: &str, id: &str) -> Result<(), ProviderError> {
    let call = core.store.call("drop_dead_letter");
    let surface = |fault: Fault| fault.surface(call.operation, source);
    let letter = existing(core, call, source, id).await?;
    let removal = Op::delete(id, Some(&letter.etag));
    pieces::remove(core.staging(), call, source, removal, letter.document.chunks).await.map_err(surface)
}

async fn existing(
    core: &Core,
    call: Call,
    source: &str,
    id: &str,
) -> Result<Tagged<DeadLetter>, ProviderError> {
    let found = core.store.patient(call).read_as::<DeadLetter>(source, id).await;
    found.map_err(|fault| fault.surface(call.operation, source))?.ok_or_else(|| {
        let sentence = format!("{source} has no dead letter {id}: list them to see which there are.");
        ProviderError::permanent(call.operation, sentence)
    })
}
