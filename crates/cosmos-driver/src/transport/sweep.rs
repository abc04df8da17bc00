//! The background sweep over all pools; it stops when the transport is dropped.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use super::cpu::Cpu;

#[derive(Debug)]
pub(super) struct Sweeper(JoinHandle<()>);

impl Sweeper {
    pub(super) fn start(shared: &Arc<Shared>, every: Duration) -> Self {
        Self(tokio::spawn(run(Arc::downgrade(shared), every)))
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(shared: Weak<Shared>, every: Duration) {
    let mut cpu = Cpu::default();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        // How busy this machine is says nothing about a transport that may not even be on it.
        let load =
            if shared.connector.has_sockets() { cpu.load_since_last(shared.clock.now()) } else { None };
        sweep(&shared, load);
    }
}

/// One pass over every pool. `cpu` is the machine's load as a fraction, where it can be known.
pub(super) fn sweep(shared: &Shared, cpu: Option<f64>) {
    let is_busy_machine = cpu.is_some_and(|load| load > shared.sharding.cpu_guard);
    for pool in shared.pools.load().iter() {
        pool.sweep(is_busy_machine);
    }
}
