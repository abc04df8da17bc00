//! The workflows of the demo: a small bakery, one workflow per ability of the framework.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{
    ActivityContext, BackoffStrategy, Either2, OrchestrationContext, OrchestrationRegistry, RetryPolicy,
};

use super::board::Board;

/// What one workflow of the demo shows.
#[derive(Debug)]
pub(crate) struct Scenario {
    /// Last part of the instance id, and name of the orchestration.
    pub(crate) name: &'static str,
    /// What it shows, for the screen.
    pub(crate) shows: &'static str,
    /// Input of the orchestration.
    pub(crate) input: &'static str,
    /// Steps until it is done.
    pub(crate) steps: usize,
}

/// In starting order: the one with the most to do comes last, so that the others need not queue behind it.
pub(crate) static SCENARIOS: [Scenario; 8] = [
    Scenario { name: "order", shows: "sequence with retry", input: "12 rye loaves", steps: 3 },
    Scenario { name: "deliver", shows: "sub-orchestrations", input: "North,Harbour,Hill", steps: 3 },
    Scenario { name: "proof", shows: "durable timer", input: "12", steps: 1 },
    Scenario { name: "approve", shows: "external event", input: "wedding cake", steps: 1 },
    Scenario { name: "shift", shows: "continue-as-new", input: "1", steps: 4 },
    Scenario { name: "stock", shows: "key-value state", input: "flour,yeast,salt", steps: 3 },
    Scenario { name: "oven", shows: "session affinity", input: "4", steps: 4 },
    Scenario { name: "bake", shows: "fan-out / fan-in", input: "20", steps: 20 },
];

/// The event that `approve` waits for.
pub(crate) const APPROVAL: &str = "baker-says-yes";
/// Shifts until the day is over.
const SHIFTS: u32 = 4;
/// How often a card is tried.
const CHARGE_ATTEMPTS: u32 = 3;

/// Everything a worker does; each takes `pace`, as a real kitchen would take its time.
pub(crate) fn activities(board: &Arc<Board>, pace: Duration) -> ActivityRegistry {
    let kitchen = Kitchen { board: board.clone(), pace };
    let step = |kitchen: &Kitchen, done: fn(&ActivityContext, &str) -> String| {
        let kitchen = kitchen.clone();
        move |context: ActivityContext, input: String| {
            let kitchen = kitchen.clone();
            async move {
                let result = done(&context, &input);
                kitchen.work(&context).await;
                Ok(result)
            }
        }
    };
    let till = kitchen.clone();
    ActivityRegistry::builder()
        .register("Reserve", step(&kitchen, |_, what| format!("reserved {what}")))
        .register("Charge", move |context: ActivityContext, what: String| {
            let till = till.clone();
            async move { till.charge(&context, &what).await }
        })
        .register("Ship", step(&kitchen, |_, what| format!("shipped {what}")))
        .register("Bake", step(&kitchen, |_, number| format!("loaf {number}")))
        .register("Drive", step(&kitchen, |_, to| format!("{to} done")))
        .register("Count", step(&kitchen, |_, item| format!("{}", item.len() * 7)))
        .register(
            "Heat",
            step(&kitchen, |context, batch| {
                format!("batch {batch} in {}", context.session_id().unwrap_or("no session"))
            }),
        )
        .build()
}

/// Where work takes time and is counted.
#[derive(Clone)]
struct Kitchen {
    board: Arc<Board>,
    pace: Duration,
}

impl Kitchen {
    async fn work(&self, context: &ActivityContext) {
        tokio::time::sleep(self.pace).await;
        self.board.step_done(context.instance_id());
    }

    /// The first try of each order fails, so that there is something to retry.
    async fn charge(&self, context: &ActivityContext, what: &str) -> Result<String, String> {
        if self.board.is_first_failure(context.instance_id()) {
            tokio::time::sleep(self.pace / 4).await;
            return Err("the card terminal is busy".to_owned());
        }
        self.work(context).await;
        Ok(format!("receipt for {what}"))
    }
}

/// The workflows, by the names in [`SCENARIOS`]. `unit` is what one unit of the durable timer lasts.
pub(crate) fn orchestrations(board: &Arc<Board>, unit: Duration) -> OrchestrationRegistry {
    let builder = OrchestrationRegistry::builder()
        .register("order", watched(board, order))
        .register("bake", watched(board, bake))
        .register("deliver", watched(board, deliver))
        .register("route", route)
        .register("proof", watched(board, move |context, units| proof(context, units, unit)))
        .register("approve", watched(board, approve))
        .register("shift", watched(board, shift))
        .register("stock", watched(board, stock))
        .register("oven", watched(board, oven));
    builder.build()
}

/// Tells the board when a workflow has begun and when it has returned, so that the screen needs no polling.
fn watched<F, R>(
    board: &Arc<Board>,
    workflow: F,
) -> impl Fn(
    OrchestrationContext,
    String,
) -> std::pin::Pin<Box<dyn Future<Output = Result<String, String>> + Send>>
+ Send
+ Sync
+ 'static
where
    F: Fn(OrchestrationContext, String) -> R + Send + Sync + 'static,
    R: Future<Output = Result<String, String>> + Send + 'static,
{
    let board = board.clone();
    move |context, input| {
        let board = board.clone();
        let instance = context.instance_id();
        board.begun(&instance);
        let run = workflow(context, input);
        Box::pin(async move {
            let result = run.await;
            board.returned(&instance);
            result
        })
    }
}

async fn order(context: OrchestrationContext, what: String) -> Result<String, String> {
    context.set_custom_status("reserving");
    let reserved = context.schedule_activity("Reserve", what.as_str()).await?;
    context.set_custom_status("charging");
    let retry = RetryPolicy::new(CHARGE_ATTEMPTS)
        .with_backoff(BackoffStrategy::Fixed { delay: Duration::from_millis(200) });
    context.schedule_activity_with_retry("Charge", reserved, retry).await?;
    context.set_custom_status("shipping");
    context.schedule_activity("Ship", what).await
}

async fn bake(context: OrchestrationContext, count: String) -> Result<String, String> {
    let count: u32 = count.parse().map_err(|_| String::from("the input is a number"))?;
    let loaves = (1..=count).map(|number| context.schedule_activity("Bake", number.to_string())).collect();
    let baked = context.join(loaves).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{} loaves", baked.len()))
}

async fn deliver(context: OrchestrationContext, districts: String) -> Result<String, String> {
    let routes =
        districts.split(',').map(|district| context.schedule_sub_orchestration("route", district)).collect();
    let done = context.join(routes).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(done.join(", "))
}

async fn route(context: OrchestrationContext, district: String) -> Result<String, String> {
    context.schedule_activity("Drive", district).await
}

async fn proof(context: OrchestrationContext, units: String, unit: Duration) -> Result<String, String> {
    let units: u32 = units.parse().map_err(|_| String::from("the input is a number"))?;
    context.schedule_timer(unit * units).await;
    Ok("the dough has rested".to_owned())
}

async fn approve(context: OrchestrationContext, what: String) -> Result<String, String> {
    let approval = context.schedule_wait(APPROVAL);
    let timeout = context.schedule_timer(Duration::from_secs(3600));
    match context.select2(approval, timeout).await {
        Either2::First(by) => Ok(format!("{what} approved by {by}")),
        Either2::Second(()) => Err(format!("nobody approved {what} within an hour")),
    }
}

async fn shift(context: OrchestrationContext, number: String) -> Result<String, String> {
    let number: u32 = number.parse().map_err(|_| String::from("the input is a number"))?;
    context.schedule_activity("Bake", format!("of shift {number}")).await?;
    if number < SHIFTS {
        return context.continue_as_new((number + 1).to_string()).await;
    }
    Ok(format!("{number} shifts worked"))
}

async fn stock(context: OrchestrationContext, items: String) -> Result<String, String> {
    for item in items.split(',') {
        let count = context.schedule_activity("Count", item).await?;
        context.set_kv_value(item, count);
    }
    Ok(format!("{} items counted", context.get_kv_length()))
}

async fn oven(context: OrchestrationContext, batches: String) -> Result<String, String> {
    let batches: u32 = batches.parse().map_err(|_| String::from("the input is a number"))?;
    let session = format!("oven-of-{}", context.instance_id());
    let mut last = String::new();
    for batch in 1..=batches {
        last = context.schedule_activity_on_session("Heat", batch.to_string(), session.clone()).await?;
    }
    Ok(last)
}
