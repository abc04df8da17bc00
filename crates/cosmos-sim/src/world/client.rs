//! Who starts the work and waits for it: one process that never dies, on the same bad network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{Provider as _, ProviderAdmin, ProviderError, PruneOptions};
use duroxide::{Client, ClientError, OrchestrationStatus};
use duroxide_cdb::CosmosDBProvider;

use super::further::NEW_VERSION;
use super::net::{Network, ProcessId};
use super::plan::{Plan, WEATHER};
use super::process::settings;
use super::trace::Trace;
use super::watched::{Watched, Witness};
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
pub(crate) async fn connect(network: &Network, plan: &Plan, witness: &Witness) -> anyhow::Result<Operator> {
    let settings = settings(network, CLIENT, 0, plan.regions[0]);
    let provider = CosmosDBProvider::new_with_config(settings).await;
    let provider = Arc::new(provider.map_err(|error| anyhow::anyhow!("{error}"))?);
    let patience = WEATHER + patience(plan, PATIENCE);
    let watched = Watched {
        process: CLIENT,
        provider: provider.clone(),
        witness: witness.clone(),
        network: network.clone(),
    };
    Ok(Operator { client: Client::new(Arc::new(watched)), provider, patience })
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
        if let Some(instances) = job.legacy() {
            for instance in instances {
                self.expect(&instance, &job.expected()).await?;
            }
            return Ok(());
        }
        // One that only upgraded processes can run may have to wait for the upgrade.
        if job.kind != Kind::Upgraded {
            witness.sent(&job.instance());
        }
        self.start(job).await?;
        let instance = job.instance();
        match job.kind {
            Kind::Mailbox | Kind::Letters => {
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
                witness.ideal(|ideal| ideal.is_changed_unseen(&instance));
                self.client.delete_instance(&instance, false).await.map_err(|e| format!("delete: {e:?}"))?;
                let status = self.client.get_orchestration_status(&instance).await;
                if !matches!(status, Ok(OrchestrationStatus::NotFound)) {
                    return Err(format!("deleted, and yet {status:?}"));
                }
                self.start(job).await?;
                self.expect(&instance, &job.expected()).await
            }
            Kind::Tree => self.delete_tree(job, witness).await,
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

    /// Deletes a tree: nothing of it is left.
    async fn delete_tree(&self, job: &Job, witness: &Witness) -> Result<(), String> {
        let said = |error: ClientError| format!("deletion of a tree: {error:?}");
        let tree = self.client.get_instance_tree(&job.instance()).await.map_err(said)?;
        if tree.all_ids.len() != job.size + 1 {
            return Err(format!(
                "a tree of {}, not of {}: {:?}",
                tree.all_ids.len(),
                job.size + 1,
                tree.all_ids
            ));
        }
        for instance in &tree.all_ids {
            witness.ideal(|ideal| ideal.is_changed_unseen(instance));
        }
        let deleted = self.client.delete_instance(&job.instance(), false).await.map_err(said)?;
        let left = self.client.list_all_instances().await.map_err(said)?;
        match left.iter().find(|left| tree.all_ids.contains(left)) {
            None => Ok(()),
            Some(left) => Err(format!("{left} is left of a tree, after {deleted:?}")),
        }
    }

    /// All that is stored of an instance, against what committed turns wrote.
    async fn instance(
        &self,
        admin: &dyn ProviderAdmin,
        instance: &str,
        witness: &Witness,
    ) -> Result<(), String> {
        let said = |error: ProviderError| format!("{instance} cannot be read: {error}");
        let executions = admin.list_executions(instance).await.map_err(said)?;
        let is_pruned = instance.starts_with("pruned") || instance.starts_with("eternal");
        for execution in &executions {
            let events = self.provider.read_with_execution(instance, *execution).await.map_err(said)?;
            witness.ideal(|ideal| ideal.sees(instance, *execution, &events, None));
            let committed = witness.ideal(|ideal| ideal.count(instance, *execution));
            if committed != events.len() {
                return Err(format!("{instance}/{execution}: {} events of {committed}", events.len()));
            }
            let wrong = check::history(&format!("{instance}/{execution}"), &events);
            if let Some(first) = wrong.into_iter().next() {
                return Err(first);
            }
        }
        let committed = witness.ideal(|ideal| ideal.executions_of(instance));
        if executions != committed && !is_pruned {
            return Err(format!("{instance}: executions {executions:?} of {committed:?}"));
        }
        let Some((values, status)) = witness.ideal(|ideal| ideal.left_by(instance)) else { return Ok(()) };
        let stored: BTreeMap<String, String> =
            self.provider.get_kv_all_values(instance).await.map_err(said)?.into_iter().collect();
        if stored != values {
            return Err(format!("{instance}: key-values {stored:?}, not {values:?}"));
        }
        let stored = self.provider.get_custom_status(instance, 0).await.map_err(said)?;
        let stored = stored.and_then(|(status, _)| status);
        if stored != status {
            Err(format!("{instance}: custom status {stored:?}, not {status:?}"))
        } else {
            Ok(())
        }
    }

    async fn start(&self, job: &Job) -> Result<(), String> {
        let (instance, name) = (job.instance(), job.kind.orchestration());
        let started = match job.kind {
            Kind::Upgraded => {
                self.client.start_orchestration_versioned(instance, name, NEW_VERSION, job.input()).await
            }
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

/// Histories of all executions, what they left, and that each completed step was carried out.
pub(crate) async fn histories(
    operator: &Operator,
    plan: &Plan,
    effects: &Effects,
    witness: &Witness,
) -> Vec<String> {
    let mut findings = Vec::new();
    let Some(admin) = operator.provider.as_management_capability() else {
        return vec![String::from("the provider cannot be asked about instances")];
    };
    let instances = match admin.list_instances().await {
        Ok(instances) => instances,
        Err(error) => return vec![format!("instances cannot be listed: {error}")],
    };
    for job in plan.jobs.iter().filter(|job| job.kind != Kind::Tree) {
        for name in job.detached().chain([job.instance()]) {
            if !instances.contains(&name) {
                findings.push(format!("{name} is not listed"));
            }
        }
    }
    for instance in &instances {
        findings.extend(operator.instance(admin, instance, witness).await.err());
    }
    findings.extend(witness.ideal(|ideal| ideal.forgotten()));
    findings.extend(witness.findings());
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
