//! What a write that did not simply succeed has come to: the decisions, without any I/O.
//!
//! Cosmos DB answers a write with 404, 409 or 412 when what it rests on is not there, is there, or has changed. After a
//! write whose answer got lost, the same statuses may mean that the lost write was applied. Every place of this crate that
//! has to tell one from the other decides here. There are three kinds:
//!
//! 1. *Free-standing writes* ([`settled`]): deliveries, staging, sweeps, enqueued messages, records of deletions, sessions,
//!    the table of the fleet. What the write [rests](Rests) on tells what a refusal means, without another request. A
//!    worked example: a reconciler takes over what a dead process had staged. Its batch creates a list under a random id and
//!    removes the mark of the other's commit by ETag. The answer gets lost, the batch is sent again and is answered 409: the
//!    list is there, under an id that only this call knows, so the first try [arrived](Settled::Arrived). Had the answer
//!    been 412, the dead process would be alive and have committed: the sweep is [superseded](Settled::Superseded).
//! 2. *Claims* ([`after`], [`judge`]): the lock of a head or of an activity is taken on condition of the ETag it was found
//!    with. The document tells whose lock is there now.
//! 3. *Writes under a lock* (the same two): renewal, abandon and ack of turns and of activities, each on condition of the
//!    ETag of the locked document. [`after`] says whether the fault alone tells what to do. If not, the caller reads the
//!    document, and [`judge`] says what that means.
//!
//! `cargo test -p duroxide-cdb --lib settle -- --nocapture` prints both tables.

use crate::documents::{Lockable, Tagged};
use crate::error::{Fault, Trouble};

/// What a free-standing write rests on, which tells how its refusal is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rests {
    /// It creates a document under an id that only this call uses, as a commit id is.
    OwnId,
    /// The operation with this number removes a document that goes only with this write.
    Removal(usize),
    /// It creates, changes or removes only what other processes create, change or remove as well.
    Shared,
}

/// What a free-standing write has come to.
#[derive(Debug, Clone)]
pub(crate) enum Settled<T> {
    /// It was carried out; with the new ETags.
    Applied(T),
    /// An earlier try of it was, whose answer got lost and with it the ETags.
    Arrived,
    /// Nothing was written: another process has created, changed or removed what it rests on.
    Superseded(Fault),
}

impl<T> Settled<T> {
    /// What was written, if its answer arrived. An error for who cannot go on without having written.
    pub(crate) fn unless_superseded(self) -> Result<Option<T>, Fault> {
        match self {
            Self::Applied(done) => Ok(Some(done)),
            Self::Arrived => Ok(None),
            Self::Superseded(fault) => Err(fault),
        }
    }
}

/// Whether a fault says that another process has created, changed or removed what a free-standing write rests on.
pub(crate) fn is_superseded(fault: &Fault) -> bool {
    matches!(fault.trouble, Trouble::Missing | Trouble::Exists | Trouble::Changed)
}

/// Decides by the answer to a free-standing write. What may pass, and what never can be written, stays an error.
pub(crate) fn settled<T>(outcome: Result<T, Fault>, rests: Rests) -> Result<Settled<T>, Fault> {
    let fault = match outcome {
        Ok(done) => return Ok(Settled::Applied(done)),
        Err(fault) => fault,
    };
    match (fault.trouble, rests) {
        (Trouble::Transient | Trouble::Refused, _) => Err(fault),
        (Trouble::Exists, Rests::OwnId) => Ok(Settled::Arrived),
        (Trouble::Exists, Rests::Removal(_)) if fault.follows_doubt => Ok(Settled::Arrived),
        (Trouble::Missing, Rests::Removal(index)) if fault.follows_doubt && fault.index == Some(index) => {
            Ok(Settled::Arrived)
        }
        (Trouble::Missing | Trouble::Exists | Trouble::Changed, _) => Ok(Settled::Superseded(fault)),
    }
}

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
    /// The lock is still the writer's, or still free for the claim. Whether the document has another ETag than the write asked for: a renewal or a
    /// recount moves it.
    Held { moved: bool },
    /// The lock is another's, or was given back.
    Lost,
    /// There is no such document any more.
    Gone,
}

/// What a look at a document shows to who has claimed its lock with `secret`, on condition of the ETag it was found with, or
/// of its not being there.
pub(crate) fn seen_by_claim<D: Lockable>(
    secret: &str,
    etag: Option<&str>,
    found: Option<&Tagged<D>>,
) -> Seen {
    match (found, etag) {
        (Some(found), _) if found.document.lock_token() == Some(secret) => Seen::Applied,
        (Some(found), Some(etag)) if found.etag == etag => Seen::Held { moved: false },
        (Some(_), _) => Seen::Lost,
        (None, None) => Seen::Held { moved: false },
        (None, Some(_)) => Seen::Gone,
    }
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
    use crate::documents::Head;

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
    fn the_table_of_refused_free_standing_writes() {
        let again = |mut fault: Fault| {
            fault.follows_doubt = true;
            fault
        };
        let all = [Rests::OwnId, Rests::Removal(0), Rests::Removal(1), Rests::Shared];
        let rows = [
            ("404", fault(404), ["superseded"; 4]),
            ("404 after doubt", again(fault(404)), ["superseded", "arrived", "superseded", "superseded"]),
            (
                "other 404 after doubt",
                again(of_another(404)),
                ["superseded", "superseded", "arrived", "superseded"],
            ),
            ("409", fault(409), ["arrived", "superseded", "superseded", "superseded"]),
            ("409 after doubt", again(fault(409)), ["arrived", "arrived", "arrived", "superseded"]),
            ("412", fault(412), ["superseded"; 4]),
            ("412 after doubt", again(fault(412)), ["superseded"; 4]),
            ("429", fault(429), ["error"; 4]),
            ("no answer", unanswered(), ["error"; 4]),
            ("403", denied(), ["error"; 4]),
            ("400", fault(400), ["error"; 4]),
        ];
        for (name, fault, expected) in rows {
            let told = all.map(|rests| match settled::<()>(Err(fault.clone()), rests) {
                Ok(Settled::Applied(())) => "applied",
                Ok(Settled::Arrived) => "arrived",
                Ok(Settled::Superseded(_)) => "superseded",
                Err(_) => "error",
            });
            println!("{name:>22}: {told:?}");
            assert_eq!(told, expected, "{name}");
        }
    }

    #[test]
    fn a_claim_recognises_its_own_lock_and_what_nobody_has_touched() {
        let found = |lock: Option<&str>, etag: &str| {
            let mut head = Head::unstarted("a", 1);
            head.lock_token = lock.map(ToOwned::to_owned);
            Some(Tagged { document: head, etag: etag.to_owned() })
        };
        for (found, etag, seen) in [
            (found(Some("mine"), "2"), Some("1"), Seen::Applied),
            (found(Some("mine"), "1"), None, Seen::Applied),
            (found(Some("other"), "1"), Some("1"), Seen::Held { moved: false }),
            (found(None, "2"), Some("1"), Seen::Lost),
            (found(Some("other"), "1"), None, Seen::Lost),
            (None, Some("1"), Seen::Gone),
            (None, None, Seen::Held { moved: false }),
        ] {
            assert_eq!(seen_by_claim("mine", etag, found.as_ref()), seen, "{found:?} {etag:?}");
        }
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
