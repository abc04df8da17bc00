//! An ordered map whose copies are cheap enough to hand one to each scan.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;

use super::base::Base;
use super::{Key, is_empty};
use crate::storage::Order;

/// Rows in the order of their keys.
#[derive(Clone, Default)]
pub(super) struct Map {
    /// Rows that were there first, where they were many.
    base: Option<Arc<Base>>,
    /// All others, and what became of those: nothing where they are gone.
    changes: OrdMap<Key, Option<Bytes>>,
    /// How many of the base are gone.
    gone: usize,
}

impl From<Base> for Map {
    fn from(base: Base) -> Self {
        Self { base: Some(Arc::new(base)), ..Self::default() }
    }
}

impl Map {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.len() == self.gone && self.base.as_ref().is_none_or(|base| base.len() == self.gone)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Bytes> {
        match self.changes.get(key) {
            Some(change) => change.clone(),
            None => self.base.as_ref()?.get(key),
        }
    }

    /// Puts a row, or removes it.
    pub(super) fn enter(&mut self, key: Key, value: Option<Bytes>) {
        let hides =
            value.is_none() && self.base.as_ref().is_some_and(|base| base.get(key.as_slice()).is_some());
        let before = if hides || value.is_some() {
            self.changes.insert(key, value)
        } else {
            self.changes.remove(&key)
        };
        let was_gone = matches!(before, Some(None));
        self.gone = self.gone + usize::from(hides) - usize::from(was_gone);
        if self.base.as_ref().is_some_and(|base| base.is_outlived(self.gone)) {
            self.dissolve_base();
        }
    }

    /// Lets go of a base, and of the items that it is made of.
    fn dissolve_base(&mut self) {
        let Some(base) = self.base.take() else { return };
        let changes = std::mem::take(&mut self.changes);
        let rest = (0..base.len()).map(|place| base.at(place)).filter(|(key, _)| !changes.contains_key(key));
        self.changes = rest.map(|(key, value)| (key, Some(value))).collect();
        self.changes.extend(changes.into_iter().filter(|(_, value)| value.is_some()));
        self.gone = 0;
    }

    /// So many of the first rows between two bounds.
    pub(super) fn rows(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        order: Order,
        count: usize,
    ) -> Vec<(Bytes, Bytes)> {
        if is_empty((lower, upper)) {
            return Vec::new();
        }
        let changes = self.changes.range::<_, [u8]>((lower, upper));
        let Some(base) = &self.base else {
            let rows = changes.filter_map(|(key, value)| Some((key.to_bytes(), value.clone()?)));
            return match order {
                Order::Forward => rows.take(count).collect(),
                Order::Reverse => rows.rev().take(count).collect(),
            };
        };
        let places = base.between(lower, upper);
        match order {
            Order::Forward => merged(base, places, changes, Key::cmp, count),
            Order::Reverse => {
                let reverse = |one: &Key, other: &Key| other.cmp(one);
                merged(base, places.rev(), changes.rev(), reverse, count)
            }
        }
    }
}

/// So many of the first rows of both sides; a change counts more than what it changes.
fn merged<'a>(
    base: &Base,
    places: impl Iterator<Item = usize>,
    changes: impl Iterator<Item = (&'a Key, &'a Option<Bytes>)>,
    compare: impl Fn(&Key, &Key) -> Ordering,
    count: usize,
) -> Vec<(Bytes, Bytes)> {
    let (mut unchanged, mut changes) = (places.map(|place| base.at(place)).peekable(), changes.peekable());
    let (mut rows, mut gone) = (Vec::new(), 0);
    while rows.len() < count {
        let first = match (unchanged.peek(), changes.peek()) {
            (Some((key, _)), Some((changed, _))) => compare(key, changed),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => break,
        };
        let unchanged = if first == Ordering::Greater { None } else { unchanged.next() };
        let change = if first == Ordering::Less { None } else { changes.next() };
        let row = match change {
            Some((key, value)) => value.clone().map(|value| (key.to_bytes(), value)),
            None => unchanged.map(|(key, value)| (key.to_bytes(), value)),
        };
        gone += usize::from(row.is_none());
        rows.extend(row);
    }
    base.pass(gone);
    rows
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fastrand::Rng;

    use super::super::group::Group;
    use super::*;
    use crate::storage::NewEntries;

    const GROUP: [u8; 17] = [0x11; 17];

    /// An item with some entries in one group.
    struct Thing(Vec<Vec<u8>>);

    impl NewEntries for Thing {
        fn family(&self) -> u32 {
            0
        }

        fn count(&self) -> usize {
            self.0.len()
        }

        fn form(&self) -> u64 {
            0
        }

        fn groups(&self) -> Vec<Vec<u8>> {
            vec![GROUP.to_vec()]
        }

        fn each(&self, put: &mut dyn FnMut(Bytes, Bytes)) {
            self.of_group(&GROUP, &mut |[start, _, end], value| {
                put([&GROUP, start, end].concat().into(), value.clone());
            });
        }

        fn of_group(&self, _: &[u8], put: &mut dyn FnMut([&[u8]; 3], &Bytes)) {
            for rest in &self.0 {
                let (start, end) = rest.split_at(rest.len() / 2);
                put([start, &[], end], &Bytes::copy_from_slice(&rest[..1]));
            }
        }
    }

    /// Many of these begin with the same bytes, and some are the start of another.
    fn rest(random: &mut Rng) -> Vec<u8> {
        let mut rest = vec![random.u8(0..3)];
        rest.resize(random.usize(1..30), 0);
        rest.extend((0..random.usize(0..60)).map(|_| random.u8(0..2)));
        rest
    }

    #[test]
    fn rows_of_a_base_and_of_its_changes_are_one_map() {
        let mut bases = 0;
        for seed in 0..40 {
            let mut random = Rng::with_seed(seed);
            let mut model = BTreeMap::new();
            let mut items: Vec<Arc<dyn NewEntries>> = Vec::new();
            for _ in 0..random.usize(1..600) {
                let mut thing = Thing(Vec::new());
                for _ in 0..random.usize(0..3) {
                    let rest = rest(&mut random);
                    let value = Bytes::copy_from_slice(&rest[..1]);
                    if model.insert([&GROUP[..], &rest].concat(), value).is_none() {
                        thing.0.push(rest);
                    }
                }
                items.push(Arc::new(thing));
            }
            let mut map = Base::new(Group::of(&GROUP), items.iter()).map_or_else(
                || {
                    let mut map = Map::default();
                    model.iter().for_each(|(key, value)| {
                        map.enter(Key::new(key.clone().into()), Some(value.clone()));
                    });
                    map
                },
                Map::from,
            );
            bases += usize::from(map.base.is_some());
            check(&map, &model, &mut random);
            while !model.is_empty() {
                let copy = (map.clone(), model.clone());
                for _ in 0..random.usize(1..100) {
                    let at = random.usize(0..model.len() + 1);
                    let known = model.keys().nth(at).filter(|_| random.f64() < 0.9).cloned();
                    let is_put = known.is_none() || random.f64() < 0.2;
                    let key = known.unwrap_or_else(|| [&GROUP[..], &rest(&mut random)].concat());
                    let value = (is_put && random.f64() < 0.8).then(|| Bytes::from_static(b"new"));
                    map.enter(Key::new(key.clone().into()), value.clone());
                    match value {
                        Some(value) => model.insert(key, value),
                        None => model.remove(&key),
                    };
                }
                check(&map, &model, &mut random);
                check(&copy.0, &copy.1, &mut random);
            }
            assert!(map.is_empty() && map.base.is_none(), "nothing is kept for nobody");
        }
        assert!(bases > 10, "{bases} had one");
    }

    #[test]
    fn nobody_passes_what_is_gone_for_long() {
        let things: Vec<Arc<dyn NewEntries>> =
            (0..1_000_u16).map(|n| Arc::new(Thing(vec![n.to_be_bytes().to_vec()])) as Arc<_>).collect();
        let mut map = Map::from(Base::new(Group::of(&GROUP), things.iter()).expect("they are many"));
        let mut taken = 0;
        while map.base.is_some() {
            let first = map.rows(Bound::Unbounded, Bound::Unbounded, Order::Forward, 1).remove(0).0;
            map.enter(Key::new(first), None);
            taken += 1;
        }
        assert!(taken < 50, "{taken} were taken from the front");
        drop(things);
        assert_eq!(map.rows(Bound::Unbounded, Bound::Unbounded, Order::Forward, 9_999).len(), 1_000 - taken);
    }

    fn check(map: &Map, model: &BTreeMap<Vec<u8>, Bytes>, random: &mut Rng) {
        let bound = |random: &mut Rng| [&GROUP[..], &rest(random)].concat();
        let (low, high) = (bound(random), bound(random));
        assert_eq!(map.get(&low), model.get(&low).cloned());
        assert_eq!(map.is_empty(), model.is_empty());
        for (lower, upper) in [
            (Bound::Unbounded, Bound::Unbounded),
            (Bound::Included(&low[..]), Bound::Excluded(&high[..])),
            (Bound::Excluded(&low[..]), Bound::Included(&high[..])),
        ] {
            let inside = |key: &[u8]| {
                !is_empty((lower, Bound::Included(key))) && !is_empty((Bound::Included(key), upper))
            };
            let rows = model.iter().filter(|(key, _)| inside(key));
            let expected: Vec<_> =
                rows.map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())).collect();
            let count = random.usize(0..=expected.len() + 1);
            let backwards = expected.iter().rev().take(count).cloned().collect::<Vec<_>>();
            assert_eq!(map.rows(lower, upper, Order::Reverse, count), backwards);
            assert_eq!(map.rows(lower, upper, Order::Forward, usize::MAX), expected);
        }
    }
}
