//! The client: takes orders, tells of packed ones, and says what became of them. It runs no workflow.

use std::process::ExitCode;
use std::time::Duration;

use duroxide::{Client, OrchestrationStatus};
use shop::{ORDER, Order, PACKED, Receipt, Settings};

const USAGE: &str = "\
shop order ITEM COUNT [ID]   take an order; prints its id
shop packed ID [WHO]         say that it is packed
shop status ID               what became of it so far
shop wait ID [SECONDS]       wait for its end (30)";

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match Box::pin(run(&words.iter().map(String::as_str).collect::<Vec<_>>())).await {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(text) => {
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

async fn run(words: &[&str]) -> Result<String, String> {
    let client = match words {
        ["order" | "packed" | "status" | "wait", _, ..] => Client::new(Settings::from_env()?.open().await?),
        _ => return Err(USAGE.to_owned()),
    };
    match words {
        ["order", item, count, rest @ ..] => {
            let count = count.parse().map_err(|_| format!("{count:?} is no number"))?;
            // The caller may choose the id: who sends the same order twice then has one order.
            let id =
                rest.first().map_or_else(|| format!("order-{}", uuid::Uuid::new_v4()), |id| (*id).to_owned());
            let order = Order { item: (*item).to_owned(), count };
            client.start_orchestration_typed(&id, ORDER, order).await.map_err(told)?;
            Ok(id)
        }
        ["packed", id, rest @ ..] => {
            let who = rest.first().copied().unwrap_or("somebody");
            client.raise_event(*id, PACKED, who).await.map_err(told)?;
            Ok(format!("{id} is told"))
        }
        ["status", id] => Ok(describe(&client.get_orchestration_status(id).await.map_err(told)?)),
        ["wait", id, rest @ ..] => {
            let seconds = rest.first().map_or(Ok(30), |text| text.parse()).map_err(|_| USAGE.to_owned())?;
            let limit = Duration::from_secs(seconds);
            match client.wait_for_orchestration_typed::<Receipt>(id, limit).await.map_err(told)? {
                Ok(receipt) => Ok(format!("{} packed by {}", receipt.shipment, receipt.packed_by)),
                Err(error) => Err(format!("{id} failed: {error}")),
            }
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn describe(status: &OrchestrationStatus) -> String {
    match status {
        OrchestrationStatus::NotFound => "not begun, or not there".to_owned(),
        OrchestrationStatus::Running { custom_status, .. } => {
            format!("running: {}", custom_status.as_deref().unwrap_or("no status"))
        }
        OrchestrationStatus::Completed { output, .. } => format!("completed: {output}"),
        OrchestrationStatus::Failed { details, .. } => format!("failed: {}", details.display_message()),
    }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[allow(clippy::print_stdout, reason = "that is what it is for")]
fn print(text: &str) {
    println!("{text}");
}

#[allow(clippy::print_stderr, reason = "that is what it is for")]
fn complain(text: &str) {
    eprintln!("shop: {text}");
}
