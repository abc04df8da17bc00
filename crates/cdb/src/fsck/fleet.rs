//! The documents of the fleet. Members put right whatever is wrong with them, so most of what is found here needs nobody:
//! it is said because it explains why work is slow for a while.

use serde_json::Value;

use super::{Defect, Level, Repair};
use crate::fleet::{Fleet, LEASES, Member, name_of, ranges};
use crate::model::{kind, text_of, type_of};

/// What is wrong with the documents of the fleet. `is_work_there`: some workflow is running.
pub(crate) fn check(rows: &[Value], is_work_there: bool, now_ms: u64) -> Vec<Defect> {
    let fleet = Fleet::new(rows, now_ms);
    let mut report = Report { defects: Vec::new() };
    if rows.is_empty() {
        if is_work_there {
            report.passing(
                "the partition of the leases is empty: no runtime is a member, or somebody has deleted it. Runtimes \
                 that run write it again with their next heartbeat; if none runs, start one",
            );
        }
        return report.defects;
    }
    documents(rows, &mut report);
    names(&fleet, &mut report);
    if fleet.living().next().is_some() {
        table(rows, &fleet, &mut report);
        if !rows.iter().any(|row| type_of(row) == kind::BELL) {
            report.passing(
                "the bell is missing: until a member has made it anew, what one process writes for another is found by \
                 a search, within seconds",
            );
        }
    }
    report.defects
}

struct Report {
    defects: Vec<Defect>,
}

impl Report {
    fn add(&mut self, level: Level, text: impl Into<String>, repair: Option<Repair>) {
        self.defects.push(Defect { instance: LEASES.to_owned(), level, text: text.into(), repair });
    }

    fn passing(&mut self, text: impl Into<String>) {
        self.add(Level::Passing, text, None);
    }
}

/// Documents that cannot be what they say.
fn documents(rows: &[Value], report: &mut Report) {
    for row in rows {
        let remove =
            || Repair::Remove { id: text_of(row, "id").to_owned(), etag: text_of(row, "_etag").to_owned() };
        match type_of(row) {
            kind::MEMBER => {
                if let Some(why) = duroxide_cdb::unreadable(row.to_string().as_bytes()) {
                    let text = format!("{} cannot be read: {why}. Members pass it over", name_of(row));
                    report.add(Level::Litter, text, Some(remove()));
                }
            }
            kind::SLOT_TABLE | kind::BELL => {
                if let Some(why) = duroxide_cdb::unreadable(row.to_string().as_bytes()) {
                    let text = format!(
                        "{} cannot be read: {why}. The next member that looks replaces it",
                        name_of(row)
                    );
                    report.passing(text);
                }
            }
            _ => report.add(
                Level::Litter,
                format!("{} is none of the fleet's: nobody looks at it", name_of(row)),
                Some(remove()),
            ),
        }
    }
}

/// Members that share a name share locks and slots: each takes the other for itself.
fn names(fleet: &Fleet, report: &mut Report) {
    for member in &fleet.members {
        if member.id != format!("member:{}", member.owner) {
            let text = format!(
                "the document {:?} tells of a member {:?}, whose own is another: somebody copied it. It is passed over \
                 when its lease has ended",
                member.id, member.owner
            );
            report.passing(text);
        }
        let is_second = |other: &&Member| {
            let given = other.owner.split_once('~').map(|(name, _)| name);
            given == Some(member.owner.as_str())
        };
        if fleet.living().any(|living| living.id == member.id)
            && let Some(other) = fleet.living().find(is_second)
        {
            report.passing(format!(
                "two members were started under the name {:?}: the second calls itself {:?}. Give each an `owner` of its \
                 own, or none",
                member.owner, other.owner
            ));
        }
    }
}

/// The table against those who live.
fn table(rows: &[Value], fleet: &Fleet, report: &mut Report) {
    let mut tables = rows.iter().filter(|row| type_of(row) == kind::SLOT_TABLE);
    if tables.next().is_none() {
        return report.passing("the table of slots is missing: the next heartbeat of a member writes one");
    }
    let mut named = vec![0_u32; 256];
    for share in &fleet.shares {
        if share.first > share.last || share.last > 255 {
            report.passing(format!(
                "the table of slots has a share from {} to {}, which there is not",
                share.first, share.last
            ));
            continue;
        }
        let (first, last) = (share.first as usize, share.last as usize);
        named.iter_mut().take(last + 1).skip(first).for_each(|count| *count += 1);
    }
    let twice: Vec<usize> = (0..named.len()).filter(|slot| named[*slot] > 1).collect();
    if !twice.is_empty() {
        report.passing(format!("the table names two owners for slots {}: the first counts", ranges(&twice)));
    }
    let owners: Vec<&str> = fleet.slots().into_keys().collect();
    let is_alive = |owner: &str| fleet.living().any(|member| member.owner == owner);
    if !owners.is_empty() && !owners.iter().any(|owner| is_alive(owner)) {
        report.passing(format!(
            "the table of slots names nobody who lives ({}): the next heartbeat of a member divides them anew",
            owners.join(", ")
        ));
    } else {
        let unowned = fleet.unowned();
        if !unowned.is_empty() {
            report.passing(format!(
                "slots {} have no living owner: a member takes them over when its lease has ended",
                ranges(&unowned)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::tests::{NOW, bell, member, table as slots};

    fn told(rows: &[Value], is_work_there: bool) -> Vec<(Level, String)> {
        check(rows, is_work_there, NOW).into_iter().map(|defect| (defect.level, defect.text)).collect()
    }

    /// Exactly one thing is wrong, and it passes by itself.
    #[track_caller]
    fn passes(rows: &[Value], words: &str) {
        let told = told(rows, true);
        assert!(matches!(&told[..], [(Level::Passing, text)] if text.contains(words)), "{words}: {told:#?}");
    }

    #[test]
    fn a_sound_fleet_and_a_container_that_nothing_runs_on_are_right() {
        assert_eq!(told(&[], false), []);
        let sound = [member("a", NOW), member("b", NOW), slots(&[(0, 127, "a"), (128, 255, "b")]), bell()];
        assert_eq!(told(&sound, true), []);
        let ended = [member("a", NOW - 60_000), slots(&[(0, 255, "a")]), bell()];
        assert_eq!(told(&ended, true), [], "who has ended is nobody's concern: `cdb runtimes` says so");
    }

    #[test]
    fn what_members_put_right_by_themselves_is_said_and_nothing_has_to_be_done() {
        passes(&[], "the partition of the leases is empty");
        passes(&[member("a", NOW), bell()], "the table of slots is missing");
        passes(&[member("a", NOW), slots(&[(0, 255, "a")])], "the bell is missing");
        passes(&[member("a", NOW), slots(&[(0, 255, "nobody")]), bell()], "names nobody who lives (nobody)");
        passes(&[member("a", NOW), slots(&[(0, 99, "a"), (100, 255, "dead")]), bell()], "slots 100-255");
        passes(&[member("a", NOW), slots(&[(0, 99, "a")]), bell()], "slots 100-255 have no living owner");
        passes(&[member("a", NOW), slots(&[(0, 255, "a"), (7, 9, "a")]), bell()], "two owners for slots 7-9");
        passes(&[member("a", NOW), slots(&[(0, 255, "a"), (9, 7, "a")]), bell()], "from 9 to 7");
        let second =
            [member("a", NOW), member("a~1f2e3d", NOW), slots(&[(0, 99, "a"), (100, 255, "a~1f2e3d")])];
        passes(&[&second[..], &[bell()]].concat(), "two members were started under the name \"a\"");
        let mut copy = member("a", NOW);
        copy["id"] = json!("member:copy");
        passes(&[member("a", NOW), copy, slots(&[(0, 255, "a")]), bell()], "somebody copied it");
        let mut bad = bell();
        bad["rings"] = json!("loud");
        passes(&[member("a", NOW), slots(&[(0, 255, "a")]), bad], "\"bell\" (bell) cannot be read");
    }

    #[test]
    fn a_table_that_cannot_be_read_is_told_with_what_follows() {
        let mut bad = slots(&[]);
        bad["shares"] = json!({"first": "x"});
        let told = told(&[member("a", NOW), bad, bell()], true);
        assert!(told.iter().all(|(level, _)| *level == Level::Passing), "{told:?}");
        assert!(told[0].1.contains("\"slots\" (slot_table) cannot be read"), "{told:?}");
    }

    #[test]
    fn what_nobody_reads_can_be_removed() {
        let sound = [member("a", NOW), slots(&[(0, 255, "a")]), bell()];
        let mut bad = member("b", NOW);
        bad["beatAt"] = json!("yesterday");
        bad["leaseUntil"] = json!(0);
        for (row, words) in
            [(bad, "cannot be read"), (json!({"id": "x", "type": "note"}), "none of the fleet's")]
        {
            let found = check(&[&sound[..], &[row]].concat(), true, NOW);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].level == Level::Litter && found[0].repair.is_some(), "{found:?}");
            assert!(found[0].text.contains(words), "{found:?}");
        }
    }
}
