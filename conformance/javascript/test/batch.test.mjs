// Transactional batches and bulk.

import assert from "node:assert/strict";
import { test } from "node:test";

import { onEveryAccount, range } from "./account.mjs";

const codes = (response) => response.result.map((result) => result.statusCode);

async function ids(container) {
  const { resources } = await container.items.query("SELECT VALUE c.id FROM c", { partitionKey: "a" }).fetchAll();
  return resources.sort();
}

onEveryAccount("batch", (account) => {
  test("a batch of every kind applies in order and answers each", async () => {
    const container = await account.container();
    for (const id of ["replaced", "deleted", "patched", "read"]) {
      await container.items.create({ id, pk: "a", n: 1 });
    }
    const response = await container.items.batch(
      [
        { operationType: "Create", resourceBody: { id: "created", pk: "a" } },
        { operationType: "Upsert", resourceBody: { id: "upserted", pk: "a" } },
        { operationType: "Replace", id: "replaced", resourceBody: { id: "replaced", pk: "a", n: 2 } },
        { operationType: "Read", id: "read" },
        { operationType: "Delete", id: "deleted" },
        { operationType: "Patch", id: "patched", resourceBody: { operations: [{ op: "incr", path: "/n", value: 1 }] } },
      ],
      "a",
    );
    assert.equal(response.code, 200);
    assert.deepEqual(codes(response), [201, 201, 200, 200, 204, 200]);
    assert.equal(response.result[5].resourceBody.n, 2);
    assert.deepEqual(await ids(container), ["created", "patched", "read", "replaced", "upserted"]);
  });

  test("a batch that fails answers 207 with 424 for the rest and changes nothing", async () => {
    const container = await account.container();
    await container.items.create({ id: "there", pk: "a" });
    const response = await container.items.batch(
      [
        { operationType: "Create", resourceBody: { id: "new", pk: "a" } },
        { operationType: "Create", resourceBody: { id: "there", pk: "a" } },
        { operationType: "Upsert", resourceBody: { id: "later", pk: "a" } },
      ],
      "a",
    );
    assert.equal(response.code, 207);
    assert.deepEqual(codes(response), [424, 409, 424]);
    assert.deepEqual(await ids(container), ["there"]);
  });

  test("a stale etag fails the batch with 412", async () => {
    const container = await account.container();
    const { etag } = await container.items.create({ id: "1", pk: "a" });
    await container.items.upsert({ id: "1", pk: "a", n: 1 });
    const response = await container.items.batch(
      [
        { operationType: "Create", resourceBody: { id: "2", pk: "a" } },
        { operationType: "Replace", id: "1", ifMatch: etag, resourceBody: { id: "1", pk: "a", n: 2 } },
      ],
      "a",
    );
    assert.deepEqual(codes(response), [424, 412]);
    assert.deepEqual(await ids(container), ["1"]);
  });

  test("bulk writes many items over many partition keys", async () => {
    const container = await account.container();
    const operations = range(250).map((number) => ({
      operationType: "Create",
      partitionKey: `k${number % 17}`,
      resourceBody: { id: `i${number}`, pk: `k${number % 17}`, n: number },
    }));
    const results = await container.items.executeBulkOperations(operations);
    assert.deepEqual([...new Set(results.map((result) => result.response?.statusCode))], [201]);
    const { resources } = await container.items.query("SELECT VALUE COUNT(1) FROM c").fetchAll();
    assert.deepEqual(resources, [250]);
  });

  test("bulk answers each operation for itself and goes on after a failure", async () => {
    const container = await account.container();
    await container.items.create({ id: "there", pk: "a", n: 1 });
    const results = await container.items.executeBulkOperations([
      { operationType: "Create", partitionKey: "a", resourceBody: { id: "there", pk: "a" } },
      { operationType: "Upsert", partitionKey: "b", resourceBody: { id: "new", pk: "b" } },
      { operationType: "Read", id: "there", partitionKey: "a" },
      { operationType: "Delete", id: "nobody", partitionKey: "c" },
      {
        operationType: "Patch", id: "there", partitionKey: "a",
        resourceBody: { operations: [{ op: "incr", path: "/n", value: 1 }] },
      },
    ]);
    assert.deepEqual(results.map((result) => result.response?.statusCode ?? result.error?.code), [409, 201, 200, 404, 200]);
    assert.equal((await container.item("there", "a").read()).resource.n, 2);
  });

  test("a batch may leave the bodies of its writes out", async () => {
    const container = await account.container();
    const operations = [{ operationType: "Create", resourceBody: { id: "1", pk: "a" } }];
    const response = await container.items.batch(operations, "a", { contentResponseOnWriteEnabled: false });
    assert.deepEqual(codes(response), [201]);
    assert.equal(response.result[0].resourceBody, undefined);
    assert.equal(response.result[0].eTag, (await container.item("1", "a").read()).etag);
  });
});
