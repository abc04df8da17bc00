//! The orchestrations that samples and fault sweeps run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{
    ActivityContext, BackoffStrategy, Client, Either2, OrchestrationContext, OrchestrationRegistry,
    OrchestrationStatus, RetryPolicy, TagFilter,
};
use duroxide_cdb::CosmosDBProvider;

use crate::effects::Effects;
use crate::world::noise;

/// An activity whose every run is noted.
fn noted<F, T>(
    effects: &Arc<Effects>,
    activity: F,
) -> impl Fn(ActivityContext, String) -> T + Send + Sync + use<F, T>
where
    F: Fn(ActivityContext, String) -> T + Send + Sync,
{
    let effects = Arc::clone(effects);
    move |context, input| {
        effects.begin(&context, &input);
        activity(context, input)
    }
}

pub(crate) fn activities(effects: &Arc<Effects>) -> ActivityRegistry {
    let flaky = Arc::clone(effects);
    let patient = Arc::clone(effects);
    ActivityRegistry::builder()
        .register("Echo", noted(effects, |_: ActivityContext, input: String| async move { Ok(input) }))
        .register(
            "Greet",
            noted(effects, |_: ActivityContext, name: String| async move { Ok(format!("Hello, {name}!")) }),
        )
        .register(
            "Square",
            noted(effects, |_: ActivityContext, input: String| async move {
                let number: u64 = input.parse().map_err(|_| format!("{input:?} is not a number"))?;
                Ok((number * number).to_string())
            }),
        )
        .register(
            "Flaky",
            noted(effects, move |_: ActivityContext, input: String| {
                let left = flaky
                    .failures_left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                async move { if left.is_ok() { Err("not yet".to_owned()) } else { Ok(input) } }
            }),
        )
        .register(
            "Worker",
            noted(effects, |context: ActivityContext, _: String| async move {
                Ok(format!("{}@{}", context.session_id().unwrap_or("-"), context.worker_id()))
            }),
        )
        .register(
            "Tag",
            noted(effects, |context: ActivityContext, _: String| async move {
                Ok(context.tag().unwrap_or("untagged").to_owned())
            }),
        )
        .register(
            "Big",
            noted(effects, |_: ActivityContext, input: String| async move {
                let bytes: usize = input.parse().map_err(|_| "a size is needed".to_owned())?;
                Ok("b".repeat(bytes))
            }),
        )
        .register(
            "Noise",
            noted(effects, |_: ActivityContext, input: String| async move {
                let bytes: usize = input.parse().map_err(|_| "a size is needed".to_owned())?;
                Ok(noise(bytes))
            }),
        )
        .register(
            "UntilCancelled",
            noted(effects, move |context: ActivityContext, _: String| {
                let effects = Arc::clone(&patient);
                async move {
                    effects.waiting.fetch_add(1, Ordering::SeqCst);
                    context.cancelled().await;
                    effects.told.fetch_add(1, Ordering::SeqCst);
                    Ok("cancelled".to_owned())
                }
            }),
        )
        .register(
            "Doze",
            noted(effects, |_: ActivityContext, millis: String| async move {
                tokio::time::sleep(duration(&millis)?).await;
                Ok("dozed".to_owned())
            }),
        )
        .build()
}

pub(crate) fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("Hello", |context: OrchestrationContext, name: String| async move {
            context.schedule_activity("Greet", name).await
        })
        .register("Chain", |context: OrchestrationContext, input: String| async move {
            let mut value = input;
            for _ in 0..3 {
                value = context.schedule_activity("Square", value).await?;
            }
            Ok(value)
        })
        .register("LongChain", |context: OrchestrationContext, input: String| async move {
            let links: u64 = input.parse().map_err(|_| "a number of links is needed".to_owned())?;
            let mut value = String::from("1");
            for _ in 0..links {
                value = context.schedule_activity("Square", value).await?;
            }
            Ok(value)
        })
        .register("FanOut", |context: OrchestrationContext, input: String| async move {
            let width: u64 = input.parse().map_err(|_| "a width is needed".to_owned())?;
            let tasks = (0..width).map(|n| context.schedule_activity("Square", n.to_string())).collect();
            let mut sum = 0;
            for result in context.join(tasks).await {
                sum += result?.parse::<u64>().map_err(|error| error.to_string())?;
            }
            Ok(sum.to_string())
        })
        .register("Parent", |context: OrchestrationContext, input: String| async move {
            let children =
                input.split(',').map(|name| context.schedule_sub_orchestration("Hello", name)).collect();
            let greetings: Result<Vec<String>, String> = context.join(children).await.into_iter().collect();
            Ok(greetings?.join(" "))
        })
        .register("Patient", |context: OrchestrationContext, child: String| async move {
            match context.schedule_sub_orchestration_with_id("Hello", child, "x").await {
                Ok(greeting) => Ok(greeting),
                Err(reason) => Ok(reason),
            }
        })
        .register("Family", |context: OrchestrationContext, input: String| async move {
            let width: u64 = input.parse().map_err(|_| "a width is needed".to_owned())?;
            let children =
                (0..width).map(|n| context.schedule_sub_orchestration("Leaf", n.to_string())).collect();
            let mut sum = 0;
            for result in context.join(children).await {
                sum += result?.parse::<u64>().map_err(|error| error.to_string())?;
            }
            Ok(sum.to_string())
        })
        .register("Leaf", |_: OrchestrationContext, input: String| async move { Ok(input) })
        .register("Sleep", |context: OrchestrationContext, millis: String| async move {
            context.schedule_timer(duration(&millis)?).await;
            Ok("slept".to_owned())
        })
        // An activity and a turn, at the same time, that last so long.
        .register("Slow", |context: OrchestrationContext, millis: String| async move {
            let activity = context.schedule_activity("Doze", millis.clone());
            let child = context.schedule_sub_orchestration("Ponder", millis);
            let (dozed, pondered) = context.join2(activity, child).await;
            Ok(format!("{} and {}", dozed?, pondered?))
        })
        .register("Ponder", |context: OrchestrationContext, millis: String| async move {
            if !context.is_replaying() {
                let length = duration(&millis)?;
                tokio::task::block_in_place(|| std::thread::sleep(length));
            }
            Ok("pondered".to_owned())
        })
        .register("Timeout", |context: OrchestrationContext, _: String| async move {
            let event = context.schedule_wait("never");
            let timer = context.schedule_timer(Duration::from_millis(50));
            match context.select2(event, timer).await {
                Either2::First(data) => Ok(data),
                Either2::Second(()) => Ok("timed out".to_owned()),
            }
        })
        .register("Approval", |context: OrchestrationContext, _: String| async move {
            Ok(format!("approved by {}", context.schedule_wait("approval").await))
        })
        .register("Mailbox", |context: OrchestrationContext, input: String| async move {
            let count: u64 = input.parse().map_err(|_| "a count is needed".to_owned())?;
            let mut letters = Vec::new();
            for _ in 0..count {
                letters.push(context.dequeue_event("mail").await);
            }
            Ok(letters.join(","))
        })
        // Reads so many letters, whose names end at a colon, and says how many it read more than once.
        .register("Census", |context: OrchestrationContext, input: String| async move {
            let count: usize = input.parse().map_err(|_| "a count is needed".to_owned())?;
            let mut names = std::collections::HashSet::new();
            for _ in 0..count {
                let letter: String = context.dequeue_event("mail").await;
                names.insert(letter.split(':').next().unwrap_or_default().to_owned());
            }
            Ok(format!("{} different, {} more than once", names.len(), count - names.len()))
        })
        .register("Nap", |context: OrchestrationContext, millis: String| async move {
            context.schedule_activity("Doze", millis).await
        })
        .register("Counter", |context: OrchestrationContext, input: String| async move {
            let (left, seen) = input.split_once('/').ok_or("left/seen is needed")?;
            let left: u64 = left.parse().map_err(|_| "a number is needed".to_owned())?;
            let letter = context.dequeue_event("mail").await;
            let seen = format!("{seen}{letter}");
            if left <= 1 {
                return Ok(seen);
            }
            context.continue_as_new(format!("{}/{seen}", left - 1)).await
        })
        .register("Retry", |context: OrchestrationContext, input: String| async move {
            let policy =
                RetryPolicy::new(5).with_backoff(BackoffStrategy::Fixed { delay: Duration::from_millis(10) });
            context.schedule_activity_with_retry("Flaky", input, policy).await
        })
        .register("Session", |context: OrchestrationContext, session: String| async move {
            let mut workers = Vec::new();
            // The first as in the histories that the public crate has left.
            for input in ["", "second", "third", "fourth"] {
                let worker = context.schedule_activity_on_session("Worker", input, session.clone());
                workers.push(worker.await?);
            }
            workers.dedup();
            Ok(workers.join(","))
        })
        .register("Tags", |context: OrchestrationContext, tag: String| async move {
            let plain = context.schedule_activity("Tag", "").await?;
            let tagged = context.schedule_activity("Tag", "").with_tag(tag).await?;
            Ok(format!("{plain},{tagged}"))
        })
        .register("Notes", |context: OrchestrationContext, input: String| async move {
            context.set_kv_value("path/like key 🦀", input.clone());
            context.set_kv_value("doomed", "x");
            context.schedule_activity("Echo", "").await?;
            context.clear_kv_value("doomed");
            context.set_custom_status("noted");
            Ok(context.get_kv_value("path/like key 🦀").unwrap_or_default())
        })
        .register("PlainNotes", |context: OrchestrationContext, input: String| async move {
            context.set_kv_value("plain", input.clone());
            context.set_kv_value("doomed", "x");
            context.schedule_activity("Echo", "").await?;
            context.clear_kv_value("doomed");
            context.set_custom_status("noted");
            Ok(context.get_kv_value("plain").unwrap_or_default())
        })
        .register("ManyNotes", |context: OrchestrationContext, input: String| async move {
            let (keys, bytes) = input.split_once('x').ok_or("keys x bytes is needed")?;
            let keys: usize = keys.parse().map_err(|_| "keys".to_owned())?;
            let bytes: usize = bytes.parse().map_err(|_| "bytes".to_owned())?;
            for key in 0..keys {
                context.set_kv_value(format!("k{key}"), "v".repeat(bytes));
            }
            context.schedule_activity("Echo", "").await?;
            Ok(context.get_kv_length().to_string())
        })
        .register("Detach", |context: OrchestrationContext, input: String| async move {
            context.schedule_orchestration("Hello", input.clone(), input);
            Ok("started".to_owned())
        })
        .register("BigResult", |context: OrchestrationContext, input: String| async move {
            let result = context.schedule_activity("Big", input).await?;
            Ok(format!("{}:{}", result.len(), result.bytes().all(|byte| byte == b'b')))
        })
        .register("NoiseResult", |context: OrchestrationContext, input: String| async move {
            let bytes: usize = input.parse().map_err(|_| "a size is needed".to_owned())?;
            let result = context.schedule_activity("Noise", input).await?;
            Ok(format!("{}:{}", result.len(), result == noise(bytes)))
        })
        .register("BigPass", |context: OrchestrationContext, input: String| async move {
            let result = context.schedule_sub_orchestration("BigChild", input).await?;
            Ok(result.len().to_string())
        })
        .register("BigChild", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Big", input).await
        })
        .register("Long", |context: OrchestrationContext, input: String| async move {
            let rounds: u64 = input.parse().map_err(|_| "rounds".to_owned())?;
            for round in 0..rounds {
                let numbers = round * 50..(round + 1) * 50;
                let tasks = numbers.map(|n| context.schedule_activity("Square", n.to_string())).collect();
                for result in context.join(tasks).await {
                    result?;
                }
            }
            Ok("done".to_owned())
        })
        .register("Stuck", |context: OrchestrationContext, _: String| async move {
            context.schedule_activity("UntilCancelled", "").await
        })
        .register("Versioned", |_: OrchestrationContext, _: String| async move { Ok("one".to_owned()) })
        .register_versioned("Versioned", "2.0.0", |_: OrchestrationContext, _: String| async move {
            Ok("two".to_owned())
        })
        .build()
}

fn duration(millis: &str) -> Result<Duration, String> {
    millis.parse().map(Duration::from_millis).map_err(|_| "a duration is needed".to_owned())
}

/// Options of a runtime that looks for work quickly and locks shortly.
pub(crate) fn options(lock: Duration) -> RuntimeOptions {
    RuntimeOptions {
        dispatcher_min_poll_interval: Duration::from_millis(10),
        dispatcher_long_poll_timeout: Duration::from_secs(2),
        orchestrator_lock_timeout: lock,
        orchestrator_lock_renewal_buffer: lock / 4,
        worker_lock_timeout: lock,
        worker_lock_renewal_buffer: lock / 4,
        worker_tag_filter: TagFilter::default_and(["gpu"]),
        worker_node_id: Some("node".to_owned()),
        ..RuntimeOptions::default()
    }
}

/// A runtime and a client on one provider.
pub(crate) struct Machine {
    pub(crate) client: Client,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) effects: Arc<Effects>,
}

impl Machine {
    pub(crate) async fn start(provider: CosmosDBProvider, options: RuntimeOptions) -> Self {
        let effects = Arc::new(Effects::default());
        Self::with_effects(provider, options, effects).await
    }

    pub(crate) async fn with_effects(
        provider: CosmosDBProvider,
        options: RuntimeOptions,
        effects: Arc<Effects>,
    ) -> Self {
        let provider = Arc::new(provider);
        let runtime =
            Runtime::start_with_options(provider.clone(), activities(&effects), orchestrations(), options)
                .await;
        Self { client: Client::new(provider), runtime, effects }
    }

    /// Starts an orchestration and waits for its output.
    pub(crate) async fn run(&self, instance: &str, name: &str, input: &str) -> String {
        self.client.start_orchestration(instance, name, input).await.unwrap();
        self.output(instance).await
    }

    /// Waits for the output of an orchestration.
    pub(crate) async fn output(&self, instance: &str) -> String {
        match self.client.wait_for_orchestration(instance, Duration::from_secs(400)).await.unwrap() {
            OrchestrationStatus::Completed { output, .. } => output,
            other => panic!("{instance} ended as {other:?}"),
        }
    }

    pub(crate) async fn stop(self) {
        self.runtime.shutdown(Some(200)).await;
    }

    /// Ends without a goodbye.
    pub(crate) async fn die(self) {
        self.runtime.shutdown(Some(0)).await;
    }
}
