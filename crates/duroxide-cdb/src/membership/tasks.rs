//! What a member does beside its work: the heartbeat, listening to the bell, and writing the locks that are kept in memory.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::listen::Listener;
use crate::core::Core;
use crate::documents::Forgive;
use crate::finder::{AGES, Ready};
use crate::fleet::{BackgroundTasks, MemberReport, SlotShare, View};
use crate::orchestration;
use crate::parallel::in_parallel;
use crate::slots::{SlotSet, Watch};
use crate::work;

/// Starts what a member does beside its work.
pub(super) fn start(core: &Arc<Core>, lease: Duration) -> BackgroundTasks {
    BackgroundTasks([
        tokio::spawn(beat(Arc::downgrade(core), Arc::clone(&core.fleet.beat_now), lease)),
        tokio::spawn(listen(Arc::downgrade(core))),
        tokio::spawn(write_locks_in_time(Arc::downgrade(core))),
    ])
}

/// Says again and again that this process is there, and takes note of its share.
async fn beat(core: Weak<Core>, beat_now: Arc<Notify>, lease: Duration) {
    let pause = lease.mul_f64(BEAT_PART);
    loop {
        // The provider is not held while waiting: that would keep it alive for ever.
        let _ = tokio::time::timeout(pause, beat_now.notified()).await;
        let Some(core) = core.upgrade() else { return };
        if core.fleet.presence.is_deserted() && !core.holds_locks() {
            tracing::info!("nobody in this process has asked for work for long, so it leaves the fleet");
            // Leaving ends this task.
            tokio::spawn(async move { super::leave(&core).await });
            return;
        }
        refresh(&core).await;
    }
}

/// Tells the fleet of this process, and takes note of its share: slots that others wait for are let go of, and what is new
/// is searched.
pub(super) async fn refresh(core: &Arc<Core>) {
    let fleet = &core.fleet;
    let asked = Instant::now();
    let report = report(core);
    fleet.tell_hands(report.serves);
    let share = fleet.leases.acquire_slots(&fleet.owner, &report).await;
    let was_away = fleet.presence.heard(asked);
    let share = match share {
        Ok(share) => share,
        Err(error) => {
            tracing::debug!(%error, "this process could not tell the fleet that it is there");
            return;
        }
    };
    let before = fleet.view();
    let gained = share.slots.without(before.share.slots);
    let is_first = !fleet.is_member();
    let wanted = share.wanted;
    adopt(core, share, asked);
    if !wanted.is_empty() {
        hand_over(core, wanted).await;
    }
    if (!gained.is_empty() || was_away) && !is_first {
        core.search_now();
    }
}

/// Uses a share from now on.
fn adopt(core: &Arc<Core>, share: SlotShare, asked: Instant) {
    metrics::gauge!("duroxide_cdb_members").set(count(share.members));
    metrics::gauge!("duroxide_cdb_slots_owned").set(count(share.slots.len()));
    let until = share.promised.map(|promised| asked + promised);
    let next = core.fleet.view().next(share, until, core.clock.now_ms());
    use_view(core, next);
    core.fleet.net_of(core.store.count_parts(&Watch::All));
}

/// Looks after other slots from now on. What is known of work in slots that went is forgotten: their next owner searches
/// them, and would meet this process there.
fn use_view(core: &Core, view: View) {
    let lost = core.fleet.view().share.slots.without(view.share.slots);
    core.fleet.see(view);
    if !lost.is_empty() && !cosmos_wire::mutant!(34) {
        core.turns.disown(lost);
        core.works.disown(lost);
    }
}

/// Lets go of slots that others wait for: from now on nothing in them is taken here, and what is locked in memory only is
/// written down first.
async fn hand_over(core: &Arc<Core>, wanted: SlotSet) {
    let fleet = &core.fleet;
    let view = fleet.view();
    let slots = view.share.slots.without(wanted);
    let share = SlotShare { slots, wanted: view.share.wanted.without(wanted), ..view.share.clone() };
    // Before the others are told: the answer to that may get lost, and they would be at work already.
    use_view(core, view.next(share, view.until, core.clock.now_ms()));
    // A fetch on another thread may have looked at the share before, and be about to put its lock where this looks.
    tokio::time::sleep(DECIDED_WITHIN).await;
    let writing = write_locks(core, |slot, _| wanted.contains(slot) && !cosmos_wire::mutant!(33));
    let is_written = tokio::time::timeout(fleet.lease.mul_f64(HAND_OVER_PART), writing).await;
    if !is_written.unwrap_or(false) {
        // What could not be written down is not given away. This member looks after it until its next heartbeat tries again,
        // which must come in time, or others take this member for dead and all of its slots with what it holds in them.
        fleet.see(fleet.view().next(view.share.clone(), view.until, core.clock.now_ms()));
        core.search_now();
        return;
    }
    if let Err(error) = fleet.leases.hand_over(&fleet.owner, wanted).await {
        // The next heartbeat tells whose they are.
        tracing::debug!(%error, "slots that another process waits for could not be handed over yet");
    }
}

fn report(core: &Core) -> MemberReport {
    let now = core.clock.now_ms();
    let (turns, works) = (core.turns.ready(now), core.ready_works(now));
    tell_backlog("turns", &turns, now);
    tell_backlog("activities", &works, now);
    let running = core.turn_leases.len() + core.work_leases.len();
    let served = core.works.asked();
    MemberReport {
        running: running as u64,
        capacity: core.note_capacity(),
        backlog: (turns.count() + works.count()) as u64,
        passed: [turns.oldest, works.oldest].into_iter().flatten().min().unwrap_or(now),
        serves: core.fleet.serves(),
        work: served,
    }
}

/// Measures what this process could begin at once and has not.
fn tell_backlog(queue: &'static str, ready: &Ready, now: u64) {
    for ((age, _), number) in AGES.into_iter().zip(ready.by_age) {
        metrics::gauge!("duroxide_cdb_backlog", "queue" => queue, "age" => age).set(count(number));
    }
    let oldest = Duration::from_millis(ready.oldest.map_or(0, |since| now.saturating_sub(since)));
    metrics::gauge!("duroxide_cdb_backlog_oldest_seconds", "queue" => queue).set(oldest.as_secs_f64());
}

#[expect(clippy::cast_precision_loss, reason = "a gauge of small numbers")]
fn count(number: usize) -> f64 {
    number as f64
}

async fn listen(core: Weak<Core>) {
    let listening = core.upgrade().filter(|core| core.fleet.has_bell).map(|core| Listener::new(&core));
    let Some(mut listener) = listening else { return };
    loop {
        let Some(pause) = core.upgrade().map(|core| listener.pause(&core)) else { return };
        tokio::time::sleep(pause).await;
        let Some(core) = core.upgrade() else { return };
        if let Err(fault) = listener.look(&core).await {
            tracing::debug!(%fault, "the bell could not be looked at");
        }
        // Commits and renewals go before looks while the account throttles.
        let throttled = core.store.pause();
        drop(core);
        if !throttled.is_zero() {
            tokio::time::sleep(throttled).await;
        }
    }
}

/// Writes locks that are kept in memory before others may take what they are for. Each is written by itself: a partition
/// that does not answer holds up only its own, for as long as they last.
async fn write_locks_in_time(core: Weak<Core>) {
    let mut writing: FuturesUnordered<BoxFuture<'static, bool>> = FuturesUnordered::new();
    let mut tick = tokio::time::interval(WRITE_TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(_) = writing.next() => continue,
            _ = tick.tick() => {}
        }
        let Some(core) = core.upgrade() else { return };
        if core.fleet.presence.tick() {
            core.fleet.beat_now.notify_one();
        }
        let now = core.clock.now_ms();
        // Once others may take this process for dead, they may take everything in its slots; and where a slot went without
        // being handed over, its owner may be at work already.
        let view = core.fleet.view();
        let is_over = |slot: u8| !view.is_promised() || !view.share.slots.contains(slot);
        let is_due = |slot, write_by| (is_over(slot) || write_by <= now) && !cosmos_wire::mutant!(36);
        for lease in core.turn_leases.unwritten(is_due) {
            if lease.renewing.try_lock().is_ok() {
                let core = Arc::clone(&core);
                writing.push(Box::pin(async move { orchestration::lock::write_down(&core, &lease).await }));
            }
        }
        for lease in core.work_leases.unwritten(is_due) {
            if lease.renewing.try_lock().is_ok() {
                let core = Arc::clone(&core);
                writing.push(Box::pin(async move { work::lock::write_down(&core, &lease).await }));
            }
        }
    }
}

/// Writes the locks kept in memory that a question about their slot and their time selects. True if all of them are written
/// or have ended.
pub(super) async fn write_locks(core: &Core, is_meant: impl Fn(u8, u64) -> bool) -> bool {
    let turns = core.turn_leases.unwritten(&is_meant);
    let works = core.work_leases.unwritten(&is_meant);
    let turns = turns.into_iter().map(|lease| -> futures::future::BoxFuture<'_, bool> {
        Box::pin(async move { orchestration::lock::write_down(core, &lease).await })
    });
    let works = works.into_iter().map(|lease| -> futures::future::BoxFuture<'_, bool> {
        Box::pin(async move { work::lock::write_down(core, &lease).await })
    });
    let written = in_parallel(WRITTEN_AT_ONCE, turns.chain(works)).await;
    written.into_iter().all(|is_written| is_written)
}

/// Gives back what this process holds, without counting the attempts: nobody works under these locks any more.
pub(super) async fn give_back(core: &Core) {
    let call = core.store.quick_call("leave");
    let blameless = Forgive::ThisAttempt;
    let turns = core.turn_leases.all().into_iter().map(|lease| -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = orchestration::lock::abandon_lease(core, call, &lease, None, blameless).await
            {
                tracing::debug!(%error, "a turn that this process had ends with its lock");
            }
        })
    });
    let works = core.work_leases.all().into_iter().map(|lease| -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = work::lock::abandon_lease(core, call, &lease, None, blameless).await {
                tracing::debug!(%error, "an activity that this process had ends with its lock");
            }
        })
    });
    in_parallel(WRITTEN_AT_ONCE, turns.chain(works)).await;
}

/// A member beats so often that two beats may fail before its lease is over.
const BEAT_PART: f64 = 0.3;
const WRITE_TICK: Duration = Duration::from_millis(100);
/// What a heartbeat may take of the lease to write down what others wait for.
const HAND_OVER_PART: f64 = 0.1;
/// From the decision to keep a lock in memory until it is among the others, nothing is waited for.
const DECIDED_WITHIN: Duration = Duration::from_millis(20);
const WRITTEN_AT_ONCE: usize = 32;
