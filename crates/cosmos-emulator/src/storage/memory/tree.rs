//! The entries of one group in order, now and at the moments that are still in use.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Key;
use super::map::Map;

/// A change of an entry.
pub(super) struct Arrival {
    pub(super) key: Key,
    pub(super) commit: u64,
    pub(super) value: Option<Bytes>,
}

/// The entries of a group in order, without those that wait.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) map: Map,
    /// The last commit whose entries are in it.
    upto: u64,
    /// As it was at moments before.
    pub(super) past: BTreeMap<u64, Map>,
    /// It was empty and left; there may be another one.
    pub(super) is_gone: bool,
}

impl Tree {
    /// As it was at a moment, if it has gone on since.
    pub(super) fn at(&self, moment: Option<u64>) -> Option<Map> {
        let moment = moment.filter(|moment| *moment < self.upto)?;
        // It is there: who goes on keeps it for the moments that are in use.
        self.past.get(&moment).cloned()
    }

    /// Lets go of what nobody looks back at, and returns it.
    pub(super) fn keep_past_of(&mut self, moments: &[u64]) -> BTreeMap<u64, Map> {
        let is_in_use = |moment: &u64| moments.binary_search(moment).is_ok();
        let (kept, left) =
            std::mem::take(&mut self.past).into_iter().partition(|(moment, _)| is_in_use(moment));
        self.past = kept;
        left
    }

    /// The last commit whose entries are in it, if it has no entries and nobody looks back.
    pub(super) fn is_empty_since(&self) -> Option<u64> {
        (self.map.is_empty() && self.past.is_empty()).then_some(self.upto)
    }

    pub(super) fn take_in(&mut self, mut waiting: Vec<Arrival>, moments: &[u64], upto: u64) {
        let mut rest = waiting.as_mut_slice();
        for moment in moments.iter().copied().filter(|moment| (self.upto..upto).contains(moment)) {
            let seen = rest.partition_point(|arrival| arrival.commit <= moment);
            let (now, later) = rest.split_at_mut(seen);
            enter_all(&mut self.map, now);
            self.past.insert(moment, self.map.clone());
            rest = later;
        }
        enter_all(&mut self.map, rest);
        self.upto = upto;
    }
}

/// Enters them in the order of the map, where neighbours find the same nodes still in the cache.
fn enter_all(map: &mut Map, arrivals: &mut [Arrival]) {
    // Most comparisons end in bytes that lie beside each other.
    let mut order: Vec<_> =
        (0_u32..).zip(arrivals.iter()).map(|(at, arrival)| (arrival.key.sorting(), at)).collect();
    order.sort_unstable_by(|(one, one_at), (other, other_at)| {
        let key = |at: &u32| arrivals[*at as usize].key.as_slice();
        one.cmp(other).then_with(|| key(one_at).cmp(key(other_at))).then(one_at.cmp(other_at))
    });
    let mut order = order.into_iter().map(|(_, at)| at as usize).peekable();
    while let Some(at) = order.next() {
        // The last change of a key is the one that counts.
        if order.peek().is_some_and(|next| arrivals[*next].key == arrivals[at].key) {
            continue;
        }
        let Arrival { key, value, .. } = &mut arrivals[at];
        map.enter(std::mem::take(key), value.take());
    }
}
