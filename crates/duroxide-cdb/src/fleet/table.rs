//! Who looks after which slots: the decisions, without any I/O.
//!
//! A slot is given, not taken. While its owner lives, only the owner writes another name in its place, after it has written
//! down what it does in the slot; others can only ask for it. What belonged to a member whose lease has ended, or to nobody,
//! is divided by whoever notices. Each table is written on condition of the one before, so two that notice at the same
//! moment do not overlap.
//!
//! A worked example. `a` is alone, `b` joins:
//!
//! | table | slots 0 to 127 | slots 128 to 255 |
//! |---|---|---|
//! | 1, by `a` | `a` | `a` |
//! | 2, by `b`, which has told that it is there | `a` | `a`, asked for by `b` |
//! | 3, by `a`, which has written the locks it held there | `a` | `b` |

use std::collections::BTreeSet;

use crate::documents::{SlotTable, TableShare};
use crate::slot_leases::index_of;
use crate::slots::SlotSet;

/// One slot of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held<'a> {
    owner: &'a str,
    next: Option<&'a str>,
}

/// The table that should follow this one, given the names of the living members. `None` if it is right as it is, or if
/// nobody lives.
pub(super) fn next_table(table: &SlotTable, living: &BTreeSet<&str>) -> Option<SlotTable> {
    let members: Vec<&str> = living.iter().copied().collect();
    if members.is_empty() {
        return None;
    }
    let next = |slot: u8, held: Option<Held<'_>>| {
        let target = members[index_of(slot, members.len())];
        match held {
            Some(held) if living.contains(held.owner) => {
                let next = (held.owner != target).then_some(target);
                Some((held.owner.to_owned(), next.map(ToOwned::to_owned)))
            }
            _ => Some((target.to_owned(), None)),
        }
    };
    changed(table, next)
}

/// The table after an owner has let go of slots that others wait for.
pub(super) fn after_handover(table: &SlotTable, owner: &str, slots: SlotSet) -> Option<SlotTable> {
    changed(table, |slot, held| {
        let held = held?;
        let next = held.next.filter(|_| held.owner == owner && slots.contains(slot));
        Some((
            next.unwrap_or(held.owner).to_owned(),
            held.next.filter(|_| next.is_none()).map(ToOwned::to_owned),
        ))
    })
}

/// The table after an owner has left. `None` if it owned nothing, or if nobody else lives: the next one to come divides.
pub(super) fn after_leaving(table: &SlotTable, owner: &str, living: &BTreeSet<&str>) -> Option<SlotTable> {
    let others: BTreeSet<&str> = living.iter().copied().filter(|name| *name != owner).collect();
    next_table(table, &others)
}

/// The slots that a name has in a table, and those among them that others wait for.
pub(super) fn slots_of(table: &SlotTable, owner: &str) -> (SlotSet, SlotSet) {
    let (mut own, mut wanted) = (SlotSet::EMPTY, SlotSet::EMPTY);
    for share in table.shares.iter().filter(|share| share.owner == owner) {
        for slot in share.first..=share.last {
            own.insert(slot);
            if share.next.is_some() {
                wanted.insert(slot);
            }
        }
    }
    (own, wanted)
}

/// The next table, if it says something else than this one.
fn changed<'a>(
    table: &'a SlotTable,
    next: impl Fn(u8, Option<Held<'a>>) -> Option<(String, Option<String>)>,
) -> Option<SlotTable> {
    let mut before: [Option<Held<'a>>; 256] = [None; 256];
    for share in &table.shares {
        // A table that was damaged may name a slot twice: then it is the first one's.
        for slot in share.first..=share.last {
            let held = Held { owner: &share.owner, next: share.next.as_deref() };
            before[usize::from(slot)].get_or_insert(held);
        }
    }
    let mut shares: Vec<TableShare> = Vec::new();
    for slot in 0..=u8::MAX {
        let Some((owner, next)) = next(slot, before[usize::from(slot)]) else { continue };
        match shares.last_mut() {
            Some(last)
                if last.owner == owner && last.next == next && last.last.checked_add(1) == Some(slot) =>
            {
                last.last = slot;
            }
            _ => shares.push(TableShare { first: slot, last: slot, owner, next }),
        }
    }
    (shares != table.shares).then(|| SlotTable::new(table.epoch + 1, shares))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<'a>(names: &[&'a str]) -> BTreeSet<&'a str> {
        names.iter().copied().collect()
    }

    /// A table as text: each share's slots, owner and who waits for them.
    fn text(table: &SlotTable) -> String {
        let share = |share: &TableShare| {
            let next = share.next.as_ref().map(|next| format!(">{next}")).unwrap_or_default();
            format!("{}-{}:{}{next}", share.first, share.last, share.owner)
        };
        table.shares.iter().map(share).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_slot_moves_only_when_its_owner_lets_go_or_is_dead() {
        let mut table = SlotTable::new(0, Vec::new());
        let mut story = Vec::new();
        let mut step = |table: &mut SlotTable, next: Option<SlotTable>| {
            if let Some(next) = next {
                assert_eq!(next.epoch, table.epoch + 1);
                *table = next;
            }
            story.push(text(table));
        };
        let next = next_table(&table, &names(&["a"]));
        step(&mut table, next);
        let next = next_table(&table, &names(&["a", "b"]));
        step(&mut table, next);
        let next = after_handover(&table, "a", (128..=200).collect());
        step(&mut table, next);
        let next = after_handover(&table, "a", slots_of(&table, "a").1);
        step(&mut table, next);
        let next = next_table(&table, &names(&["b", "c"]));
        step(&mut table, next);
        let next = after_leaving(&table, "c", &names(&["b", "c"]));
        step(&mut table, next);
        let expected = [
            "0-255:a",
            "0-127:a 128-255:a>b",
            "0-127:a 128-200:b 201-255:a>b",
            "0-127:a 128-255:b",
            "0-127:b 128-255:b>c",
            "0-255:b",
        ];
        assert_eq!(story, expected);
        assert_eq!(next_table(&table, &names(&["b"])), None, "it is right as it is");
        assert_eq!(after_leaving(&table, "b", &names(&["b"])), None, "nobody is left to give it to");
    }

    #[test]
    fn whatever_a_table_says_the_next_one_divides_all_slots_among_the_living() {
        let share = |first, last, owner: &str, next: Option<&str>| TableShare {
            first,
            last,
            owner: owner.into(),
            next: next.map(ToOwned::to_owned),
        };
        let tables = [
            vec![],
            vec![share(0, 255, "nobody", None)],
            vec![share(10, 5, "a", None), share(0, 3, "", Some("a"))],
            vec![share(0, 200, "a", None), share(100, 255, "b", Some("nobody"))],
        ];
        let living = names(&["a", "b", "c"]);
        for shares in tables {
            let mut table = SlotTable::new(7, shares);
            for _ in 0..10 {
                for name in ["a", "b", "c"] {
                    table = next_table(&table, &living).unwrap_or(table);
                    let wanted = slots_of(&table, name).1;
                    table = after_handover(&table, name, wanted).unwrap_or(table);
                }
            }
            let sizes: Vec<usize> = ["a", "b", "c"].map(|name| slots_of(&table, name).0.len()).to_vec();
            assert_eq!(sizes.iter().sum::<usize>(), 256, "{}", text(&table));
            assert!(sizes.iter().all(|size| (85..=86).contains(size)), "{}", text(&table));
        }
    }
}
