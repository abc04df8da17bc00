//! Names of every kind are data and never part of a path, a header or a query text.

use duroxide::TagFilter;
use duroxide::providers::{Provider as _, ProviderAdmin as _, SessionFetchConfig};
use duroxide::{Event, EventKind};

use super::{LOCK, NOW, commit, of_session, place};
use crate::world::{event, named, start};

fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "tenant/42",
        "back\\slash",
        "o'brien \"quoted\"",
        "a?b#c",
        "line\nbreak\u{7f}",
        "🦀",
        " ",
        "%2F",
        "a:b",
    ]
    .map(str::to_owned)
    .into();
    names.push("x".repeat(2000));
    names
}

#[tokio::test]
async fn any_name_is_a_child_a_key_and_a_session() {
    let place = place().await;
    let provider = &place.provider;
    for (number, name) in names().iter().enumerate() {
        let parent = format!("parent{number}");
        provider.enqueue_for_orchestrator(start(&parent, "Hello", ""), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let set = EventKind::KeyValueSet { key: name.clone(), value: name.clone(), last_updated_at_ms: 1 };
        let events = vec![event(&parent, 1), Event::with_event_id(2, parent.clone(), 1, None, set)];
        let (work, child) = (vec![of_session(&parent, 3, name)], vec![start(name, "Hello", "")]);
        provider.ack_orchestration_item(&token, 1, events, work, child, named(), vec![]).await.unwrap();

        let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        assert_eq!(item.instance, *name);
        commit(provider, &token, vec![event(name, 1)], named()).await.unwrap();
        assert_eq!(provider.get_kv_value(&parent, name).await.unwrap().as_ref(), Some(name));
        let owner = SessionFetchConfig { owner_id: "me".into(), lock_timeout: LOCK };
        let (_, token, _) =
            provider.fetch_work_item(LOCK, NOW, Some(&owner), &TagFilter::Any).await.unwrap().unwrap();
        provider.ack_work_item(&token, None).await.unwrap();
    }
    let other = place.other().await;
    let listed = other.list_instances().await.unwrap();
    for name in names() {
        assert!(listed.contains(&name), "{name:?}");
        assert_eq!(other.read(&name).await.unwrap().len(), 1, "{name:?}");
    }
}

#[tokio::test]
async fn an_empty_name_is_like_any_other() {
    let place = place().await;
    place.begin("").await;
    assert_eq!(place.provider.list_instances().await.unwrap(), [""]);
    assert_eq!(place.other().await.read("").await.unwrap().len(), 1);
}
