//! Custom status, key-values and statistics: from the head, without scans.

use std::collections::HashMap;

use duroxide::SystemStats;
use duroxide::providers::ProviderError;

use crate::core::Core;
use crate::documents::{Pairs, Stored, merged};
use crate::error::Fault;
use crate::history::{finish_commits, value, visible_head};
use crate::load::{self, LegacyValues, Partition};
use crate::store::Call;

/// The custom status, if it is newer than what the caller has seen.
pub(crate) async fn custom_status(
    core: &Core,
    instance: &str,
    last_seen: u64,
) -> Result<Option<(Option<String>, u64)>, ProviderError> {
    const OPERATION: &str = "get_custom_status";
    let call = core.store.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, instance);
    for _ in 0..TRIES_MAX {
        let Some(head) = visible_head(core, call, instance).await.map_err(surface)? else { return Ok(None) };
        let head = &head.document;
        if head.custom_status_version <= last_seen {
            return Ok(None);
        }
        let Some(id) = &head.custom_status_value else {
            return Ok(Some((head.custom_status.clone(), head.custom_status_version)));
        };
        if let Some(text) = value(core, call, instance, id).await.map_err(surface)? {
            return Ok(Some((Some(text), head.custom_status_version)));
        }
        finish_commits(core, call, instance).await.map_err(surface)?;
    }
    Err(moving(OPERATION, instance))
}

/// One key's value as a client sees it.
pub(crate) async fn kv_value(
    core: &Core,
    instance: &str,
    key: &str,
) -> Result<Option<String>, ProviderError> {
    const OPERATION: &str = "get_kv_value";
    let call = core.store.call(OPERATION);
    for _ in 0..TRIES_MAX {
        let pairs = pairs(core, call, instance).await.map_err(|fault| fault.surface(OPERATION, instance))?;
        let Some(stored) = pairs.get(key).and_then(merged) else { return Ok(None) };
        let text = text_of(core, call, instance, stored)
            .await
            .map_err(|fault| fault.surface(OPERATION, instance))?;
        if text.is_some() {
            return Ok(text);
        }
    }
    Err(moving(OPERATION, instance))
}

/// All keys and values as a client sees them, of one moment.
pub(crate) async fn kv_values(core: &Core, instance: &str) -> Result<HashMap<String, String>, ProviderError> {
    const OPERATION: &str = "get_kv_all_values";
    let call = core.store.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, instance);
    'again: for _ in 0..TRIES_MAX {
        let pairs = pairs(core, call, instance).await.map_err(surface)?;
        let mut values = HashMap::with_capacity(pairs.len());
        for (key, cell) in &pairs {
            let Some(stored) = merged(cell) else { continue };
            match text_of(core, call, instance, stored).await.map_err(surface)? {
                Some(text) => values.insert(key.clone(), text),
                None => continue 'again,
            };
        }
        return Ok(values);
    }
    Err(moving(OPERATION, instance))
}

async fn pairs(core: &Core, call: Call, instance: &str) -> Result<Pairs, Fault> {
    let Some(head) = visible_head(core, call, instance).await? else { return Ok(Pairs::new()) };
    if head.document.is_legacy() {
        return Ok(LegacyValues::read(core, call, instance).await?.cells);
    }
    Ok(head.document.kv.clone())
}

/// `None` when the value's document is not there: the head has moved on, or the commit is not published yet.
async fn text_of(core: &Core, call: Call, instance: &str, stored: &Stored) -> Result<Option<String>, Fault> {
    match (&stored.inline, &stored.document) {
        (Some(text), _) => Ok(Some(text.clone())),
        (None, Some(id)) => {
            let found = value(core, call, instance, id).await?;
            if found.is_none() {
                finish_commits(core, call, instance).await?;
            }
            Ok(found)
        }
        (None, None) => Ok(Some(String::new())),
    }
}

/// Sizes of the current execution's history and of the key-values.
pub(crate) async fn stats(core: &Core, instance: &str) -> Result<Option<SystemStats>, ProviderError> {
    const OPERATION: &str = "get_instance_stats";
    let call = core.store.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, instance);
    let Some(head) = visible_head(core, call, instance).await.map_err(surface)? else { return Ok(None) };
    let mut head = head.document.clone();
    if head.is_legacy() {
        let partition = Partition {
            head: Some(crate::documents::Tagged { document: head.clone(), etag: String::new() }),
            ..Partition::default()
        };
        let history = load::history(core, call, instance, &partition).await.map_err(surface)?;
        if let Err(error) = &history.events {
            return Err(ProviderError::permanent(OPERATION, format!("Instance {instance:?}: {error}.")));
        }
        let values = LegacyValues::read(core, call, instance).await.map_err(surface)?;
        head = head.adopted(history.legacy_start, values.cells);
    }
    let visible: Vec<&Stored> = head.kv.values().filter_map(merged).collect();
    Ok(Some(SystemStats {
        history_event_count: head.event_count,
        history_size_bytes: head.event_bytes,
        queue_pending_count: head.carry_forward,
        kv_user_key_count: visible.len() as u64,
        kv_total_value_bytes: visible.iter().fold(0, |all: u64, stored| all.saturating_add(stored.bytes)),
    }))
}

fn moving(operation: &str, instance: &str) -> ProviderError {
    ProviderError::retryable(
        operation,
        format!("Instance {instance:?} changed with every look at it; try again."),
    )
}

const TRIES_MAX: usize = 4;
