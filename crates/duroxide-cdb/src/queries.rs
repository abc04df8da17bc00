//! Every SQL text, as a constant with parameters.

use std::borrow::Cow;

use serde_json::Value;

/// A query: a text, constant but for what is left out of one, and its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) text: Cow<'static, str>,
    pub(crate) parameters: Vec<(&'static str, Value)>,
    /// Whether it is asked in the region that takes writes, because others may be behind.
    pub(crate) is_for_latest: bool,
}

impl Query {
    /// A query without parameters.
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text: Cow::Borrowed(text), parameters: Vec::new(), is_for_latest: false }
    }

    /// The same, asked where other processes write: what is decided by the answer cannot be taken back, and nothing but
    /// the answer tells of what they wrote.
    pub(crate) fn for_latest(mut self) -> Self {
        self.is_for_latest = true;
        self
    }

    /// How many rows it asks for, if it says so.
    pub(crate) fn rows(&self) -> Option<u32> {
        let (_, rows) = self.parameters.iter().find(|(name, _)| *name == "@rows")?;
        rows.as_u64().and_then(|rows| u32::try_from(rows).ok())
    }

    /// The same with one more parameter.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.parameters.push((name, value.into()));
        self
    }
}

/// Whether a work item is for the kind of worker that searches.
macro_rules! for_searcher {
    () => {
        "(@anyTag = true OR (@untagged = true AND NOT IS_STRING(c.tag)) \
          OR (IS_STRING(c.tag) AND ARRAY_CONTAINS(@tags, c.tag))) \
         AND (NOT IS_STRING(c.sessionId) \
              OR (@sessions = true AND NOT ARRAY_CONTAINS(@foreign, c.sessionId)))"
    };
}

/// Work items for a kind of worker, as far as a search needs them.
macro_rules! work_items {
    ($which:expr) => {
        concat!(
            "SELECT TOP @rows c.visibleAt, c.lane, (",
            for_searcher!(),
            " ? c : null) AS item FROM c WHERE c.type = 'worker_queue' AND ",
            $which
        )
    };
}

/// Heads of instances that listings show. Those of the public crate up to 0.1.10 have no format, or the number 0 where an
/// earlier version of this crate took a deletion back, and are named unless they only held a lock.
macro_rules! instances {
    () => {
        "c.type = 'instance' AND (c.started = true \
         OR ((NOT IS_DEFINED(c.formatVersion) OR c.formatVersion = 0) AND c.orchestrationName != ''))"
    };
}

/// One partition: everything a turn needs. History only of execution `@exec` after event `@after`, values only of
/// turns after `@turn`.
pub(crate) const LOAD: &str = "SELECT * FROM c WHERE c.type IN ('instance', 'deleting', 'manifest', 'kv', 'kv_delta') \
    OR (c.type = 'orch_queue' AND (c.visibleAt <= @now OR c.parkedAt > 0)) \
    OR (c.type = 'value' AND c.sinceTurn > @turn) \
    OR (c.type = 'history' AND c.executionId = @exec AND c.eventId > @after)";

/// One partition: what there is of [`LOAD`] once or a few times. Beside a long queue the parts are asked for one by one:
/// an account that cannot serve all of it from its indexes at once would look at the whole queue.
pub(crate) const LOAD_HEAD: &str =
    "SELECT * FROM c WHERE c.type IN ('instance', 'deleting', 'manifest', 'kv', 'kv_delta')";

/// One partition: the values of turns after one.
pub(crate) const VALUES_SINCE: &str = "SELECT * FROM c WHERE c.type = 'value' AND c.sinceTurn > @turn";

/// One partition: the first messages of a long queue.
pub(crate) const FIRST_MESSAGES: &str = "SELECT TOP @rows c.seq, LENGTH(c.workItem) AS size FROM c \
    WHERE c.type = 'orch_queue' AND (c.visibleAt <= @now OR c.parkedAt > 0) AND c.seq > 0 AND c.seq >= @least ORDER BY c.seq";

/// One partition: the messages of a part of a long queue.
pub(crate) const MESSAGES_BETWEEN: &str = "SELECT * FROM c WHERE c.type = 'orch_queue' \
    AND (c.visibleAt <= @now OR c.parkedAt > 0) AND c.seq >= @least AND c.seq <= @upto ORDER BY c.seq";

/// One partition: of the messages that have been due for longest those without an order key, as the public crate wrote
/// them. The others come as nothing, so that the index need not tell which are without.
pub(crate) const OLDEST_UNKEYED: &str = "SELECT TOP @rows c.visibleAt, (IS_DEFINED(c.seq) ? null : c) AS message FROM c \
    WHERE c.type = 'orch_queue' AND c.visibleAt <= @now ORDER BY c.type, c.visibleAt";

/// One partition: the history of one execution after an event.
pub(crate) const HISTORY: &str =
    "SELECT * FROM c WHERE c.type = 'history' AND c.executionId = @exec AND c.eventId > @after";

/// One partition: what the public crate kept key-values in.
pub(crate) const LEGACY_VALUES: &str = "SELECT * FROM c WHERE c.type IN ('kv', 'kv_delta')";

/// One partition: unfinished commits.
pub(crate) const MANIFESTS: &str = "SELECT * FROM c WHERE c.type = 'manifest' AND c.committed = true";

/// One partition: work items of an activity, whatever their ids.
pub(crate) const WORK_OF_INSTANCE: &str = "SELECT c.id, c.executionId, c.execution, c.activityId, c.chunks FROM c \
    WHERE c.type = 'worker_queue'";

/// One partition: the queued messages with the ids given.
pub(crate) const MESSAGES_BY_ID: &str =
    "SELECT * FROM c WHERE c.type = 'orch_queue' AND ARRAY_CONTAINS(@ids, c.id)";

/// One partition: the versions of the queued messages with the ids given.
pub(crate) const VERSIONS_BY_ID: &str =
    "SELECT c.id, c._etag FROM c WHERE c.type = 'orch_queue' AND ARRAY_CONTAINS(@ids, c.id)";

/// One partition: the executions that have a record or history.
pub(crate) const EXECUTIONS: &str = "SELECT c.type, c.executionId, c.status, c.completedAt, c.eventCount FROM c \
    WHERE c.type IN ('execution', 'history')";

/// One partition: documents of one execution.
pub(crate) const EXECUTION_DOCUMENTS: &str = "SELECT c.id, c.type, c.eventCount, c.chunks, c._etag FROM c \
    WHERE c.type IN ('history', 'execution') AND c.executionId = @exec";

/// One partition: what an instance leaves, but for its head and the marks that must outlive it. Of commits only those
/// that are being prepared.
pub(crate) const CONTENTS: &str = "SELECT c.id, c.type, c.eventCount, c.chunks, c.commit, c.delivered, \
    c._etag, LEFT(c.workItem, 32) AS item FROM c \
    WHERE NOT (c.type IN ('instance', 'deleting', 'tombstone', 'outbox_intent', 'manifest')) \
    OR NOT IS_STRING(c.type) OR (c.type = 'manifest' AND c.committed = false)";

/// One partition: all of it, as far as a deletion has to know it, and the head as it is.
pub(crate) const REMAINS: &str = "SELECT c.id, c.type, c.eventCount, c.chunks, c.commit, c.delivered, c._etag, \
    LEFT(c.workItem, 32) AS item, (c.type = 'instance' ? c : null) AS head FROM c";

/// One range: whoever has this parent, begun or not.
pub(crate) const RELATIVES: &str = "SELECT VALUE c.instanceId FROM c WHERE c.parentInstanceId = @parent \
    AND c.type IN ('instance', 'deleting', 'orch_queue')";

/// One partition: which messages wait.
pub(crate) const QUEUED: &str = "SELECT TOP @rows c.id, c.seq, c.enqueuedAt, c.parentInstanceId, c.chunks, \
    LEFT(c.workItem, 32) AS item FROM c WHERE c.type = 'orch_queue'";

/// One partition: what is to be known of due messages to put them aside.
pub(crate) const DUE_OUTLINES: &str = "SELECT TOP @rows c.id, c.instanceId, c.type, '' AS workItem, c.visibleAt, \
    c.enqueuedAt, c.seq, c._etag FROM c WHERE c.type = 'orch_queue' AND c.visibleAt <= @now";

/// One partition: a start that is not visible yet, told by its text, or by its order key if that is in pieces.
pub(crate) const LATER_START: &str = "SELECT TOP 1 c.id FROM c WHERE c.type = 'orch_queue' AND c.visibleAt > @now \
    AND (STARTSWITH(c.workItem, @start) OR (c.seq > 0 AND c.seq < @below))";

/// One partition: undelivered messages to other partitions.
pub(crate) const INTENTS: &str = "SELECT * FROM c WHERE c.type = 'outbox_intent'";

/// One partition: as [`INTENTS`], and the commits that may still bring some, as well as those of which that cannot be told.
pub(crate) const UNSENT: &str = "SELECT * FROM c WHERE c.type = 'outbox_intent' \
    OR (c.type = 'manifest' AND (c.committed = true OR NOT IS_BOOL(c.committed)))";

/// One range: due messages, the oldest first. The composite index holds them in this order, so what waits for later
/// is never looked at, and no page looks at more than it returns: nothing is left out of it.
pub(crate) const FIND_TURNS: &str = "SELECT TOP @rows c.id, c.instanceId, c.seq, c.enqueuedAt, c.visibleAt FROM c \
    WHERE c.type = 'orch_queue' AND c.visibleAt <= @now AND c.visibleAt >= @from \
    ORDER BY c.type, c.visibleAt";

/// The partition of the fleet: its members and the table of slots.
pub(crate) const FLEET: &str = "SELECT * FROM c WHERE c.type IN ('member', 'slot_table')";

/// The service's time in milliseconds, from any partition.
pub(crate) const TIME: &str = "SELECT VALUE GetCurrentTimestamp()";

/// One range: who can run instances, by the ids of their heads.
pub(crate) const HEAD_OUTLINES: &str = "SELECT c.id, c.instanceId, c.pinnedVersion, \
    c.pinnedDuroxideVersionPacked, c.lockToken, c.lockedUntil FROM c WHERE ARRAY_CONTAINS(@ids, c.id)";

/// One range: until when sessions are owned. Their items have the same `sessionId` and may be many: the path that is
/// asked for is one that only sessions have.
pub(crate) const SESSION_OWNERS: &str =
    "SELECT c.sessionId, c.lockedUntil FROM c WHERE ARRAY_CONTAINS(@ids, c.ownedSession)";

/// One range: the oldest visible work items, whomever they are for, so that a page never looks at more than it returns;
/// those for others without what is in them. A locked item is not visible until its lock ends.
pub(crate) const FIND_WORK: &str =
    work_items!("c.visibleAt <= @now AND c.visibleAt >= @from ORDER BY c.type, c.visibleAt");

/// One range: the oldest visible work items of one lane.
pub(crate) const FIND_WORK_IN_LANE: &str = work_items!(
    "c.lane = @lane AND c.visibleAt <= @now AND c.visibleAt >= @from ORDER BY c.type, c.lane, c.visibleAt"
);

/// One range: the oldest visible work items of each lane between two, one lane after the other.
pub(crate) const FIND_WORK_IN_LANES: &str = work_items!(
    "c.lane > @low AND c.lane < @high AND c.visibleAt <= @now ORDER BY c.type, c.lane, c.visibleAt"
);

/// One range: the oldest visible work items that are in no lane, and only those for the searcher: looking for them takes
/// looking at all that others left of that kind.
pub(crate) const FIND_WORK_IN_NO_LANE: &str = work_items!(concat!(
    "NOT IS_DEFINED(c.lane) AND c.visibleAt <= @now AND ",
    for_searcher!(),
    " ORDER BY c.type, c.visibleAt"
));

/// One range: work that its process did not finish in time.
pub(crate) const UNFINISHED: &str = "SELECT TOP @rows * FROM c \
    WHERE c.type IN ('outbox_intent', 'manifest', 'deleting', 'deletion') \
    AND (NOT IS_DEFINED(c.sweepAt) OR c.sweepAt <= @now) AND NOT ARRAY_CONTAINS(@passed, c._rid)";

/// One range: ids and ages of instances.
pub(crate) const INSTANCES: &str = concat!("SELECT c.instanceId, c.createdAt FROM c WHERE ", instances!());

/// One range: as [`INSTANCES`], of one status.
pub(crate) const INSTANCES_BY_STATUS: &str =
    concat!("SELECT c.instanceId, c.createdAt FROM c WHERE ", instances!(), " AND c.status = @status");

/// One range: what bulk operations choose from.
pub(crate) const INSTANCE_FACTS: &str = concat!(
    "SELECT c.instanceId, c.createdAt, c.status, c.completedAt, c.updatedAt, c.parentInstanceId FROM c WHERE ",
    instances!()
);

/// One range: root instances that ended with a status and have not been written since a time, in seconds.
pub(crate) const ENDED_ROOTS: &str = concat!(
    "SELECT c.instanceId, c.orchestrationName, c.completedAt, c.updatedAt, c.ttl, c._ts FROM c WHERE ",
    instances!(),
    " AND c.status = @status AND c._ts <= @before AND NOT IS_STRING(c.parentInstanceId)"
);

/// One range: instances that ended with a status and that the service will remove.
pub(crate) const EXPIRING: &str = concat!(
    "SELECT c.instanceId, c.orchestrationName, c.completedAt, c.updatedAt, c.ttl, c._ts FROM c WHERE ",
    instances!(),
    " AND c.status = @status AND c.ttl > 0"
);

/// One range: the instances that have dead letters.
pub(crate) const SENDERS_OF_DEAD_LETTERS: &str =
    "SELECT VALUE c.instanceId FROM c WHERE c.type = 'dead_letter'";

/// The whole container: what is counted about the instances of each status, so that the answer is as short for a million
/// of them as for one. The driver has it planned and adds up what the ranges say. Numbers that nobody counted to are left
/// out.
pub(crate) const INSTANCE_COUNTS: &str = concat!(
    "SELECT c.status, COUNT(1) AS instances, \
     SUM(c.executionCount >= 0 AND c.executionCount < 9e15 ? c.executionCount : 1) AS executions, \
     SUM(c.totalEventCount >= 0 AND c.totalEventCount < 9e15 ? c.totalEventCount : 0) AS events FROM c WHERE ",
    instances!(),
    " GROUP BY c.status"
);

/// One range: direct children of an instance.
pub(crate) const CHILDREN: &str = "SELECT c.instanceId, c.createdAt FROM c \
    WHERE c.type = 'instance' AND ARRAY_CONTAINS(@parents, c.parentInstanceId)";

/// One range: children that have not run: of them there is only a start that waits.
pub(crate) const UNBORN: &str = "SELECT VALUE c.instanceId FROM c \
    WHERE c.type = 'orch_queue' AND ARRAY_CONTAINS(@parents, c.parentInstanceId)";

/// One range: sessions whose lock has ended.
pub(crate) const EXPIRED_SESSIONS: &str =
    "SELECT * FROM c WHERE c.type = 'session' AND c.lockedUntil <= @now";

/// One range: whether a session has work waiting.
pub(crate) const WORK_OF_SESSION: &str =
    "SELECT TOP 1 c.id FROM c WHERE c.type = 'worker_queue' AND c.sessionId = @session";

/// One range: counts.
pub(crate) const COUNT_MESSAGES: &str = "SELECT VALUE COUNT(1) FROM c WHERE c.type = 'orch_queue'";
/// One range: messages that locks hold. None holds a thousand.
pub(crate) const HELD_MESSAGES: &str = "SELECT VALUE SUM(c.heldCount) FROM c \
    WHERE c.type = 'instance' AND c.heldCount > 0 AND c.heldCount < 1000";
/// One range: unlocked work items.
pub(crate) const COUNT_WORK: &str =
    "SELECT VALUE COUNT(1) FROM c WHERE c.type = 'worker_queue' AND NOT IS_STRING(c.lockToken)";

/// One range: dead letters.
pub(crate) const DEAD_LETTERS: &str = "SELECT * FROM c WHERE c.type = 'dead_letter'";
