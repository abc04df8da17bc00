// The change feed in the pull model.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ChangeFeedStartFrom } from "@azure/cosmos";

import { onEveryAccount, range } from "./account.mjs";

/** The ids of the changes until the feed has no more, and the token to go on from. */
async function drain(container, changeFeedStartFrom, maxItemCount) {
  const iterator = container.items.getChangeFeedIterator({ changeFeedStartFrom, maxItemCount });
  const ids = [];
  for (;;) {
    const page = await iterator.readNext();
    if (page.statusCode === 304) return { ids: ids.sort(), token: page.continuationToken };
    ids.push(...page.result.map((change) => change.id));
  }
}

onEveryAccount("change feed", (account) => {
  test("from the beginning every item comes once", async () => {
    const container = await account.container();
    for (const number of range(12)) await container.items.create({ id: `${number}`, pk: `k${number % 5}` });
    await container.items.upsert({ id: "3", pk: "k3", again: true });
    const { ids } = await drain(container, ChangeFeedStartFrom.Beginning());
    assert.deepEqual(ids, range(12).map(String).sort());
  });

  test("from now only later changes come, and the token resumes", async () => {
    const container = await account.container();
    await container.items.create({ id: "before", pk: "a" });
    const first = await drain(container, ChangeFeedStartFrom.Now());
    assert.deepEqual(first.ids, []);
    await container.items.create({ id: "after", pk: "b" });
    const second = await drain(container, ChangeFeedStartFrom.Continuation(first.token));
    assert.deepEqual(second.ids, ["after"]);
  });

  test("one partition key has a feed of its own", async () => {
    const container = await account.container();
    for (const number of range(9)) await container.items.create({ id: `${number}`, pk: `k${number % 3}` });
    const { ids } = await drain(container, ChangeFeedStartFrom.Beginning("k1"), 2);
    assert.deepEqual(ids, ["1", "4", "7"]);
  });

  test("the feeds of all ranges together are the whole feed", async () => {
    const container = await account.container();
    for (const number of range(20)) await container.items.create({ id: `${number}`, pk: `k${number}` });
    const seen = [];
    for (const feedRange of await container.getFeedRanges()) {
      seen.push(...(await drain(container, ChangeFeedStartFrom.Beginning(feedRange), 3)).ids);
    }
    assert.deepEqual(seen.sort(), range(20).map(String).sort());
  });

  test("from a time only later changes come", async () => {
    const container = await account.container();
    const early = (await container.items.create({ id: "early", pk: "a" })).resource._ts;
    let late = early;
    const deadline = Date.now() + 10_000;
    while (late < early + 2) {
      assert.ok(Date.now() < deadline);
      late = (await container.items.upsert({ id: "late", pk: "a" })).resource._ts;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    const { ids } = await drain(container, ChangeFeedStartFrom.Time(new Date((early + 1) * 1000)));
    assert.deepEqual(ids, ["late"]);
  });
});
