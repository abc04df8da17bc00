//! Who starts the work and waits for it: one process that never dies, on the same bad network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider as _, PruneOptions};
use duroxide::{Client, OrchestrationStatus};
use duroxide_cdb::CosmosDBProvider;

use super::net::{Network, ProcessId};
use super::plan::{Plan, WEATHER};
use super::process::settings;
use super::trace::Trace;
use super::watched::Witness;
use super::workload::{Effects, Expected, Job, Kind, LETTERBOX, OLD_VERSION, SIGNAL, WAITING};
use super::{PATIENCE, check, patience};

/// The client's number among the processes.
pub(crate) const CLIENT: ProcessId = 0;

/// The client of a world and the provider it uses.
pub(crate) struct Operator {
    provider: Arc<CosmosDBProvider>,
    client: Client,
    /// How long it waits for work to be done.
    patience: Duration,
}

/// The first connection, before the weather begins.
pub(crate) async fn connect(network: &Network, plan: &Plan) -> anyhow::Result<Operator> {
    let settings = settings(network, CLIENT, 0, plan.regions[0]);
    let provider = CosmosDBProvider::new_with_config(settings).await;
    let provider = Arc::new(provider.map_err(|error| anyhow::anyhow!("{error}"))?);
    let patience = WEATHER + patience(plan, PATIENCE);
    Ok(Operator { client: Client::new(provider.clone()), provider, patience })
}

/// Runs all jobs at once; says what did not come out as it must.
pub(crate) async fn drive(operator: &Operator, plan: &Plan, trace: &Trace, witness: &Witness) -> Vec<String> {
    let jobs = plan.jobs.iter().map(|job| async move {
        tokio::time::sleep(job.begins_at).await;
        let outcome = operator.bring_through(job, witness).await;
        let instance = job.instance();
        match &outcome {
            Ok(()) => trace.line(format_args!("job {instance} is done")),
            Err(finding) => trace.line(format_args!("job {instance} failed: {finding}")),
        }
        outcome.err().map(|finding| format!("{instance}: {finding}"))
    });
    join_all(jobs).await.into_iter().flatten().collect()
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pinned: Vec<_> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in pinned.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

impl Operator {
    /// A call that fails is not repeated: the provider has to bring it through.
    async fn bring_through(&self, job: &Job, witness: &Witness) -> Result<(), String> {
        witness.sent(&job.instance());
        self.start(job).await?;
        let instance = job.instance();
        match job.kind {
            Kind::Mailbox => {
                for letter in 0..job.size {
                    let sent = self.client.enqueue_event(&instance, LETTERBOX, letter.to_string()).await;
                    sent.map_err(|error| format!("letter {letter}: {error:?}"))?;
                }
            }
            Kind::Signal => {
                self.until_waiting(&instance).await?;
                self.client
                    .raise_event(&instance, SIGNAL, "now")
                    .await
                    .map_err(|e| format!("event: {e:?}"))?;
            }
            Kind::Cancelled => {
                self.until_waiting(&instance).await?;
                tokio::time::sleep(Duration::from_millis(300 * job.size as u64)).await;
                self.client
                    .cancel_instance(&instance, "enough")
                    .await
                    .map_err(|e| format!("cancel: {e:?}"))?;
            }
            _ => {}
        }
        self.expect(&instance, &job.expected()).await?;
        for child in job.detached() {
            let number = child.rsplit('-').next().unwrap_or_default();
            self.expect(&child, &Expected::Output(format!("<{number}>"))).await?;
        }
        match job.kind {
            Kind::Deleted => {
                self.client.delete_instance(&instance, false).await.map_err(|e| format!("delete: {e:?}"))?;
                let status = self.client.get_orchestration_status(&instance).await;
                if !matches!(status, Ok(OrchestrationStatus::NotFound)) {
                    return Err(format!("deleted, and yet {status:?}"));
                }
                self.start(job).await?;
                self.expect(&instance, &job.expected()).await
            }
            Kind::Pruned => {
                let options = PruneOptions { keep_last: Some(1), ..PruneOptions::default() };
                self.client
                    .prune_executions(&instance, options)
                    .await
                    .map_err(|e| format!("prune: {e:?}"))?;
                let left =
                    self.client.list_executions(&instance).await.map_err(|e| format!("list: {e:?}"))?;
                if left != [job.size as u64] {
                    return Err(format!("executions {left:?} are left of {}", job.size));
                }
                Ok(())
            }
            Kind::Notes => {
                let values = self.client.get_kv_all_values(&instance).await;
                let values: BTreeMap<_, _> =
                    values.map_err(|e| format!("values: {e:?}"))?.into_iter().collect();
                let right = (0..job.size).map(|step| (step.to_string(), format!("<{step}>"))).collect();
                if values == right { Ok(()) } else { Err(format!("values {values:?}")) }
            }
            _ => Ok(()),
        }
    }

    async fn start(&self, job: &Job) -> Result<(), String> {
        let (instance, name) = (job.instance(), job.kind.orchestration());
        let started = match job.kind {
            Kind::Versioned => {
                self.client.start_orchestration_versioned(instance, name, OLD_VERSION, job.input()).await
            }
            _ => self.client.start_orchestration(instance, name, job.input()).await,
        };
        started.map_err(|error| format!("not started: {error:?}"))
    }

    /// Waits until an instance says that it waits.
    async fn until_waiting(&self, instance: &str) -> Result<(), String> {
        let until = tokio::time::Instant::now() + self.patience;
        loop {
            match self.client.get_orchestration_status(instance).await {
                Ok(OrchestrationStatus::Running { custom_status: Some(status), .. }) if status == WAITING => {
                    return Ok(());
                }
                Ok(_) if tokio::time::Instant::now() < until => {}
                other => return Err(format!("does not come to wait: {other:?}")),
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn expect(&self, instance: &str, expected: &Expected) -> Result<(), String> {
        let ended = self.client.wait_for_orchestration(instance, self.patience).await;
        match (&ended, expected) {
            (Ok(OrchestrationStatus::Completed { output, .. }), Expected::Output(right))
                if output == right =>
            {
                Ok(())
            }
            (Ok(OrchestrationStatus::Failed { .. }), Expected::Failure) => Ok(()),
            _ => Err(format!("{instance}: {ended:?}, expected {expected:?}")),
        }
    }
}

/// Histories of all executions, and that each completed step was carried out.
pub(crate) async fn histories(operator: &Operator, plan: &Plan, effects: &Effects) -> Vec<String> {
    let mut findings = Vec::new();
    let Some(admin) = operator.provider.as_management_capability() else {
        return vec![String::from("the provider cannot be asked about instances")];
    };
    let instances = match admin.list_instances().await {
        Ok(instances) => instances,
        Err(error) => return vec![format!("instances cannot be listed: {error}")],
    };
    for job in &plan.jobs {
        for name in job.detached().chain([job.instance()]) {
            if !instances.contains(&name) {
                findings.push(format!("{name} is not listed"));
            }
        }
    }
    for instance in &instances {
        let executions = match admin.list_executions(instance).await {
            Ok(executions) => executions,
            Err(error) => {
                findings.push(format!("{instance}: executions cannot be listed: {error}"));
                continue;
            }
        };
        for execution in executions {
            match operator.provider.read_with_execution(instance, execution).await {
                Ok(events) => findings.extend(check::history(&format!("{instance}/{execution}"), &events)),
                Err(error) => findings.push(format!("{instance}/{execution} cannot be read: {error}")),
            }
        }
    }
    let done = effects.lock().expect("no panic while counting");
    for job in plan.jobs.iter().filter(|job| job.kind == Kind::Chain || job.kind == Kind::FanOut) {
        for step in 0..job.size {
            let key = format!("{}/1/{step}", job.instance());
            if !done.contains_key(&key) {
                findings.push(format!("{key} completed without being carried out"));
            }
        }
    }
    findings
}
