// Queries as this SDK plans, sends and merges them.

import assert from "node:assert/strict";
import { before, test } from "node:test";

import { onEveryAccount, range, refused } from "./account.mjs";

onEveryAccount("query", (account) => {
  let people;

  before(async () => {
    people = await account.people();
  });

  const all = async (query, options) => (await people.items.query(query, options).fetchAll()).resources;

  test("a filter with parameters finds its items in every partition", async () => {
    const found = await all({
      query: "SELECT VALUE c.rank FROM c WHERE c.city = @city AND c.age >= @age",
      parameters: [{ name: "@city", value: "Rome" }, { name: "@age", value: 25 }],
    });
    assert.deepEqual(found.sort((a, b) => a - b), [5, 9, 17, 25, 29, 37]);
  });

  test("order by merges the partitions", async () => {
    assert.deepEqual(await all("SELECT VALUE c.rank FROM c ORDER BY c.rank"), range(40));
    assert.deepEqual(await all("SELECT VALUE c.rank FROM c ORDER BY c.rank DESC"), range(40).reverse());
  });

  test("order by two paths uses the composite index", async () => {
    const container = await account.container({
      indexingPolicy: {
        includedPaths: [{ path: "/*" }],
        compositeIndexes: [[{ path: "/a", order: "ascending" }, { path: "/b", order: "descending" }]],
      },
    });
    for (const number of range(20)) {
      await container.items.create({ id: `${number}`, pk: `k${number % 6}`, a: number % 4, b: number });
    }
    const { resources } = await container.items.query("SELECT c.a, c.b FROM c ORDER BY c.a ASC, c.b DESC").fetchAll();
    const expected = range(20).map((b) => ({ a: b % 4, b })).sort((x, y) => x.a - y.a || y.b - x.b);
    assert.deepEqual(resources, expected);
  });

  test("aggregates cover every partition", async () => {
    assert.deepEqual(await all("SELECT VALUE COUNT(1) FROM c"), [40]);
    assert.deepEqual(await all("SELECT VALUE SUM(c.rank) FROM c"), [780]);
    assert.deepEqual(await all("SELECT VALUE AVG(c.rank) FROM c"), [19.5]);
    assert.deepEqual(await all("SELECT VALUE MIN(c.rank) FROM c"), [0]);
    assert.deepEqual(await all("SELECT VALUE MAX(c.rank) FROM c"), [39]);
  });

  test("group by counts and sums each group across the partitions", async () => {
    const found = await all("SELECT c.city, COUNT(1) AS n, SUM(c.rank) AS total FROM c GROUP BY c.city");
    found.sort((a, b) => (a.city < b.city ? -1 : 1));
    assert.deepEqual(found, [
      { city: "Cairo", n: 10, total: 210 },
      { city: "Lima", n: 10, total: 200 },
      { city: "Oslo", n: 10, total: 180 },
      { city: "Rome", n: 10, total: 190 },
    ]);
  });

  test("distinct covers every partition", async () => {
    const found = await all("SELECT DISTINCT VALUE c.city FROM c");
    assert.deepEqual(found.sort(), ["Cairo", "Lima", "Oslo", "Rome"]);
    assert.deepEqual(await all("SELECT DISTINCT VALUE c.age FROM c ORDER BY c.age"), range(10).map((n) => 20 + n));
  });

  test("top, offset and limit cut the merged answer", async () => {
    assert.equal((await all("SELECT TOP 7 * FROM c")).length, 7);
    assert.deepEqual(await all("SELECT TOP 3 VALUE c.rank FROM c ORDER BY c.rank DESC"), [39, 38, 37]);
    assert.deepEqual(await all("SELECT VALUE c.rank FROM c ORDER BY c.rank OFFSET 12 LIMIT 4"), [12, 13, 14, 15]);
  });

  test("a join unfolds the elements of a list", async () => {
    const found = await all("SELECT VALUE c.rank FROM c JOIN t IN c.tags WHERE t = 't2' AND c.rank < 8");
    assert.deepEqual(found.sort(), [2, 2, 5, 7]);
  });

  test("a query sees only the partition key it names", async () => {
    const found = await all("SELECT VALUE c.rank FROM c ORDER BY c.rank", { partitionKey: "key3" });
    assert.deepEqual(found, [3, 11, 19, 27, 35]);
  });

  test("pages resume from their continuation token in one partition", async () => {
    const container = await account.container();
    for (const number of range(23)) await container.items.create({ id: `${number}`, pk: "a", n: number });
    const seen = [];
    let continuationToken;
    do {
      const page = await container.items
        .query("SELECT VALUE c.n FROM c", { partitionKey: "a", maxItemCount: 5, continuationToken })
        .fetchNext();
      assert.ok(page.resources.length <= 5);
      seen.push(...page.resources);
      continuationToken = page.continuationToken;
    } while (continuationToken);
    assert.deepEqual(seen.sort((a, b) => a - b), range(23));
  });

  test("pages of an ordered query across partitions keep the order", async () => {
    const iterator = people.items.query("SELECT VALUE c.rank FROM c ORDER BY c.rank", { maxItemCount: 4 });
    const seen = [];
    while (iterator.hasMoreResults()) {
      const { resources } = await iterator.fetchNext();
      seen.push(...(resources ?? []));
    }
    assert.deepEqual(seen, range(40));
  });

  test("reading all items visits each once", async () => {
    const { resources } = await people.items.readAll({ maxItemCount: 7 }).fetchAll();
    assert.deepEqual(resources.map((item) => item.rank).sort((a, b) => a - b), range(40));
  });

  test("a query that does not parse is refused with 400", async () => {
    await refused(400, () => all("SELEC * FROM c"));
    await refused(400, () => all("SELECT * FROM c WHERE c.x = ", { partitionKey: "key1" }));
  });

  test("the plan names what the client must merge", async () => {
    const { result } = await people.getQueryPlan("SELECT TOP 2 c.city FROM c ORDER BY c.rank");
    assert.deepEqual(result.queryInfo.orderBy, ["Ascending"]);
    assert.equal(result.queryInfo.top, 2);
    assert.match(result.queryInfo.rewrittenQuery, /orderByItems/);
  });
});
