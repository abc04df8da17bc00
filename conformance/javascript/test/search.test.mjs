// Full text and hybrid search, as the SDK plans and fuses them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { onEveryAccount, refused } from "./account.mjs";

const TEXTS = [
  ["1", "The red bicycle is fast", [1, 0]],
  ["2", "Red cars, red roofs and a very long tail of words about nothing in particular", [0, 1]],
  ["3", "A blue car", [0.9, 0.1]],
  ["4", "Bicycles for everybody: blue bicycles, green bicycles", [0.5, 0.5]],
];

async function library(account) {
  const container = await account.container({
    fullTextPolicy: { defaultLanguage: "en-US", fullTextPaths: [{ path: "/text", language: "en-US" }] },
    indexingPolicy: { includedPaths: [{ path: "/*" }], fullTextIndexes: [{ path: "/text" }] },
  });
  for (const [id, text, v] of TEXTS) {
    await container.items.create({ id, pk: `key${id}`, text, v });
  }
  return container;
}

async function ids(container, query) {
  const rows = await container.items.query(query, { forceQueryPlan: true }).fetchAll();
  return rows.resources.map((row) => row.id);
}

onEveryAccount("search", (account) => {
  test("words are found by their stems", async () => {
    const container = await library(account);
    assert.deepEqual(
      await ids(container, "SELECT c.id FROM c WHERE FullTextContains(c.text, 'bicycles') ORDER BY c.id"),
      ["1", "4"],
    );
    assert.deepEqual(await ids(container, "SELECT c.id FROM c WHERE FullTextContainsAll(c.text, 'blue', 'car')"), ["3"]);
  });

  test("the best text comes first over all partitions", async () => {
    const container = await library(account);
    const found = await ids(container, "SELECT TOP 3 c.id FROM c ORDER BY RANK FullTextScore(c.text, 'bicycle')");
    assert.deepEqual(found.slice(0, 2), ["4", "1"]);
    const query = "SELECT c.id FROM c ORDER BY RANK FullTextScore(c.text, @word) OFFSET 1 LIMIT 1";
    assert.deepEqual(await ids(container, { query, parameters: [{ name: "@word", value: "bicycle" }] }), ["1"]);
  });

  test("ranks are fused by weight", async () => {
    const container = await library(account);
    for (const [weights, first] of [["", "1"], [", [10, 0.1]", "4"], [", [0.1, -10]", "2"]]) {
      const rank = `RRF(FullTextScore(c.text, 'bicycle'), VectorDistance(c.v, [1, 0])${weights})`;
      assert.deepEqual(await ids(container, `SELECT TOP 1 c.id FROM c ORDER BY RANK ${rank}`), [first], rank);
    }
    const rank = "RRF(FullTextScore(c.text, 'a'), VectorDistance(c.v, [1, 0]), [1])";
    await refused(400, () => ids(container, `SELECT TOP 1 c.id FROM c ORDER BY RANK ${rank}`));
  });
});
