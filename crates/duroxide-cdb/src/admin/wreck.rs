//! Heads that cannot be read, as far as removing their instances needs them.

use serde::Deserialize;

use crate::core::Core;
use crate::documents::{Head, Tagged, ids, lenient};
use crate::error::Fault;
use crate::store::{Call, Read, decode};

/// The head of an instance that is to be removed. For one that cannot be read there is another in its place, of which
/// only its name and its parent are true; the fence puts it over the original, whose text it keeps.
pub(super) async fn head(core: &Core, call: Call, instance: &str) -> Result<Option<Tagged<Head>>, Fault> {
    match core.store.patient(call).read(instance, &ids::head(instance), None).await? {
        Read::Found { body, etag } => {
            let document = decode(&body).unwrap_or_else(|_| stand_in(instance, &body, core.clock.now_ms()));
            Ok(Some(Tagged { document, etag }))
        }
        Read::NotModified | Read::Missing => Ok(None),
    }
}

fn stand_in(instance: &str, body: &[u8], now_ms: u64) -> Head {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Legible {
        #[serde(default, deserialize_with = "lenient")]
        parent_instance_id: Option<String>,
    }
    let Legible { parent_instance_id } = serde_json::from_slice(body).unwrap_or_default();
    // Twice as long inside another document it would not fit there any more; heads are a few kilobytes.
    let kept = if body.len() <= WRECK_BYTES_MAX {
        String::from_utf8_lossy(body).into_owned()
    } else {
        String::new()
    };
    Head { started: true, parent_instance_id, wreck: Some(kept), ..Head::unstarted(instance, now_ms) }
}

/// Reads what can be read of a head that cannot be.
#[cfg(any(fuzzing, test))]
pub(super) fn read(body: &[u8]) {
    let _ = stand_in("instance", body, 1);
}

const WRECK_BYTES_MAX: usize = 512 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_head_that_cannot_be_read_name_parent_and_text_are_kept() {
        let text = r#"{"id":"a:instance","createdAt":-1,"parentInstanceId":"p"}"#;
        let head = stand_in("a", text.as_bytes(), 7);
        assert!(head.is_visible(), "it counts as an instance");
        assert_eq!((head.id.as_str(), head.parent_instance_id.as_deref()), ("a:instance", Some("p")));
        assert_eq!(head.wreck.as_deref(), Some(text));
        let long = format!(r#"{{"createdAt":-1,"output":"{}"}}"#, "x".repeat(WRECK_BYTES_MAX));
        assert_eq!(stand_in("a", long.as_bytes(), 7).wreck.as_deref(), Some(""));
    }
}
