//! Entra tokens and resource tokens, through a socket.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cosmos_emulator::{Config, Emulator, Entra};
use serde_json::{Value, json};

use crate::client::{Answer, Client, with_container};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A token as the SDKs' own tests make them for emulators.
fn jwt(change: impl FnOnce(&mut Value)) -> String {
    let mut claims = json!({
        "aud": "https://localhost.localhost",
        "iss": "https://sts.fake-issuer.net/7b1999a1-dfd7-440e-8204-00170979b984",
        "nbf": now(),
        "exp": now() + 7200,
        "oid": "96313034-4739-43cb-93cd-74193adbe5b6",
        "scp": "user_impersonation",
    });
    change(&mut claims);
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(&json!({"typ": "JWT", "alg": "RS256", "kid": "test"}));
    let token = format!("{header}.{}.{}", part(&claims), URL_SAFE_NO_PAD.encode("signature"));
    format!("type%3Daad%26ver%3D1.0%26sig%3D{token}")
}

fn with_entra() -> (Emulator, Client) {
    let emulator = Emulator::start(Config::default().with_entra(Entra::default())).unwrap();
    let client = Client::new(&emulator).with_container();
    (emulator, client)
}

fn message(answer: &Answer) -> String {
    answer.message()
}

#[test]
fn an_entra_token_opens_items_and_what_leads_to_them() {
    let (_emulator, mut client) = with_entra();
    let token = jwt(|_| {});
    let item = json!({"id": "i", "pk": "k"});
    let created = client.post("/dbs/d/colls/c/docs", &item).key("k").header("authorization", &token).send();
    assert_eq!(created.status, 201);
    for path in ["/", "/dbs", "/dbs/d", "/dbs/d/colls", "/dbs/d/colls/c", "/dbs/d/colls/c/pkranges"] {
        client.get(path).header("authorization", &token).send().expect(200);
    }
    client.get("/dbs/d/colls/c/docs/i").key("k").header("authorization", &token).send().expect(200);
    let query = json!({"query": "SELECT * FROM c", "parameters": []});
    let found = client.question(&query).header("authorization", &token).send().expect(200);
    assert_eq!(found.json()["_count"], 1);
    client.delete("/dbs/d/colls/c/docs/i").key("k").header("authorization", &token).send().expect(204);
}

#[test]
fn the_control_plane_refuses_entra_tokens_with_5300() {
    let (_emulator, mut client) = with_entra();
    let token = jwt(|_| {});
    for (answer, request) in [
        (client.post("/dbs", &json!({"id": "x"})).header("authorization", &token).send(), "POST /dbs"),
        (client.delete("/dbs/d").header("authorization", &token).send(), "DELETE /dbs/d"),
        (
            client.post("/dbs/d/colls", &json!({"id": "x"})).header("authorization", &token).send(),
            "POST /dbs/d/colls",
        ),
        (client.get("/offers").header("authorization", &token).send(), "GET /offers"),
        (client.get("/dbs/d/users").header("authorization", &token).send(), "GET /dbs/d/users"),
    ] {
        assert_eq!(answer.status(), (403, 5300));
        let message = message(&answer);
        assert!(message.contains(&format!("[{request}]")) && message.contains("AAD token"), "{message}");
    }
    client.get("/dbs/d").send().expect(200);
}

#[test]
fn a_wrong_entra_token_is_told_what_is_wrong() {
    let (emulator, mut client) = with_entra();
    let mut ask = |token: &str| {
        let answer = client.get("/dbs/d/colls/c").header("authorization", token).send();
        (answer.status(), message(&answer))
    };
    let cases = [
        (jwt(|claims| claims["exp"] = (now() - 10).into()), 5006, "expired since"),
        (jwt(|claims| claims["nbf"] = (now() + 3600).into()), 5005, "not valid before"),
        (jwt(|claims| claims["iss"] = "https://evil.example/".into()), 5007, "evil.example"),
        (jwt(|claims| claims["aud"] = "https://graph.microsoft.com".into()), 5008, "graph.microsoft.com"),
        (jwt(|claims| claims["oid"] = Value::Null), 5011, "`oid`"),
        ("type%3Daad%26ver%3D1.0%26sig%3Dnonsense".to_owned(), 5003, "malformed"),
    ];
    for (token, sub_status, reason) in cases {
        let (status, message) = ask(&token);
        assert_eq!(status, (401, sub_status), "{message}");
        assert!(message.contains(reason), "{message}");
    }
    let token = jwt(|_| {});
    assert_eq!(ask(&token).0, (200, 0));
    emulator.clock().advance(Duration::from_secs(3 * 3600));
    assert_eq!(ask(&token).0, (401, 5006), "the account's clock decides");
}

#[test]
fn without_the_flag_entra_tokens_are_refused() {
    let (_emulator, mut client) = with_container();
    let answer = client.get("/dbs/d").header("authorization", &jwt(|_| {})).send();
    assert_eq!(answer.status(), (401, 5002));
    assert!(message(&answer).contains("--entra"));
}

/// A token for a permission of the user `u`, ready for a header.
fn token_for(client: &mut Client, name: &str, permission: &Value) -> String {
    let mut body = permission.clone();
    body["id"] = name.into();
    let made = client.post("/dbs/d/users/u/permissions", &body).send().expect(201).json();
    made["_token"].as_str().unwrap().replace('=', "%3D").replace('&', "%26").replace('+', "%2B")
}

/// What a token may do: read and write the items a/k1 and b/k2, query k1 and everything, read the container.
fn rights(client: &mut Client, token: &str) -> [u16; 7] {
    let put = |client: &mut Client, id: &str, key: &str| {
        let item = json!({"id": id, "pk": key, "n": 1});
        let path = format!("/dbs/d/colls/c/docs/{id}");
        client.put(&path, &item).key(key).header("authorization", token).send().status
    };
    let get = |client: &mut Client, id: &str, key: &str| {
        let path = format!("/dbs/d/colls/c/docs/{id}");
        client.get(&path).key(key).header("authorization", token).send().status
    };
    let query = json!({"query": "SELECT * FROM c", "parameters": []});
    [
        get(client, "a", "k1"),
        get(client, "b", "k2"),
        put(client, "a", "k1"),
        put(client, "b", "k2"),
        client.question(&query).key("k1").header("authorization", token).send().status,
        client.question(&query).header("authorization", token).send().status,
        client.get("/dbs/d/colls/c").header("authorization", token).send().status,
    ]
}

#[test]
fn resource_tokens_reach_as_far_as_their_permission() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "k1"})).expect(201);
    client.create(&json!({"id": "b", "pk": "k2"})).expect(201);
    client.post("/dbs/d/users", &json!({"id": "u"})).send().expect(201);
    let (container, item) = ("dbs/d/colls/c", "dbs/d/colls/c/docs/a");
    let cases = [
        (
            "read",
            json!({"permissionMode": "Read", "resource": container}),
            [200, 200, 403, 403, 200, 200, 200],
        ),
        ("all", json!({"permissionMode": "All", "resource": container}), [200, 200, 200, 200, 200, 200, 200]),
        (
            "read-key",
            json!({"permissionMode": "Read", "resource": container, "resourcePartitionKey": ["k1"]}),
            [200, 403, 403, 403, 200, 403, 200],
        ),
        (
            "all-key",
            json!({"permissionMode": "All", "resource": container, "resourcePartitionKey": ["k1"]}),
            [200, 403, 200, 403, 200, 403, 200],
        ),
        (
            "read-item",
            json!({"permissionMode": "Read", "resource": item}),
            [200, 403, 403, 403, 403, 403, 200],
        ),
        ("all-item", json!({"permissionMode": "All", "resource": item}), [200, 403, 200, 403, 403, 403, 200]),
    ];
    for (name, permission, expected) in cases {
        let token = token_for(&mut client, name, &permission);
        assert_eq!(rights(&mut client, &token), expected, "{name}");
        for (answer, what) in [
            (client.get("/dbs/d/users").header("authorization", &token).send(), "users"),
            (client.post("/dbs", &json!({"id": "x"})).header("authorization", &token).send(), "databases"),
            (client.get("/offers").header("authorization", &token).send(), "offers"),
        ] {
            assert_eq!(answer.status, 403, "{name}: {what}");
        }
    }
}

#[test]
fn a_resource_token_lives_as_long_as_was_asked_for() {
    let (emulator, mut client) = with_container();
    client.post("/dbs/d/users", &json!({"id": "u"})).send().expect(201);
    let body = json!({"id": "p", "permissionMode": "Read", "resource": "dbs/d/colls/c"});
    let refused = client
        .post("/dbs/d/users/u/permissions", &body)
        .header("x-ms-documentdb-expiry-seconds", "599")
        .send();
    assert_eq!(refused.status, 400);
    let made = client
        .post("/dbs/d/users/u/permissions", &body)
        .header("x-ms-documentdb-expiry-seconds", "600")
        .send()
        .expect(201)
        .json();
    let token = made["_token"].as_str().unwrap().replace('=', "%3D").replace('&', "%26").replace('+', "%2B");
    client.get("/dbs/d/colls/c").header("authorization", &token).send().expect(200);
    emulator.clock().advance(Duration::from_secs(601));
    let late = client.get("/dbs/d/colls/c").header("authorization", &token).send();
    assert_eq!(late.status, 403);
    assert!(message(&late).contains("expired"), "{}", message(&late));
}

#[test]
fn a_token_for_one_partition_key_leaves_the_container_and_the_conflicts_of_others_alone() {
    let (_emulator, mut client) = with_container();
    client.post("/dbs/d/users", &json!({"id": "u"})).send().expect(201);
    let permission =
        json!({"permissionMode": "All", "resource": "dbs/d/colls/c", "resourcePartitionKey": ["k1"]});
    let token = token_for(&mut client, "one-key", &permission);
    let container = "/dbs/d/colls/c";
    let short =
        json!({"id": "c", "defaultTtl": 5, "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    let conflicts = "/dbs/d/colls/c/conflicts";
    for (answer, what) in [
        (client.put(container, &short).key("k1").header("authorization", &token).send(), "replace"),
        (client.delete(container).key("k1").header("authorization", &token).send(), "delete"),
        (client.get(conflicts).header("authorization", &token).send(), "all conflicts"),
        (client.get(conflicts).key("k2").header("authorization", &token).send(), "conflicts of k2"),
        (
            client.get("/dbs/d/colls/c/conflicts/x").key("k1").header("authorization", &token).send(),
            "one conflict, which names no key",
        ),
    ] {
        assert_eq!(answer.status, 403, "{what}");
    }
    client.get(conflicts).key("k1").header("authorization", &token).send().expect(200);
    client.get(container).header("authorization", &token).send().expect(200);
    let kept = client.get(container).send().expect(200).json();
    assert_eq!(kept.get("defaultTtl"), None);
}

#[test]
fn a_token_for_a_whole_container_may_delete_it_as_with_the_service() {
    let (_emulator, mut client) = with_container();
    client.post("/dbs/d/users", &json!({"id": "u"})).send().expect(201);
    let permission = |mode: &str| json!({"permissionMode": mode, "resource": "dbs/d/colls/c"});
    let read = token_for(&mut client, "read", &permission("Read"));
    let all = token_for(&mut client, "all", &permission("All"));
    let mut delete =
        |token: &str| client.delete("/dbs/d/colls/c").header("authorization", token).send().status;
    assert_eq!([delete(&read), delete(&all)], [403, 204]);
}

#[test]
fn a_permission_names_a_container_or_what_is_in_one() {
    let (_emulator, mut client) = with_container();
    client.post("/dbs/d/users", &json!({"id": "u"})).send().expect(201);
    let mut make = |resource: &str, name: &str| {
        let body = json!({"id": name, "permissionMode": "All", "resource": resource});
        client.post("/dbs/d/users/u/permissions", &body).send().status
    };
    for resource in [
        "dbs",
        "dbs/d",
        "/dbs/d/",
        "dbs/d/users",
        "dbs/d/users/u",
        "dbs/d/users/u/permissions/p",
        "dbs/d/colls",
        "dbs//colls/c",
        "dbs/d/colls/c/docs",
        "dbs/d/colls/c/pkranges/0",
        "offers/abcd",
        "c",
    ] {
        assert_eq!(make(resource, "refused"), 400, "{resource}");
    }
    for (index, resource) in [
        "dbs/d/colls/c",
        "/dbs/d/colls/c/",
        "dbs/AQAAAA==/colls/AQAAAJ0fgTc=",
        "dbs/d/colls/c/docs/i",
        "dbs/d/colls/c/docs/i/attachments/a",
        "dbs/d/colls/c/sprocs/s",
        "dbs/d/colls/c/triggers/t",
        "dbs/d/colls/c/udfs/f",
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(make(resource, &format!("p{index}")), 201, "{resource}");
    }
}
