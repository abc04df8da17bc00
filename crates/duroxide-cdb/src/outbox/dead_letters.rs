//! Messages that could never be delivered.

use duroxide::providers::ProviderError;

use crate::core::{Core, decode};
use crate::documents::DeadLetter;
use crate::error::Fault;
use crate::queries::{self, Query};

/// A message that could never be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterInfo {
    /// The instance that sent it.
    pub source: String,
    /// The instance it was for.
    pub target: String,
    /// Why it was not delivered.
    pub reason: String,
    /// When that was found, in milliseconds since the Unix epoch.
    pub died_at: u64,
}

/// All dead letters.
pub(crate) async fn dead_letters(core: &Core) -> Result<Vec<DeadLetterInfo>, ProviderError> {
    let call = core.call("dead_letters");
    let surface = |fault: Fault| fault.surface(call.operation, "");
    let rows = core.store.query_all(call, &Query::new(queries::DEAD_LETTERS)).await.map_err(surface)?;
    rows.iter()
        .map(|row| {
            let letter: DeadLetter = decode(row.get().as_bytes()).map_err(surface)?;
            Ok(DeadLetterInfo {
                source: letter.instance_id,
                target: letter.target_instance_id,
                reason: letter.reason,
                died_at: letter.died_at,
            })
        })
        .collect()
}
