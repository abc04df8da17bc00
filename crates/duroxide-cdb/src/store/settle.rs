//! What to do after a write under a lock that did not simply succeed: the decision, without any I/O.
//!
//! Who writes a locked document, alone or in a batch, does so on condition of its ETag. When the answer is anything but
//! success, [`after`] says whether the fault alone tells what to do. If not, the caller reads the document and
//! [`judge`] says what that means. Renewal, abandon and ack, of turns and of activities, all decide here.

use crate::error::{Fault, Trouble};

/// What a failed write calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It was not applied: wait, and send it again.
    Again,
    /// Only the stored document tells what became of it.
    Look,
    /// It will never succeed as it is.
    Refuse,
}

/// Decides by the fault alone.
pub(crate) fn after(fault: &Fault) -> Next {
    match fault.trouble {
        Trouble::Missing | Trouble::Exists | Trouble::Changed => Next::Look,
        _ if cosmos_wire::mutant!(20) && fault.is_transient() => Next::Refuse,
        Trouble::Transient | Trouble::Refused if fault.may_have_been_applied => Next::Look,
        Trouble::Transient => Next::Again,
        Trouble::Refused if fault.may_pass() => Next::Again,
        Trouble::Refused => Next::Refuse,
    }
}

/// What a look at the locked document shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The write is in it.
    Applied,
    /// The lock is still the writer's. Whether the document has another ETag than the write asked for: a renewal or a
    /// recount moves it.
    Held { moved: bool },
    /// The lock is another's, or was given back.
    Lost,
    /// There is no such document any more.
    Gone,
}

/// What to do after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The write happened.
    Done,
    /// It did not, and may: send it again, on condition of the ETag that was seen.
    Again,
    /// The locked document is as expected: another document of the same batch is in the way.
    Blocked,
    /// The lock is another's.
    Lost,
    /// The document is gone.
    Gone,
}

/// Decides by the fault and by what a look has shown.
pub(crate) fn judge(fault: &Fault, seen: Seen) -> Verdict {
    match seen {
        Seen::Applied => Verdict::Done,
        Seen::Lost => Verdict::Lost,
        Seen::Gone => Verdict::Gone,
        Seen::Held { moved: true } => Verdict::Again,
        Seen::Held { moved: false } => match fault.trouble {
            Trouble::Transient | Trouble::Refused => Verdict::Again,
            // It is the locked document that is said to be gone, there or changed, and the look shows it unchanged: one of
            // the two answers came from a replica that lags behind. Both pass.
            Trouble::Missing | Trouble::Exists | Trouble::Changed
                if fault.index.is_none_or(|index| index == 0) =>
            {
                Verdict::Again
            }
            Trouble::Missing | Trouble::Exists | Trouble::Changed => Verdict::Blocked,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(status: u16) -> Fault {
        Fault::of_operation(0, status, 0, None)
    }

    fn of_another(status: u16) -> Fault {
        Fault::of_operation(1, status, 0, None)
    }

    fn unanswered() -> Fault {
        let mut fault = Fault::transient("reset");
        fault.may_have_been_applied = true;
        fault
    }

    fn denied() -> Fault {
        let mut fault = Fault::refused("403");
        fault.is_access_refused = true;
        fault
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "the table is for reading: run this test with --nocapture")]
    fn the_table_of_failed_writes() {
        let held = |moved| Seen::Held { moved };
        let all = [Seen::Applied, held(true), held(false), Seen::Lost, Seen::Gone];
        use Verdict::{Again, Blocked, Done, Gone, Lost};
        let rows = [
            ("429", fault(429), Next::Again, [Done, Again, Again, Lost, Gone]),
            ("503", fault(503), Next::Again, [Done, Again, Again, Lost, Gone]),
            ("no answer", unanswered(), Next::Look, [Done, Again, Again, Lost, Gone]),
            ("403", denied(), Next::Again, [Done, Again, Again, Lost, Gone]),
            ("404", fault(404), Next::Look, [Done, Again, Again, Lost, Gone]),
            ("409", fault(409), Next::Look, [Done, Again, Again, Lost, Gone]),
            ("other 409", of_another(409), Next::Look, [Done, Again, Blocked, Lost, Gone]),
            ("412", fault(412), Next::Look, [Done, Again, Again, Lost, Gone]),
            ("other 404", of_another(404), Next::Look, [Done, Again, Blocked, Lost, Gone]),
            ("other 412", of_another(412), Next::Look, [Done, Again, Blocked, Lost, Gone]),
            ("400", fault(400), Next::Refuse, [Done, Again, Again, Lost, Gone]),
            ("413", fault(413), Next::Refuse, [Done, Again, Again, Lost, Gone]),
        ];
        for (name, fault, next, verdicts) in rows {
            let judged = all.map(|seen| judge(&fault, seen));
            println!("{name:>9}: {:?}; after a look {judged:?}", after(&fault));
            assert_eq!((after(&fault), judged), (next, verdicts), "{name}");
        }
    }
}
