//! Users and permissions.

use super::*;

fn user(id: &str) -> Vec<u8> {
    json!({"id": id}).to_string().into_bytes()
}

fn permission(id: &str, mode: &str) -> Vec<u8> {
    json!({"id": id, "permissionMode": mode, "resource": "dbs/d/colls/c"}).to_string().into_bytes()
}

fn ids(feed: &ResourceFeed) -> Vec<&str> {
    feed.resources.iter().filter_map(|body| body["id"].as_str()).collect()
}

fn status(outcome: Result<ResourceReply, Failure>) -> u16 {
    outcome.map_or_else(|failure| failure.status, |reply| reply.status)
}

#[test]
fn users_are_created_renamed_and_removed() {
    let world = World::new();
    let engine = &world.engine;
    assert_eq!(status(engine.put_user("d", &user("a"), Put::Create)), 201);
    assert_eq!(status(engine.put_user("d", &user("a"), Put::Create)), 409);
    assert_eq!(status(engine.put_user("d", &user("a"), Put::Upsert)), 200);
    assert_eq!(status(engine.put_user("d", &user("b"), Put::Upsert)), 201);
    assert_eq!(status(engine.put_user("d", &user("b"), Put::Replace("a", None))), 409);
    assert_eq!(status(engine.put_user("d", &user("c"), Put::Replace("a", Some("\"stale\"")))), 412);
    assert_eq!(status(engine.put_user("d", &user("c"), Put::Replace("a", None))), 200);
    assert_eq!(ids(&engine.users("d").unwrap()), ["c", "b"]);
    assert_eq!(status(engine.read_user("d", "a")), 404);
    assert_eq!(status(engine.delete_user("d", "b", None)), 204);
    assert_eq!(status(engine.delete_user("d", "b", None)), 404);
    assert_eq!(status(engine.put_user("nowhere", &user("a"), Put::Create)), 404);
}

#[test]
fn users_are_addressed_by_resource_id_too() {
    let world = World::new();
    let created = world.engine.put_user("d", &user("a"), Put::Create).unwrap();
    assert_eq!(world.engine.read_user("d", &created.rid).unwrap().body, created.body);
}

#[test]
fn a_permission_needs_a_mode_and_a_resource() {
    let world = World::new();
    let engine = &world.engine;
    engine.put_user("d", &user("u"), Put::Create).unwrap();
    assert_eq!(status(engine.put_permission("d", "u", &permission("p", "Read"), Put::Create)), 201);
    assert_eq!(status(engine.put_permission("d", "u", &permission("p", "All"), Put::Create)), 409);
    assert_eq!(status(engine.put_permission("d", "u", &permission("q", "Write"), Put::Create)), 400);
    assert_eq!(status(engine.put_permission("d", "u", &user("q"), Put::Create)), 400);
    assert_eq!(status(engine.put_permission("d", "nobody", &permission("p", "All"), Put::Create)), 404);
    assert_eq!(status(engine.put_permission("d", "u", &permission("p", "All"), Put::Upsert)), 200);
    assert_eq!(engine.read_permission("d", "u", "p").unwrap().body["permissionMode"], "All");
    assert_eq!(status(engine.delete_permission("d", "u", "p", None)), 204);
    assert_eq!(status(engine.read_permission("d", "u", "p")), 404);
}

#[test]
fn users_and_permissions_survive_a_restart_and_go_with_their_database() {
    let world = World::new();
    world.engine.put_user("d", &user("u"), Put::Create).unwrap();
    world.engine.put_permission("d", "u", &permission("p", "Read"), Put::Create).unwrap();
    let before = world.engine.permissions("d", "u").unwrap().resources;
    let world = world.reopened();
    assert_eq!(world.engine.permissions("d", "u").unwrap().resources, before);
    assert_eq!(status(world.engine.put_user("d", &user("v"), Put::Create)), 201);
    world.engine.delete_database("d", None).unwrap();
    world.engine.create_database(br#"{"id":"d"}"#, None).unwrap();
    let world = world.reopened();
    assert_eq!(ids(&world.engine.users("d").unwrap()), Vec::<&str>::new());
}
