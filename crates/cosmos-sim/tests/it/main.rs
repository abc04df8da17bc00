//! A fixed sample of worlds; `cargo run -p cosmos-sim` runs as many as you like.

async fn world(seed: u64) {
    let outcome = cosmos_sim::run(seed).await.expect("the world can be built");
    assert!(outcome.findings.is_empty(), "seed {seed}: {:#?}", outcome.findings);
    assert!(outcome.faults > 0, "seed {seed}: nothing was broken, so nothing was shown");
}

#[tokio::test]
async fn work_completes_through_faults_and_dying_processes() {
    world(1).await;
}

#[tokio::test]
async fn work_completes_through_restarts_of_the_server() {
    // The first seed from here on whose plan kills the server.
    let seed = (2..).find(|seed| {
        let plan = cosmos_sim::Plan::of(*seed);
        plan.crashes.iter().any(|(_, crash)| *crash == cosmos_sim::Crash::Server)
    });
    world(seed.expect("one plan in three kills the server")).await;
}
