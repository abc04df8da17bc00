//! Listening to the bell.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::core::Core;
use crate::documents::{Bell, MessageHint, RungMessage, ids};
use crate::error::Fault;
use crate::fleet::{Heard, News};
use crate::slots;
use crate::store::{Op, Read, decode};

const OPERATION: &str = "listen";

/// What this member knows of the bell.
#[derive(Debug)]
pub(super) struct Listener {
    heard: Heard,
    /// When this member joined, in milliseconds of the service's clock, less what clocks may differ by.
    joined_at: u64,
    etag: Option<String>,
    last_news: Option<Instant>,
}

impl Listener {
    pub(super) fn new(core: &Core) -> Self {
        let joined_at = core.clock.now_ms().saturating_sub(JOINED_BEFORE_MS);
        Self { heard: Heard::default(), joined_at, etag: None, last_news: None }
    }

    /// How long until the next look. The members look in turn, so that the fleet as a whole looks every `step`, which is
    /// longer while nobody rings.
    pub(super) fn pause(&self, core: &Core) -> Duration {
        let view = core.fleet.view();
        let is_awake = self.last_news.is_some_and(|at| at.elapsed() < core.fleet.rests_after);
        let step = if is_awake { core.fleet.look } else { core.fleet.look.max(ASLEEP_STEP) };
        next_look(core.clock.now_ms(), step, view.share.members.max(1), view.share.rank)
    }

    /// Looks at the bell once and passes on what is new.
    pub(super) async fn look(&mut self, core: &Arc<Core>) -> Result<(), Fault> {
        let call = core.store.quick_call(OPERATION);
        let (body, etag) = match core.store.read(call, ids::LEASES, ids::BELL, self.etag.as_deref()).await? {
            Read::Found { body, etag } => (body, etag),
            Read::NotModified => return Ok(()),
            Read::Missing => {
                // Nobody has rung yet, and who writes a table can only ring a bell that is there.
                let silent = Op::create(&Bell::silent())?;
                return core.store.patient(call).create_own(ids::LEASES, &silent).await.map(drop);
            }
        };
        self.etag = Some(etag.clone());
        // One that cannot be read is replaced: what was rung for is found by searches.
        let Ok(bell) = decode::<Bell>(&body) else { return mute(core, &etag, 0).await };
        let news = self.heard.hear(&bell, core.fleet.bell.name(), self.joined_at);
        if bell.epoch > core.fleet.view().share.epoch {
            core.fleet.beat_now.notify_one();
        }
        if news != News::default() {
            self.last_news = Some(Instant::now());
            metrics::counter!("duroxide_cdb_rings_heard_total").increment(1);
            pass_on(core, news);
        }
        if bell.rings.len() > RINGERS_MAX && core.fleet.view().share.rank == 0 {
            mute(core, &etag, bell.epoch).await?;
        }
        Ok(())
    }
}

/// Removes the entries of all processes that ever rang.
async fn mute(core: &Core, etag: &str, epoch: u64) -> Result<(), Fault> {
    let silent = Bell { epoch, ..Bell::silent() };
    let op = Op::replace(&silent.id, &silent, Some(etag))?;
    core.store.write(core.store.quick_call(OPERATION), ids::LEASES, &op).await.map(drop)
}

/// Hands what was rung for to the finders: what is in the own slots, and, for who has nothing to do, all of it. Whoever
/// looks first runs it then, and the owner, which looks a moment later, finds it locked.
fn pass_on(core: &Arc<Core>, news: News) {
    let now = core.clock.now_ms();
    let is_idle = core.turns.is_waited_for();
    let is_ours = |message: &RungMessage| is_idle || core.fleet.owns(slots::of(&message.i));
    let hints = news.messages.into_iter().filter(is_ours).map(|message| MessageHint {
        instance: message.i,
        id: message.id,
        seq: message.s,
        visible_at: message.v,
    });
    core.turns.sight(hints.collect(), now);
    if news.is_partial {
        core.turn_pace.begin_anew();
        core.turns.poke();
    }
    if news.is_partial || !news.slots.is_empty() {
        news.slots.iter().for_each(|slot| core.fleet.look_at(*slot));
        core.search_for_work_now();
    }
}

/// How long until this member's next turn to look: moments of `step` are dealt out to the members one by one.
fn next_look(now_ms: u64, step: Duration, members: usize, rank: usize) -> Duration {
    let step = u64::try_from(step.as_millis()).unwrap_or(u64::MAX).max(1);
    let (members, rank) = (members as u64, rank as u64);
    let round = step.saturating_mul(members);
    let offset = step.saturating_mul(rank);
    let into = now_ms.wrapping_add(round).wrapping_sub(offset % round) % round;
    Duration::from_millis(round - into)
}

/// Clocks of two processes differ by less.
const JOINED_BEFORE_MS: u64 = 2_000;
const ASLEEP_STEP: Duration = Duration::from_secs(1);
const RINGERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_members_look_one_after_the_other() {
        let step = Duration::from_millis(100);
        let mut moments = Vec::new();
        for rank in 0..4 {
            let mut now = 1_000_003;
            for _ in 0..5 {
                now += u64::try_from(next_look(now, step, 4, rank).as_millis()).unwrap();
                moments.push(now);
            }
        }
        moments.sort_unstable();
        assert!(moments.windows(2).all(|pair| pair[1] - pair[0] == 100), "{moments:?}");
    }
}
