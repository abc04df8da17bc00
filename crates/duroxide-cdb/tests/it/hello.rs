//! The thinnest path: one orchestration, one activity, a real runtime.

use std::sync::Arc;
use std::time::Duration;

use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};

use crate::world::Store;

#[tokio::test]
async fn an_orchestration_with_one_activity_completes() {
    let provider = Arc::new(Store::default().provider().await);
    let activities = ActivityRegistry::builder()
        .register("Greet", |_: ActivityContext, name: String| async move { Ok(format!("Hello, {name}!")) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Hello", |context: OrchestrationContext, name: String| async move {
            context.schedule_activity("Greet", name).await
        })
        .build();
    let runtime = Runtime::start_with_store(provider.clone(), activities, orchestrations).await;
    let client = Client::new(provider);
    client.start_orchestration("hello-1", "Hello", "Rust").await.unwrap();
    let status = client.wait_for_orchestration("hello-1", Duration::from_secs(120)).await.unwrap();
    let OrchestrationStatus::Completed { output, .. } = status else { panic!("{status:?}") };
    assert_eq!(output, "Hello, Rust!");
    runtime.shutdown(None).await;
}
