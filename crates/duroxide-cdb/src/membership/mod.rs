//! A member of the fleet: joining, leaving, and the tasks that go on in between.
//!
//! [`Fleet`](crate::fleet::Fleet) knows the shares of all members and decides whose an entry is. Here is what a process does
//! about it: it tells of itself, writes down locks that are only in its memory, and listens to the others.

mod listen;
mod tasks;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::core::Core;
use crate::fleet::{Hand, Serves, SlotShare, View};

/// Joins the fleet, the first time a runtime of this process fetches, and the first time one does after it has left.
/// Who cannot join works like one who shares nothing, and goes on trying.
pub(crate) async fn join(core: &Arc<Core>, hand: Option<Hand>) {
    let fleet = &core.fleet;
    if hand.is_some_and(|hand| !fleet.hands[hand as usize].swap(true, Ordering::AcqRel)) {
        // Each dispatcher that asks has room for what it gets, also before it has waited or held anything: a heartbeat in
        // between would tell operators of a member that runs turns and has no room for any.
        fleet.note_capacity(fleet.hands.iter().filter(|asked| asked.load(Ordering::Acquire)).count());
        // The others do not leave to this process what it did not run before they know it.
        fleet.beat_now.notify_one();
    }
    if fleet.is_member() {
        return;
    }
    let _one_at_a_time = fleet.moving.lock().await;
    if fleet.is_member() {
        return;
    }
    // Workers begin a moment after dispatchers, or before them: the others are told of both at once.
    for _ in 0..HANDS_LOOKS {
        if fleet.serves() == (Serves { turns: true, work: true }) {
            break;
        }
        tokio::time::sleep(HANDS_LOOK).await;
    }
    fleet.see(View { share: SlotShare::everything(), ..View::default() });
    tasks::refresh(core).await;
    let mut running = fleet.tasks.lock().unwrap_or_else(PoisonError::into_inner);
    *running = Some(tasks::start(core, fleet.lease));
    fleet.is_joined.store(true, Ordering::Release);
    drop(running);
    // What was written while this process took no part was told to others only.
    core.search_now();
}

/// Leaves the fleet: what it holds is given back, then its slots are given to others. While a runtime still asks for more,
/// somebody is at work on what it holds: then those locks are written down and stay.
pub(crate) async fn leave(core: &Core) {
    let fleet = &core.fleet;
    let _one_at_a_time = fleet.moving.lock().await;
    let running = fleet.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
    if running.is_none() {
        return fleet.bell.flush().await;
    }
    drop(running);
    fleet.presence.rest();
    // Before anything is waited for: should nobody wait for the end of this, the next fetch joins all the same.
    fleet.is_joined.store(false, Ordering::Release);
    fleet.see(View { share: SlotShare { members: 2, ..SlotShare::default() }, ..View::default() });
    if core.turns.is_waited_for() || core.works.is_waited_for() {
        tasks::write_locks(core, |_, _| true).await;
    } else {
        tasks::give_back(core).await;
    }
    if let Err(error) = fleet.leases.release_slots(&fleet.owner).await {
        tracing::warn!(%error, "the slots of this process are not given to others; they will take them over");
    }
    // From now on it is a client: what others leave unfinished it finds wherever it is.
    fleet.see(View { share: SlotShare::everything(), ..View::default() });
    fleet.bell.flush().await;
}

/// So often, and so long each time, a joining process waits for its other kind of dispatcher.
const HANDS_LOOKS: usize = 10;
const HANDS_LOOK: Duration = Duration::from_millis(5);
