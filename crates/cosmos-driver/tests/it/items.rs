use cosmos_driver::{
    Batch, CallOptions, ContentResponse, ErrorKind, ItemOptions, Patch, Query, QueryOptions, Scope,
};
use serde_json::{Value, json};

use crate::account::Account;

#[tokio::test]
async fn an_item_lives_its_life() {
    let account = Account::start().await;
    let items = &account.container;
    let created =
        items.create_item("p", &json!({ "id": "1", "pk": "p", "n": 1 }), ItemOptions::default()).await;
    let created = created.expect("created");
    assert_eq!(created.status(), 201);
    assert!(created.body().is_empty(), "minimal by default");
    assert!(created.charge() > 0.0);
    assert!(created.session_token().is_some());
    let etag = created.etag().expect("an etag").to_owned();

    let conflict = items.create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default()).await;
    assert_eq!(conflict.expect_err("exists").kind(), ErrorKind::Conflict);

    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("read");
    assert_eq!(read.json::<Value>().expect("json")["n"], 1);
    let unchanged =
        items.read_item("p", "1", ItemOptions::default().with_if_none_match(&etag)).await.expect("304");
    assert!(unchanged.is_not_modified());

    let full = ItemOptions::default().with_content(ContentResponse::Full).with_if_match(&etag);
    let replaced = items.replace_item("p", "1", &json!({ "id": "1", "pk": "p", "n": 2 }), full.clone()).await;
    assert_eq!(replaced.expect("replaced").json::<Value>().expect("json")["n"], 2);
    let stale = items.replace_item("p", "1", &json!({ "id": "1", "pk": "p", "n": 3 }), full).await;
    assert_eq!(stale.expect_err("stale").kind(), ErrorKind::PreconditionFailed);

    let full = ItemOptions::default().with_content(ContentResponse::Full);
    let patched = items.patch_item("p", "1", &Patch::new().increment("/n", 5).set("/s", "x"), full).await;
    let patched: Value = patched.expect("patched").json().expect("json");
    assert_eq!((&patched["n"], &patched["s"]), (&json!(7), &json!("x")));

    let upserted =
        items.upsert_item("p", &json!({ "id": "1", "pk": "p", "n": 9 }), ItemOptions::default()).await;
    assert_eq!(upserted.expect("upserted").status(), 200);
    let deleted = items.delete_item("p", "1", ItemOptions::default()).await.expect("deleted");
    assert_eq!(deleted.status(), 204);
    let missing = items.read_item("p", "1", ItemOptions::default()).await.expect_err("gone");
    assert_eq!((missing.kind(), missing.status()), (ErrorKind::NotFound, Some(404)));
    assert!(missing.activity_id().is_some());
}

#[tokio::test]
async fn odd_ids_and_keys_arrive_as_they_are() {
    let account = Account::start().await;
    for id in ["a b", "日本", "per%cent", "plus+eq=&", "quo\"te", "tab\tbed", "é"] {
        let item = json!({ "id": id, "pk": id });
        account.container.create_item(id, &item, ItemOptions::default()).await.expect(id);
        let read = account.container.read_item(id, id, ItemOptions::default()).await.expect(id);
        assert_eq!(read.json::<Value>().expect("json")["id"], id);
    }
}

#[tokio::test]
async fn a_batch_is_all_or_nothing() {
    let account = Account::start().await;
    let items = &account.container;
    let batch = Batch::new("p")
        .create(&json!({ "id": "a", "pk": "p", "n": 1 }))
        .upsert(&json!({ "id": "b", "pk": "p" }))
        .patch("a", &Patch::new().increment("/n", 1), None)
        .read("a");
    let done = items.batch(batch, CallOptions::default()).await.expect("answered");
    assert!(done.is_success());
    assert_eq!(done.results().len(), 4);
    assert_eq!(done.results()[3].json::<Value>().expect("body")["n"], 2);
    let etag = done.results()[1].etag().expect("etag").to_owned();

    let batch = Batch::new("p")
        .replace("b", &json!({ "id": "b", "pk": "p", "x": 1 }), Some(&etag))
        .create(&json!({ "id": "a", "pk": "p" }))
        .delete("b", None);
    let failed = items.batch(batch, CallOptions::default()).await.expect("answered");
    let (index, result) = failed.failed().expect("a conflict");
    assert_eq!((index, result.status()), (1, 409));
    assert_eq!(failed.results()[0].status(), 424);
    let error = failed.into_result().expect_err("failed");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let b: Value =
        items.read_item("p", "b", ItemOptions::default()).await.expect("read").json().expect("json");
    assert!(b.get("x").is_none(), "nothing was done");
}

#[tokio::test]
async fn a_query_of_one_partition_comes_in_pages() {
    let account = Account::start().await;
    for n in 0..25 {
        let item = json!({ "id": format!("{n:02}"), "pk": "p", "n": n });
        account.container.create_item("p", &item, ItemOptions::default()).await.expect("created");
    }
    let query = Query::new("SELECT * FROM c WHERE c.n >= @least ORDER BY c.n DESC").with("@least", 5);
    let options = QueryOptions::default().with_page_size(8);
    let mut pager = account.container.query(query, Scope::PartitionKey("p".into()), options);
    let mut seen = Vec::new();
    let mut pages = 0;
    while let Some(page) = pager.next().await.expect("a page") {
        pages += 1;
        assert!(page.charge() > 0.0);
        seen.extend(
            page.items::<Value>().expect("rows").iter().map(|row| row["n"].as_i64().expect("a number")),
        );
    }
    assert_eq!(seen, (5..25).rev().collect::<Vec<_>>());
    assert!(pages >= 3, "{pages} pages");
}
