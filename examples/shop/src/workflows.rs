//! The workflows. They decide and wait; everything else is in activities.
//!
//! A version that has run somewhere is never changed: its histories are replayed by the code of that version. What is new
//! gets a new version beside it, and the old one goes when `cdb instances --of-version 1.0.0 --status running` is empty.

use std::time::Duration;

use duroxide::{BackoffStrategy, Either2, OrchestrationContext, OrchestrationRegistry, RetryPolicy};
use serde::{Deserialize, Serialize};

/// The name of the workflow.
pub const ORDER: &str = "order";
/// The event that says that an order is packed.
pub const PACKED: &str = "packed";
/// So long an order waits to be packed.
pub const PACK_WITHIN: Duration = Duration::from_secs(2 * 24 * 3600);
/// So long after shipping the customer is asked.
pub const ASK_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a customer wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// What.
    pub item: String,
    /// How many.
    pub count: u32,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The carrier's number.
    pub shipment: String,
    /// Who packed it.
    pub packed_by: String,
}

/// Which workflows a build of the worker knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Orders of version 1.0.0.
    First,
    /// Those and orders of version 1.1.0.
    Second,
}

/// The workflows of a release. New orders get the highest version that the worker which takes them knows.
#[must_use]
pub fn orchestrations(release: Release) -> OrchestrationRegistry {
    let builder = OrchestrationRegistry::builder().register_versioned_typed(ORDER, "1.0.0", order_1_0);
    match release {
        Release::First => builder.build(),
        Release::Second => builder.register_versioned_typed(ORDER, "1.1.0", order_1_1).build(),
    }
}

async fn order_1_0(context: OrchestrationContext, order: Order) -> Result<Receipt, String> {
    sell(&context, &order).await
}

async fn order_1_1(context: OrchestrationContext, order: Order) -> Result<Receipt, String> {
    let receipt = sell(&context, &order).await?;
    context.set_custom_status("shipped");
    context.schedule_timer(ASK_AFTER).await;
    context.schedule_activity("Ask", receipt.shipment.as_str()).await?;
    Ok(receipt)
}

/// What both versions do. A change in here would be a change of 1.0.0 as well.
async fn sell(context: &OrchestrationContext, order: &Order) -> Result<Receipt, String> {
    let what = format!("{} {}", order.count, order.item);
    context.set_custom_status("reserving");
    context.schedule_activity("Reserve", what.as_str()).await?;
    context.set_custom_status("charging");
    let retry =
        RetryPolicy::new(3).with_backoff(BackoffStrategy::Fixed { delay: Duration::from_millis(200) });
    if let Err(error) = context.schedule_activity_with_retry("Charge", what.as_str(), retry).await {
        context.schedule_activity("Release", what).await?;
        return Err(error);
    }
    context.set_custom_status("packing");
    let packed = context.schedule_wait(PACKED);
    let late = context.schedule_timer(PACK_WITHIN);
    let packed_by = match context.select2(packed, late).await {
        Either2::First(packed_by) => packed_by,
        Either2::Second(()) => {
            context.schedule_activity("Refund", what.as_str()).await?;
            context.schedule_activity("Release", what.as_str()).await?;
            return Err(format!("nobody packed {what} within two days"));
        }
    };
    context.set_custom_status("shipping");
    let shipment = context.schedule_activity("Ship", what).await?;
    Ok(Receipt { shipment, packed_by })
}
