//! Processors of their own for client and server, so that one does not slow the other down.

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which processors are whose.
#[derive(Clone, Debug)]
pub struct Cores {
    /// The first half.
    pub client: Vec<usize>,
    /// The others; the same one where there is only one.
    pub server: Vec<usize>,
}

impl Cores {
    /// Shares out the processors this thread may use.
    pub fn divide() -> anyhow::Result<Self> {
        let allowed = sched_getaffinity(None).context("which processors there are")?;
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        if all.len() < 2 {
            return Ok(Self { client: all.clone(), server: all });
        }
        let (client, server) = all.split_at(all.len() / 2);
        Ok(Self { client: client.to_vec(), server: server.to_vec() })
    }
}

/// Binds this thread, and those it starts from now on, to these processors.
pub fn bind(cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).context("binding to processors")
}
