//! The provider's documents in words. What they hold is the provider's to say: [`duroxide_cdb::inspect`].

pub(crate) use duroxide_cdb::inspect::{
    DeadLetter, Head, Intent, KINDS, Manifest, Partition, Queued, legible, text_of, type_of,
};
pub(crate) use duroxide_cdb::kind;
use serde_json::Value;

/// A message, told in words.
pub(crate) trait InWords {
    /// What it is.
    fn describe(&self) -> String;
}

impl InWords for Queued {
    fn describe(&self) -> String {
        let (variant, fields) = self.item();
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or_default();
        match variant.as_str() {
            "StartOrchestration" => format!("start of {}", text("orchestration")),
            "ContinueAsNew" => format!("next execution of {}", text("orchestration")),
            "ActivityExecute" => format!("activity {}", text("name")),
            "ActivityCompleted" => format!("result of activity #{}", number("id")),
            "ActivityFailed" => format!("failure of activity #{}", number("id")),
            "TimerFired" => format!("timer #{}", number("id")),
            "ExternalRaised" => format!("event {:?}", text("name")),
            "QueueMessage" => format!("queue message {:?}", text("name")),
            "SubOrchCompleted" => format!("result of sub-orchestration #{}", number("parent_id")),
            "SubOrchFailed" => format!("failure of sub-orchestration #{}", number("parent_id")),
            "CancelInstance" => "cancel request".to_owned(),
            "" => "something too large to look into".to_owned(),
            other => other.to_owned(),
        }
    }
}

impl InWords for DeadLetter {
    fn describe(&self) -> String {
        serde_json::from_value::<Queued>(self.document.clone()).unwrap_or_default().describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_are_told_in_words() {
        let queued = |item: Value| Queued { work_item: item.to_string(), ..Queued::default() };
        let start =
            queued(json!({"StartOrchestration": {"instance": "a", "orchestration": "Bake", "input": ""}}));
        assert_eq!(start.describe(), "start of Bake");
        let raised = queued(json!({"ExternalRaised": {"instance": "a", "name": "yes", "data": ""}}));
        assert_eq!(raised.describe(), "event \"yes\"");
        assert_eq!(Queued::default().describe(), "something too large to look into");
    }
}
