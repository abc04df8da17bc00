//! How many processes the work in a container needs: a pure function of what can be seen there.
//!
//! The figure: everything that could run now (ready and running turns and activities), divided by how much one process runs at
//! once, rounded up. Half of the processes would take twice as long, and more would have nothing to do. While anything is
//! due within a minute, at least one is needed: a timer fires only if somebody is there.

use serde::Serialize;

/// What one process is expected to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Turns and activities that one process runs at once; if that is not said, what the members were seen to run.
    pub(crate) per_process: Option<u64>,
}

/// What there is to do, and who does it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) ready: u64,
    pub(super) running: u64,
    /// What is due within a minute and not ready yet.
    pub(super) soon: u64,
    pub(super) members: u64,
    /// What all members together were seen to run at once.
    pub(super) capacity: u64,
}

/// The answer to a scaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Scale {
    /// How many processes are needed.
    pub(super) needed: u64,
    pub(super) ready: u64,
    pub(super) running: u64,
    pub(super) soon: u64,
    pub(super) members: u64,
    pub(super) per_process: u64,
}

/// Decides how many processes are needed.
pub(super) fn scale(demand: Demand, rule: Rule) -> Scale {
    let Demand { ready, running, soon, members, capacity } = demand;
    let seen = (members > 0 && capacity >= members).then(|| capacity / members.max(1));
    let per_process = rule.per_process.or(seen).unwrap_or(PER_PROCESS).max(1);
    let work = ready.saturating_add(running);
    let needed = work.div_ceil(per_process).max(u64::from(work > 0 || soon > 0));
    Scale { needed, ready, running, soon, members, per_process }
}

/// What a runtime with the default options runs at once: two turns and two activities.
const PER_PROCESS: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_is_divided_by_what_a_process_runs_at_once() {
        let demand =
            |ready, running, soon, members, capacity| Demand { ready, running, soon, members, capacity };
        for (what, demand, per_process, needed) in [
            ("nothing to do", demand(0, 0, 0, 3, 30), None, 0),
            ("a timer fires within a minute", demand(0, 0, 1, 0, 0), None, 1),
            ("nobody is there", demand(9, 0, 0, 0, 0), None, 3),
            ("ten each, as they were seen to run", demand(95, 6, 0, 3, 30), None, 11),
            ("as was said", demand(95, 6, 0, 3, 30), Some(50), 3),
            ("they just run what there is", demand(0, 20, 0, 2, 20), None, 2),
            ("members that have not told", demand(8, 0, 0, 2, 0), None, 2),
            ("zero is no divisor", demand(1, 0, 0, 1, 1), Some(0), 1),
            ("more than there are processes", demand(u64::MAX, 5, 0, 1, 1), None, u64::MAX),
        ] {
            assert_eq!(scale(demand, Rule { per_process }).needed, needed, "{what}");
        }
    }
}
