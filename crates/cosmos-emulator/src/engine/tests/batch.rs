//! Batches.

use super::*;

fn step(op: ItemOp) -> BatchOperation {
    BatchOperation { op, conditions: Conditions::default(), partition_key: None }
}

fn create(document: Value) -> BatchOperation {
    step(ItemOp::Create { body: text(&document) })
}

fn send(
    world: &World,
    mode: BatchMode,
    pk: Option<&str>,
    operations: Vec<BatchOperation>,
) -> Result<BatchReply, Failure> {
    let request = BatchRequest {
        mode,
        partition_key: pk.map(key),
        operations,
        body_bytes: 0,
        range: None,
        content: Content::All,
        session_token: None,
    };
    world.engine.batch(&world.container(), request)
}

fn atomic(world: &World, operations: Vec<BatchOperation>) -> BatchReply {
    send(world, BatchMode::Atomic, Some("a"), operations).expect("accepted")
}

fn statuses(reply: &BatchReply) -> Vec<(u16, u32)> {
    reply.results.iter().map(|result| (result.status, result.sub_status)).collect()
}

#[test]
fn steps_see_earlier_steps_and_share_one_lsn() {
    let world = World::new();
    let patch = Patch::from_value(json!([{"op": "incr", "path": "/n", "value": 5}])).expect("valid");
    let reply = atomic(
        &world,
        vec![
            create(json!({"id": "1", "pk": "a", "n": 1})),
            step(ItemOp::Upsert { body: text(&json!({"id": "2", "pk": "a"})) }),
            step(ItemOp::Replace { id: "1".into(), body: text(&json!({"id": "1", "pk": "a", "n": 2})) }),
            step(ItemOp::Patch { id: "1".into(), patch }),
            step(ItemOp::Read { id: "1".into() }),
            step(ItemOp::Delete { id: "2".into() }),
        ],
    );
    assert_eq!(reply.status, 200);
    assert_eq!(statuses(&reply), [(201, 0), (201, 0), (200, 0), (200, 0), (200, 0), (204, 0)]);
    let read: Value = serde_json::from_slice(&reply.results[4].body).expect("JSON");
    assert_eq!(read["n"], 7);
    assert_eq!((reply.standing.lsn, reply.ticket.is_some()), (2, true));
    assert_eq!(world.ids(&in_key("a"), "SELECT * FROM c WHERE c.n = 7"), ["1"]);
    assert!(world.ids(&in_key("a"), "SELECT * FROM c WHERE c.n IN (1, 2)").is_empty());
    let reply = atomic(&world, vec![step(ItemOp::Read { id: "1".into() })]);
    assert_eq!((reply.status, reply.standing.lsn), (200, 2), "a batch that only reads moves nothing");
}

#[test]
fn a_failing_step_undoes_all_and_is_named() {
    let world = World::new();
    world.create(json!({"id": "taken", "pk": "a"})).expect("created");
    let reply = atomic(
        &world,
        vec![
            create(json!({"id": "1", "pk": "a"})),
            step(ItemOp::Delete { id: "taken".into() }),
            step(ItemOp::Delete { id: "none".into() }),
            create(json!({"id": "2", "pk": "a"})),
        ],
    );
    assert_eq!(reply.status, 207);
    assert_eq!(statuses(&reply), [(424, 0), (424, 0), (404, 0), (424, 0)]);
    assert_eq!(world.ids(&Scope::All, "SELECT * FROM c"), ["taken"]);
    assert_eq!((reply.standing.lsn, reply.ticket), (2, None));
    assert!(reply.charge > 0.0);
}

#[test]
fn another_partition_key_in_a_step_is_400_1001_inside_207() {
    let world = World::new();
    let reply =
        atomic(&world, vec![create(json!({"id": "1", "pk": "a"})), create(json!({"id": "2", "pk": "b"}))]);
    assert_eq!((reply.status, statuses(&reply)), (207, vec![(424, 0), (400, 1001)]));
    let mut other = create(json!({"id": "1", "pk": "a"}));
    other.partition_key = Some(key("b"));
    assert_eq!(statuses(&atomic(&world, vec![other])), [(400, 1001)]);
}

#[test]
fn conditions_of_steps_hold_for_the_whole_batch() {
    let world = World::new();
    let etag = world.create(json!({"id": "1", "pk": "a"})).expect("created").etag.expect("an etag");
    world.upsert(json!({"id": "1", "pk": "a", "n": 1})).expect("replaced");
    let mut stale = step(ItemOp::Delete { id: "1".into() });
    stale.conditions = if_match(&etag);
    let reply = atomic(&world, vec![create(json!({"id": "2", "pk": "a"})), stale]);
    assert_eq!(statuses(&reply), [(424, 0), (412, 0)]);
}

#[test]
fn batches_have_limits() {
    let world = World::new();
    let many = |n: usize| (0..n).map(|i| create(json!({"id": i.to_string(), "pk": "a"}))).collect::<Vec<_>>();
    assert_eq!(status(send(&world, BatchMode::Atomic, Some("a"), many(101))), (400, 0));
    assert_eq!(status(send(&world, BatchMode::Atomic, Some("a"), Vec::new())), (400, 0));
    assert_eq!(status(send(&world, BatchMode::Atomic, None, many(1))), (400, 1001));
    let request = BatchRequest {
        mode: BatchMode::Atomic,
        partition_key: Some(key("a")),
        operations: many(1),
        body_bytes: 2 * 1024 * 1024 + 1,
        range: None,
        content: Content::All,
        session_token: None,
    };
    assert_eq!(status(world.engine.batch(&world.container(), request)), (413, 0));
    let reply = atomic(&world, many(100));
    assert_eq!((reply.status, reply.standing.lsn), (200, 2));
}

#[test]
fn bulk_steps_stand_alone_and_have_their_own_keys() {
    let world = World::new();
    let mut steps = vec![
        create(json!({"id": "1", "pk": "a"})),
        create(json!({"id": "1", "pk": "a"})),
        create(json!({"id": "1", "pk": "b"})),
    ];
    for (step, pk) in steps.iter_mut().zip(["a", "a", "b"]) {
        step.partition_key = Some(key(pk));
    }
    let reply = send(&world, BatchMode::Bulk, None, steps.clone()).expect("accepted");
    assert_eq!((reply.status, statuses(&reply)), (207, vec![(201, 0), (409, 0), (201, 0)]));
    let reply = send(&world, BatchMode::BulkUntilFailure, None, steps).expect("accepted");
    assert_eq!(statuses(&reply), [(409, 0), (424, 0), (424, 0)]);
}
