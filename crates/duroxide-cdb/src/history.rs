//! Reading instances. Hot: a waiting client asks ten times a second, and every activity asks when it starts. What is
//! known is validated with the head's ETag, so an unchanged instance costs one request that carries no body, and nothing
//! at all right after the claim of an activity, which brought the head along. Readers of one instance share one request
//! at a time (`looks.rs`); while the account throttles, also what one of them was told a moment ago.

use std::collections::HashMap;
use std::sync::Arc;

use duroxide::Event;
use duroxide::providers::ProviderError;

use crate::cache::Known;
use crate::core::Core;
use crate::documents::{self, FORMAT_VERSION, Head, LegacyStart, Manifest, Tagged, ids, pack};
use crate::error::{Fault, Trouble};
use crate::load::{self, LegacyValues, Partition};
use crate::queries::{self, Query};
use crate::staging::publish;
use crate::store::{Call, Op, Read, decode};

/// The head of an instance, if it is one that listings show.
pub(crate) async fn visible_head(
    core: &Core,
    call: Call,
    instance: &str,
) -> Result<Option<Arc<Tagged<Head>>>, Fault> {
    if ids::refusal(instance).is_some() {
        return Ok(None);
    }
    // While the account throttles, those who wait for an instance share what one of them was told a moment ago.
    let now = core.clock.instant();
    if let Some(head) = core.cache.looked_at(instance, core.store.pause(), now) {
        return Ok(head.filter(|head| head.document.is_visible()));
    }
    let head = core.looks.share(instance, call.remaining() / 2, || look(core, call, instance)).await?;
    Ok(head.filter(|head| head.document.is_visible()))
}

/// Asks the account for the head of an instance, unless it is the one that is known.
async fn look(core: &Core, call: Call, instance: &str) -> Result<Option<Arc<Tagged<Head>>>, Fault> {
    let asked = core.clock.instant();
    let known = core.cache.get(instance);
    let etag = known.as_ref().map(|known| known.head.etag.as_str());
    let answer = core.store.patient(call).read(instance, &ids::head(instance), etag).await?;
    core.cache.unsee(instance);
    match answer {
        Read::NotModified => {
            core.cache.look(instance, etag, asked);
            Ok(known.map(|known| known.head))
        }
        Read::Missing => {
            core.cache.forget(instance);
            core.cache.look(instance, None, asked);
            Ok(None)
        }
        Read::Found { body, etag } => {
            let head: Head = decode(&body)?;
            core.cache.relock(instance, &head, &etag);
            core.cache.look(instance, Some(&etag), asked);
            Ok(Some(Arc::new(Tagged { document: head, etag })))
        }
    }
}

/// The events of an instance's latest execution; none if there is no such instance.
pub(crate) async fn read(
    core: &Core,
    operation: &'static str,
    instance: &str,
) -> Result<Vec<Event>, ProviderError> {
    let seen = core.cache.take_seen(instance, core.clock.instant());
    read_under(core, operation, instance, seen.filter(|head| head.document.is_visible())).await
}

/// The same, beginning with a head that was read a moment ago.
async fn read_under(
    core: &Core,
    operation: &'static str,
    instance: &str,
    mut head: Option<Arc<Tagged<Head>>>,
) -> Result<Vec<Event>, ProviderError> {
    let call = core.store.call(operation);
    let surface = |fault: Fault| fault.surface(operation, instance);
    let mut last = String::new();
    for _ in 0..TRIES_MAX {
        let head = match head.take() {
            Some(head) => head,
            None => match visible_head(core, call, instance).await.map_err(surface)? {
                Some(head) => head,
                None => return Ok(Vec::new()),
            },
        };
        let known = core.cache.get(instance).filter(|known| {
            let (old, new) = (&known.head.document, &head.document);
            old.incarnation == new.incarnation && old.current_execution_id == new.current_execution_id
        });
        if let Some(known) = &known
            && known.events.len() as u64 == head.document.event_count
        {
            return Ok(Vec::clone(&known.events));
        }
        match current_events(core, call, instance, &head, known).await.map_err(surface)? {
            Ok(events) => return Ok(events),
            Err(error) => last = error,
        }
        // Either a commit is not published yet, or one happened between the two reads.
        finish_commits(core, call, instance).await.map_err(surface)?;
    }
    Err(ProviderError::permanent(
        operation,
        format!("The history of instance {instance:?} cannot be read: {last}."),
    ))
}

async fn current_events(
    core: &Core,
    call: Call,
    instance: &str,
    head: &Arc<Tagged<Head>>,
    known: Option<Known>,
) -> Result<Result<Vec<Event>, String>, Fault> {
    let mut partition = Partition { head: Some(Tagged::clone(head)), known, ..Partition::default() };
    let is_in_documents = |known: &&Known| {
        (known.in_documents() + head.document.events.len()) as u64 != head.document.event_count
    };
    if let Some(known) = partition.known.as_ref().filter(is_in_documents) {
        let query = Query::new(queries::HISTORY)
            .with("@exec", head.document.current_execution_id)
            .with("@after", known.head.document.last_event_in_documents());
        let rows = core.store.patient(call).query(instance, &query).await?;
        partition.history = rows.iter().map(|row| decode(row.get().as_bytes())).collect::<Result<_, _>>()?;
    }
    let events = load::history(core, call, instance, &partition).await?.events;
    if let Ok(events) = &events
        && !head.document.is_legacy()
    {
        let values = partition.known.map_or_else(Arc::default, |known| known.values);
        let known = Known { head: Arc::clone(head), events: Arc::new(events.clone()), values, upto: None };
        core.cache.put(instance, known);
    }
    Ok(events)
}

/// Finishes commits of an instance that are not published yet.
pub(crate) async fn finish_commits(core: &Core, call: Call, instance: &str) -> Result<(), Fault> {
    let query = Query::new(queries::MANIFESTS);
    let rows = core.store.patient(call).query(instance, &query).await?;
    for row in rows {
        let manifest: Manifest = decode(row.get().as_bytes())?;
        publish::publish(core.staging(), call, &manifest, None).await?;
    }
    Ok(())
}

/// The events of one execution.
pub(crate) async fn read_execution(
    core: &Core,
    operation: &'static str,
    instance: &str,
    execution: u64,
) -> Result<Vec<Event>, ProviderError> {
    if ids::refusal(instance).is_some() {
        return Ok(Vec::new());
    }
    let call = core.store.call(operation);
    let surface = |fault: Fault| fault.surface(operation, instance);
    let head = visible_head(core, call, instance).await.map_err(surface)?;
    if let Some(head) = head.filter(|head| head.document.current_execution_id == execution) {
        return read_under(core, operation, instance, Some(head)).await;
    }
    finish_commits(core, call, instance).await.map_err(surface)?;
    let texts = load::read_texts(core, call, instance, execution, u64::MAX).await.map_err(surface)?;
    documents::decode(&texts).map_err(|error| {
        ProviderError::permanent(
            operation,
            format!("Execution {execution} of instance {instance:?}: {error}."),
        )
    })
}

/// Appends events as they are given, outside any turn.
pub(crate) async fn append(
    core: &Core,
    instance: &str,
    execution: u64,
    events: &[Event],
) -> Result<(), ProviderError> {
    const OPERATION: &str = "append_with_execution";
    let call = core.store.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, instance);
    let refused = |error: serde_json::Error| surface(error.into());
    let texts = events
        .iter()
        .map(|event| serde_json::to_string(event).map(|text| (event.event_id, text)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(refused)?;
    loop {
        let found = core.store.patient(call).head(instance).await.map_err(surface)?;
        let mut head = match &found {
            Some(found) if found.document.is_legacy() => {
                let partition = Partition { head: Some(found.clone()), ..Partition::default() };
                let start =
                    load::history(core, call, instance, &partition).await.map_err(surface)?.legacy_start;
                let values = LegacyValues::read(core, call, instance).await.map_err(surface)?;
                found.document.clone().adopted(start, values.cells)
            }
            Some(found) => found.document.clone(),
            None => Head::unstarted(instance, core.clock.now_ms()),
        };
        let mut chunks = documents::Chunks::new(&uuid::Uuid::new_v4().simple().to_string());
        head.turn = head.turn.saturating_add(1);
        head.format_version = FORMAT_VERSION;
        head.ttl = None;
        let mut segments = Vec::new();
        if !head.started || execution > head.current_execution_id {
            segments = head.move_events_out(&mut chunks);
            head.started = true;
            head.current_execution_id = execution;
            head.execution_count = head.execution_count.saturating_add(1);
            (head.last_event_id, head.event_count, head.event_bytes, head.carry_forward) = (0, 0, 0, 0);
        }
        let is_there = |id: u64| {
            execution == head.current_execution_id && head.event_count > 0 && id <= head.last_event_id
        };
        if let Some((id, _)) = texts.iter().find(|(id, _)| is_there(*id)) {
            let message = format!("Duplicate event id {id}: history has it already; nothing was written");
            return Err(surface(Fault::refused(message)));
        }
        head.total_event_count = head.total_event_count.saturating_add(texts.len() as u64);
        segments.extend(if execution == head.current_execution_id {
            count(&mut head, events, &texts);
            head.append(&texts, &mut chunks)
        } else {
            pack(instance, execution, head.turn, &texts, &mut chunks)
        });
        let mut ops = vec![match &found {
            Some(found) => Op::replace(&head.id, &head, Some(&found.etag)),
            None => Op::create(&head),
        }];
        ops.extend(segments.iter().map(Op::create));
        let mut ops = ops.into_iter().collect::<Result<Vec<_>, _>>().map_err(refused)?;
        if !chunks.parts().is_empty() {
            let sweep_at = core.clock.now_ms() + crate::staging::layout::PREPARING_MS;
            let mark = Manifest::prepared(instance, chunks.commit(), 0, chunks.parts().len(), sweep_at);
            publish::prepare(&core.store, call.into(), &mark, &[], &chunks).await.map_err(surface)?;
            ops.push(Op::delete(&mark.id, None));
        }
        match core.store.patient(call).batch(instance, &ops).await {
            Ok(_) => {
                core.cache.forget(instance);
                return Ok(());
            }
            Err(fault) if fault.trouble == Trouble::Changed || fault.index == Some(0) => {}
            Err(fault) => return Err(surface(fault)),
        }
    }
}

fn count(head: &mut Head, events: &[Event], texts: &[(u64, String)]) {
    let start = LegacyStart {
        last_event_id: events.iter().map(|event| event.event_id).max().unwrap_or(0).max(head.last_event_id),
        event_count: head.event_count.saturating_add(texts.len() as u64),
        event_bytes: head.event_bytes.saturating_add(texts.iter().map(|(_, text)| text.len() as u64).sum()),
        carry_forward: if head.event_count == 0 { load::carried(events) } else { head.carry_forward },
    };
    head.last_event_id = start.last_event_id;
    head.event_count = start.event_count;
    head.event_bytes = start.event_bytes;
    head.carry_forward = start.carry_forward;
}

/// A value the head points to, from memory or with one read.
pub(crate) async fn value(
    core: &Core,
    call: Call,
    instance: &str,
    id: &str,
) -> Result<Option<String>, Fault> {
    if let Some(value) = core.cache.get(instance).and_then(|known| known.values.get(id).cloned()) {
        return Ok(Some(value));
    }
    let Some(text) = load::value(core, call, instance, id).await? else { return Ok(None) };
    if let Some(known) = core.cache.get(instance) {
        let mut values = HashMap::clone(&known.values);
        values.insert(id.to_owned(), text.clone());
        core.cache.put(instance, Known { values: Arc::new(values), ..known });
    }
    Ok(Some(text))
}

const TRIES_MAX: usize = 4;
