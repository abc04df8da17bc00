//! The provider as a process of the world sees it, watched: no two hold a lock on one thing, and no attempt is counted
//! that was none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, OrchestrationItem, Provider, ProviderAdmin, ProviderError,
    ScheduledActivityIdentifier, SessionFetchConfig, TagFilter, WorkItem,
};
use duroxide::{Event, SystemStats};
use duroxide_cdb::CosmosDBProvider;
use tokio::time::Instant;

use super::ideal::{Ideal, Turn, activity, is_harmless, message};
use super::net::{Network, ProcessId};
use super::trace::Trace;

/// What all processes of a world hold. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    seen: Arc<Mutex<Seen>>,
    trace: Trace,
    network: Network,
    is_calm: bool,
}

#[derive(Debug, Default)]
struct Seen {
    /// Who holds what.
    held: BTreeMap<String, Held>,
    /// What each token stands for.
    tokens: BTreeMap<String, String>,
    /// Activities that were completed.
    completed: BTreeSet<String>,
    /// How often each thing was handed out since it was last done with.
    handed_out: BTreeMap<String, u32>,
    /// Who has each session, and until when at least.
    sessions: BTreeMap<String, (ProcessId, Instant)>,
    /// The messages of each turn, by its token, and those of turns that were committed.
    messages: BTreeMap<String, Vec<String>>,
    consumed: BTreeSet<String>,
    /// When the client began to start what had no turn yet.
    sent: BTreeMap<String, Instant>,
    deaths: u32,
    /// What the store must have.
    ideal: Ideal,
    findings: Vec<String>,
}

#[derive(Debug)]
struct Held {
    process: ProcessId,
    token: String,
    /// The earliest end that the lock can have.
    until: Instant,
    /// When it was handed out.
    at: Instant,
}

/// Two that have the same thing, as the checks see it: pure.
#[derive(Clone, Copy, Debug)]
struct Double {
    is_first_written: bool,
    is_second_written: bool,
    /// The same process has both.
    is_same: bool,
    /// Something kept one of them from the server since shortly before the first began: then it could not write its lock in
    /// time, or did not know that its slots were another's.
    is_troubled: bool,
}

impl Double {
    /// Whether that may be.
    fn is_allowed(self) -> bool {
        let is_unknown = !self.is_first_written || !self.is_second_written;
        is_unknown && !self.is_same && self.is_troubled
    }
}

/// The instance that a turn or an activity is of.
fn instance_of(thing: &str) -> &str {
    let name = thing.trim_start_matches("turn of ").trim_start_matches("activity ");
    name.split('/').next().unwrap_or_default()
}

/// The random part of a token, which is what is stored.
fn secret_of(token: &str) -> &str {
    token.rsplit('.').next().unwrap_or_default()
}

/// Clocks of processes and server need not agree better than this, nor need those who wait for a lock's end.
const TOLERANCE: Duration = Duration::from_secs(2);
/// What a member did not hear or say this long ago still tells in what it does: a lease, and two margins.
const MEMORY: Duration = Duration::from_secs(13);
/// In calm weather a start is heard by the bell, which is looked at every second at least; while members join, the slot it is
/// in may be on its way from one to the other, and then nobody takes it until two heartbeats are over.
const HIDDEN_MAX: Duration = Duration::from_millis(3_500);
/// A lock that is in memory only is written after 60 % of the time after which others may take what it is for.
const IN_MEMORY_MAX: Duration = Duration::from_millis(4_500);

impl Witness {
    pub(crate) fn new(trace: Trace, network: Network, is_calm: bool) -> Self {
        Self { seen: Arc::default(), trace, network, is_calm }
    }

    /// The client is about to start something.
    pub(crate) fn sent(&self, instance: &str) {
        self.lock().sent.insert(format!("turn of {instance}"), Instant::now());
    }

    /// What must not be, so far.
    pub(crate) fn findings(&self) -> Vec<String> {
        let mut seen = self.lock();
        let unlike = seen.ideal.take_findings();
        seen.findings.extend(unlike);
        seen.findings.clone()
    }

    /// Asks or tells the store as it ought to be.
    pub(crate) fn ideal<T>(&self, ask: impl FnOnce(&mut Ideal) -> T) -> T {
        ask(&mut self.lock().ideal)
    }

    /// A death may take an attempt with it: the lock was taken and nobody lived to see it.
    pub(crate) fn died(&self) {
        self.lock().deaths += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `least` is the earliest moment at which the lock can have been written.
    fn taken(
        &self,
        process: ProcessId,
        thing: &str,
        token: &str,
        attempt: u32,
        least: Instant,
        length: Duration,
    ) {
        let now = Instant::now();
        let is_written = self.network.is_written(secret_of(token));
        let how = if is_written { "written" } else { "in memory" };
        self.trace.line(format_args!("p{process} takes {thing}, attempt {attempt}, {how}"));
        let mut seen = self.lock();
        if let Some(held) = seen.held.get(thing).filter(|held| held.until > now + TOLERANCE) {
            let left = held.until - now;
            let since = held.at.checked_sub(MEMORY).unwrap_or(held.at);
            let double = Double {
                is_first_written: self.network.is_written(secret_of(&held.token)),
                is_second_written: is_written,
                is_same: held.process == process,
                // Who is not heard by the fleet has written what it holds before the others help it.
                is_troubled: [process, held.process]
                    .iter()
                    .any(|one| self.network.is_troubled_since(*one, since))
                    || self.network.is_mute_since(process, since),
            };
            let line =
                format!("{thing}: given to p{process} while p{} held it for {left:?} more", held.process);
            if double.is_allowed() {
                self.trace.line(format_args!("{line}, as it may be"));
            } else {
                seen.findings.push(format!("{line}, {double:?}"));
            }
        }
        if let Some(waited) = seen.sent.remove(thing).map(|at| at.elapsed())
            && self.is_calm
            && waited > HIDDEN_MAX
        {
            seen.findings.push(format!("{thing}: nobody began it for {waited:?}"));
        }
        if seen.completed.contains(thing) {
            seen.findings.push(format!("{thing}: given to p{process} after it was completed"));
        }
        if attempt > 1 && !is_written {
            seen.findings.push(format!("{thing}: attempt {attempt} is in memory only"));
        }
        let handed_out = seen.handed_out.get(thing).copied().unwrap_or_default();
        let attempts_max = handed_out + seen.deaths + self.network.unheard_locks(instance_of(thing)) + 1;
        if attempt > attempts_max {
            let finding = format!("{thing}: attempt {attempt}, but there were at most {attempts_max}");
            seen.findings.push(finding);
        }
        *seen.handed_out.entry(thing.to_owned()).or_default() += 1;
        let until = least + length;
        seen.held.insert(thing.to_owned(), Held { process, token: token.to_owned(), until, at: now });
        seen.tokens.insert(token.to_owned(), thing.to_owned());
    }

    /// An item of a session was handed out: the session lasts at least half of its time from then on.
    fn in_session(&self, process: ProcessId, session: &str, least: Instant, length: Duration) {
        let now = Instant::now();
        let mut seen = self.lock();
        if let Some((owner, until)) = seen.sessions.get(session).copied()
            && owner != process
            && until > now + TOLERANCE
        {
            seen.findings.push(format!("session {session}: p{process} has it while p{owner} does"));
        }
        seen.sessions.insert(session.to_owned(), (process, least + length / 2));
    }

    /// The holder lets go, or tries to: from now on others may have it.
    fn let_go(&self, token: &str) -> Option<String> {
        let mut seen = self.lock();
        let thing = seen.tokens.get(token)?.clone();
        if let Some(held) = seen.held.remove(&thing) {
            if held.token != token {
                seen.held.insert(thing.clone(), held);
            } else if held.at.elapsed() > IN_MEMORY_MAX
                && !self.network.is_written(secret_of(token))
                && !seen.ideal.is_cancelled(&thing)
                && !self
                    .network
                    .is_troubled_since(held.process, held.at.checked_sub(MEMORY).unwrap_or(held.at))
            {
                let (process, time) = (held.process, held.at.elapsed());
                seen.findings.push(format!("{thing}: p{process} had it in memory only for {time:?}"));
            }
        }
        Some(thing)
    }

    fn done(
        &self,
        process: ProcessId,
        thing: Option<String>,
        what: &str,
        result: &Result<(), ProviderError>,
    ) {
        let Some(thing) = thing else { return };
        match result {
            Ok(()) => {
                self.trace.line(format_args!("p{process} {what} {thing}"));
                let mut seen = self.lock();
                seen.handed_out.remove(&thing);
                if thing.starts_with("activity") && !instance_of(&thing).starts_with("deleted") {
                    seen.completed.insert(thing);
                }
            }
            Err(error) => {
                self.trace.line(format_args!("p{process} {what} {thing} failed: {}", error.message));
            }
        }
    }

    /// A turn was handed out with these messages.
    fn reads(&self, token: &str, items: &[WorkItem]) {
        let messages = items.iter().filter(|item| !is_harmless(item)).filter_map(message).collect();
        self.lock().messages.insert(token.to_owned(), messages);
    }

    /// A turn was committed: its messages are gone for good.
    fn consumes(&self, process: ProcessId, token: &str) {
        let mut seen = self.lock();
        for message in seen.messages.remove(token).unwrap_or_default() {
            if !seen.consumed.insert(message.clone()) {
                seen.findings.push(format!("{message} is consumed again, by p{process}"));
            }
        }
    }

    fn renewed(&self, token: &str, asked: Instant, length: Duration) {
        let mut seen = self.lock();
        let Some(thing) = seen.tokens.get(token).cloned() else { return };
        if let Some(held) = seen.held.get_mut(&thing).filter(|held| held.token == token) {
            held.until = held.until.max(asked + length);
        }
    }
}

/// A provider whose locks are watched.
pub(crate) struct Watched {
    pub(crate) process: ProcessId,
    pub(crate) provider: Arc<CosmosDBProvider>,
    pub(crate) witness: Witness,
    pub(crate) network: Network,
}

impl Watched {
    /// When what is returned now was written at the earliest: a fetch waits for work, and only where answers are prompt
    /// is what it returns fresh.
    fn least(&self, asked: Instant) -> Instant {
        if self.network.is_prompt() { asked.max(Instant::now() - PROMPT) } else { asked }
    }
}

/// How old an answer can be at most where nothing is late.
const PROMPT: Duration = Duration::from_millis(900);

#[async_trait::async_trait]
impl Provider for Watched {
    fn name(&self) -> &str {
        self.provider.name()
    }

    fn version(&self) -> &str {
        self.provider.version()
    }

    async fn fetch_orchestration_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Result<Option<(OrchestrationItem, String, u32)>, ProviderError> {
        let asked = Instant::now();
        let fetched = self.provider.fetch_orchestration_item(lock_timeout, poll_timeout, filter).await?;
        if let Some((item, token, attempt)) = &fetched {
            let thing = format!("turn of {}", item.instance);
            self.witness.taken(self.process, &thing, token, *attempt, self.least(asked), lock_timeout);
            self.witness.reads(token, &item.messages);
            let is_written = self.network.is_written(secret_of(token));
            let locked_after = is_written.then_some(asked);
            self.witness.ideal(|ideal| ideal.hands_out_turn(item, token, locked_after));
        }
        Ok(fetched)
    }

    async fn ack_orchestration_item(
        &self,
        lock_token: &str,
        execution_id: u64,
        history_delta: Vec<Event>,
        worker_items: Vec<WorkItem>,
        orchestrator_items: Vec<WorkItem>,
        metadata: ExecutionMetadata,
        cancelled_activities: Vec<ScheduledActivityIdentifier>,
    ) -> Result<(), ProviderError> {
        let thing = self.witness.let_go(lock_token);
        let turn = Turn {
            execution: execution_id,
            events: history_delta.clone(),
            work: worker_items.clone(),
            messages: orchestrator_items.clone(),
            cancelled: cancelled_activities.clone(),
        };
        self.witness.ideal(|ideal| ideal.drafts_turn(lock_token, turn));
        let result = self
            .provider
            .ack_orchestration_item(
                lock_token,
                execution_id,
                history_delta,
                worker_items,
                orchestrator_items,
                metadata,
                cancelled_activities,
            )
            .await;
        if result.is_ok() {
            self.witness.consumes(self.process, lock_token);
            self.witness.ideal(|ideal| ideal.commits_turn(lock_token));
        }
        self.witness.done(self.process, thing, "commits", &result);
        result
    }

    async fn abandon_orchestration_item(
        &self,
        lock_token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        self.witness.let_go(lock_token);
        self.provider.abandon_orchestration_item(lock_token, delay, ignore_attempt).await
    }

    async fn read(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        self.provider.read(instance).await
    }

    async fn read_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
    ) -> Result<Vec<Event>, ProviderError> {
        self.provider.read_with_execution(instance, execution_id).await
    }

    async fn append_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
        new_events: Vec<Event>,
    ) -> Result<(), ProviderError> {
        self.provider.append_with_execution(instance, execution_id, new_events).await
    }

    async fn enqueue_for_worker(&self, item: WorkItem) -> Result<(), ProviderError> {
        self.provider.enqueue_for_worker(item).await
    }

    async fn fetch_work_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tag_filter: &TagFilter,
    ) -> Result<Option<(WorkItem, String, u32)>, ProviderError> {
        let asked = Instant::now();
        let fetched = self.provider.fetch_work_item(lock_timeout, poll_timeout, session, tag_filter).await?;
        if let Some((item, token, attempt)) = &fetched {
            let least = self.least(asked);
            self.witness.taken(self.process, &activity(item), token, *attempt, least, lock_timeout);
            self.witness.ideal(|ideal| ideal.hands_out_work(item));
            if let (WorkItem::ActivityExecute { session_id: Some(id), .. }, Some(config)) = (item, session) {
                self.witness.in_session(self.process, id, least, config.lock_timeout);
            }
        }
        Ok(fetched)
    }

    async fn ack_work_item(&self, token: &str, completion: Option<WorkItem>) -> Result<(), ProviderError> {
        let thing = self.witness.let_go(token);
        if let Some(completion) = &completion {
            self.witness.ideal(|ideal| ideal.sends(completion));
        }
        let result = self.provider.ack_work_item(token, completion).await;
        self.witness.done(self.process, thing, "completes", &result);
        result
    }

    async fn renew_work_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        let asked = Instant::now();
        self.provider.renew_work_item_lock(token, extend_for).await?;
        self.witness.renewed(token, asked, extend_for);
        Ok(())
    }

    async fn renew_session_lock(
        &self,
        owner_ids: &[&str],
        extend_for: Duration,
        idle_timeout: Duration,
    ) -> Result<usize, ProviderError> {
        self.provider.renew_session_lock(owner_ids, extend_for, idle_timeout).await
    }

    async fn cleanup_orphaned_sessions(&self, idle_timeout: Duration) -> Result<usize, ProviderError> {
        self.provider.cleanup_orphaned_sessions(idle_timeout).await
    }

    async fn abandon_work_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        self.witness.let_go(token);
        self.provider.abandon_work_item(token, delay, ignore_attempt).await
    }

    async fn renew_orchestration_item_lock(
        &self,
        token: &str,
        extend_for: Duration,
    ) -> Result<(), ProviderError> {
        let asked = Instant::now();
        self.provider.renew_orchestration_item_lock(token, extend_for).await?;
        self.witness.renewed(token, asked, extend_for);
        Ok(())
    }

    async fn enqueue_for_orchestrator(
        &self,
        item: WorkItem,
        delay: Option<Duration>,
    ) -> Result<(), ProviderError> {
        self.witness.ideal(|ideal| ideal.sends(&item));
        self.provider.enqueue_for_orchestrator(item, delay).await
    }

    fn as_management_capability(&self) -> Option<&dyn ProviderAdmin> {
        self.provider.as_management_capability()
    }

    async fn get_custom_status(
        &self,
        instance: &str,
        last_seen_version: u64,
    ) -> Result<Option<(Option<String>, u64)>, ProviderError> {
        self.provider.get_custom_status(instance, last_seen_version).await
    }

    async fn get_kv_value(&self, instance: &str, key: &str) -> Result<Option<String>, ProviderError> {
        self.provider.get_kv_value(instance, key).await
    }

    async fn get_kv_all_values(&self, instance: &str) -> Result<HashMap<String, String>, ProviderError> {
        self.provider.get_kv_all_values(instance).await
    }

    async fn get_instance_stats(&self, instance: &str) -> Result<Option<SystemStats>, ProviderError> {
        self.provider.get_instance_stats(instance).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_may_have_one_thing_only_if_its_lock_was_unknown_and_something_kept_one_from_the_server() {
        let allowed =
            Double { is_first_written: false, is_second_written: true, is_same: false, is_troubled: true };
        assert!(allowed.is_allowed());
        // Who does not know that the slot is another's may also keep in memory what the other has written.
        assert!(Double { is_first_written: true, is_second_written: false, ..allowed }.is_allowed());
        for double in [
            Double { is_first_written: true, ..allowed },
            Double { is_same: true, ..allowed },
            Double { is_troubled: false, ..allowed },
        ] {
            assert!(!double.is_allowed(), "{double:?}");
        }
    }
}
