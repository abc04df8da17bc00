//! A fixed sample of worlds; `cargo run -p cosmos-sim` runs as many as you like.

mod dependencies;
mod named;
#[cfg(target_os = "linux")]
mod repeated;
mod tidy;
#[cfg(unix)]
mod workers;

async fn world(seed: u64) {
    let outcome = cosmos_sim::real::run(seed).await.expect("the world can be built");
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
        let plan = cosmos_sim::real::Plan::of(*seed);
        plan.crashes.iter().any(|(_, crash)| *crash == cosmos_sim::real::Crash::Server)
    });
    world(seed.expect("one plan in three kills the server")).await;
}

/// The tenth world runs in a process of its own, which is killed.
#[test]
fn the_emulator_keeps_its_promises_through_splits_failovers_outages_and_kills() {
    let soak = cosmos_sim::soak::Soak { program: Some(env!("CARGO_BIN_EXE_cosmos-sim").into()) };
    let mut total = cosmos_sim::soak::Counts::default();
    for seed in [1, 3, 5, 7, 10, 11] {
        let soaked = soak.run(seed).expect("the world can be built");
        let history = soaked.history.join("\n  ");
        assert!(soaked.finding.is_none(), "seed {seed}: {:?}\n{}\n  {history}", soaked.finding, soaked.world);
        total = total.plus(soaked.counts);
    }
    assert!(
        total.reshapings > 0 && total.failovers > 0 && total.outages > 0 && total.restarts > 0,
        "{total:?}"
    );
}
