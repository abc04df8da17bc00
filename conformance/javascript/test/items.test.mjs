// Containers and point operations on items.

import assert from "node:assert/strict";
import { test } from "node:test";

import { onEveryAccount, range, refused } from "./account.mjs";

onEveryAccount("items", (account) => {
  test("a created item reads back with its system properties", async () => {
    const container = await account.container();
    const created = await container.items.create({ id: "1", pk: "a", nested: { list: [1, null, true] } });
    assert.equal(created.statusCode, 201);
    const read = await container.item("1", "a").read();
    assert.equal(read.statusCode, 200);
    assert.deepEqual(read.resource, created.resource);
    assert.ok(read.resource._rid && read.resource._etag && read.resource._self && read.resource._ts);
  });

  test("a missing item reads as 404 and its deletion is refused with 404", async () => {
    const container = await account.container();
    const read = await container.item("nobody", "a").read();
    assert.equal(read.statusCode, 404);
    assert.equal(read.resource, undefined);
    await refused(404, () => container.item("nobody", "a").delete());
  });

  test("creating an item twice is refused with 409", async () => {
    const container = await account.container();
    await container.items.create({ id: "1", pk: "a" });
    await refused(409, () => container.items.create({ id: "1", pk: "a" }));
  });

  test("upsert answers 201 for a new item and 200 for an old one", async () => {
    const container = await account.container();
    assert.equal((await container.items.upsert({ id: "1", pk: "a", n: 1 })).statusCode, 201);
    assert.equal((await container.items.upsert({ id: "1", pk: "a", n: 2 })).statusCode, 200);
    assert.equal((await container.item("1", "a").read()).resource.n, 2);
  });

  test("a stale etag is refused with 412 and a fresh one is taken", async () => {
    const container = await account.container();
    const stale = (await container.items.create({ id: "1", pk: "a" })).etag;
    const fresh = (await container.item("1", "a").replace({ id: "1", pk: "a", n: 1 })).etag;
    const when = (condition) => ({ accessCondition: { type: "IfMatch", condition } });
    await refused(412, () => container.item("1", "a").replace({ id: "1", pk: "a", n: 2 }, when(stale)));
    await refused(412, () => container.item("1", "a").delete(when(stale)));
    const replaced = await container.item("1", "a").replace({ id: "1", pk: "a", n: 3 }, when(fresh));
    assert.equal(replaced.resource.n, 3);
  });

  test("a read of an unchanged item answers 304", async () => {
    const container = await account.container();
    const { etag } = await container.items.create({ id: "1", pk: "a" });
    const options = { accessCondition: { type: "IfNoneMatch", condition: etag } };
    assert.equal((await container.item("1", "a").read(options)).statusCode, 304);
    await container.items.upsert({ id: "1", pk: "a", n: 2 });
    assert.equal((await container.item("1", "a").read(options)).statusCode, 200);
  });

  test("an item over two megabytes is refused with 413", async () => {
    const container = await account.container();
    await refused(413, () => container.items.create({ id: "1", pk: "a", text: "x".repeat(2 * 1024 * 1024 + 1) }));
  });

  test("a patch as a bare list applies its operations", async () => {
    const container = await account.container();
    await container.items.create({ id: "1", pk: "a", n: 1, list: [1], old: "x", gone: true });
    const { resource } = await container.item("1", "a").patch([
      { op: "add", path: "/added", value: "y" },
      { op: "set", path: "/list/0", value: 9 },
      { op: "replace", path: "/added", value: "z" },
      { op: "remove", path: "/gone" },
      { op: "incr", path: "/n", value: 2 },
      { op: "move", from: "/old", path: "/new" },
    ]);
    const { id, pk, n, list, added, new: moved, gone, old } = resource;
    assert.deepEqual({ id, pk, n, list, added, moved, gone, old }, {
      id: "1", pk: "a", n: 3, list: [9], added: "z", moved: "x", gone: undefined, old: undefined,
    });
  });

  test("a patch with a condition applies only where it holds", async () => {
    const container = await account.container();
    await container.items.create({ id: "1", pk: "a", n: 1 });
    const operations = [{ op: "incr", path: "/n", value: 1 }];
    await refused(412, () => container.item("1", "a").patch({ condition: "from c where c.n = 7", operations }));
    const patched = await container.item("1", "a").patch({ condition: "from c where c.n = 1", operations });
    assert.equal(patched.resource.n, 2);
  });

  test("more than ten patch operations are refused with 400", async () => {
    const container = await account.container();
    await container.items.create({ id: "1", pk: "a" });
    const operations = range(11).map((number) => ({ op: "set", path: `/p${number}`, value: number }));
    await refused(400, () => container.item("1", "a").patch(operations));
  });

  test("a token from one client lets another read the write", async () => {
    const container = await account.container();
    const written = await container.items.create({ id: "1", pk: "a" });
    assert.match(written.headers["x-ms-session-token"], /^\d+:-?\d+#\d+/);
    const other = account.newClient().database(container.database.id).container(container.id);
    const options = { sessionToken: written.headers["x-ms-session-token"] };
    assert.equal((await other.item("1", "a").read(options)).resource.id, "1");
  });

  test("a read ahead of the partition is refused with 404 and 1002, and the client asks again without the token", async () => {
    const container = await account.container();
    const written = await container.items.create({ id: "1", pk: "a" });
    const [, place, lsn] = /^(\d+:-?\d+)#(\d+)/.exec(written.headers["x-ms-session-token"]);
    const other = account.newClient().database(container.database.id).container(container.id);
    const read = await other.item("1", "a").read({ sessionToken: `${place}#${Number(lsn) + 100_000}` });
    const asked = read.diagnostics.clientSideRequestStatistics.gatewayStatistics;
    assert.deepEqual(asked.map((one) => [one.statusCode, one.subStatusCode]), [[404, 1002], [200, undefined]]);
  });

  test("unique keys hold within a partition key", async () => {
    const container = await account.container({ uniqueKeyPolicy: { uniqueKeys: [{ paths: ["/email"] }] } });
    await container.items.create({ id: "1", pk: "a", email: "x" });
    await refused(409, () => container.items.create({ id: "2", pk: "a", email: "x" }));
    await container.items.create({ id: "2", pk: "b", email: "x" });
  });

  test("an item expires after its time to live", async () => {
    const container = await account.container({ defaultTtl: -1 });
    await container.items.create({ id: "1", pk: "a", ttl: 1 });
    const deadline = Date.now() + 10_000;
    while ((await container.item("1", "a").read()).statusCode !== 404) {
      assert.ok(Date.now() < deadline, "still there after ten seconds");
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  });

  test("hierarchical keys address items and scope queries by prefix", async () => {
    const container = await account.container({ paths: ["/country", "/city"] });
    for (const [country, city] of [["NO", "Oslo"], ["NO", "Bergen"], ["IT", "Rome"]]) {
      await container.items.create({ id: city, country, city });
    }
    assert.equal((await container.item("Rome", ["IT", "Rome"]).read()).resource.city, "Rome");
    const { resources } = await container.items
      .query("SELECT VALUE c.id FROM c", { partitionKey: ["NO"] })
      .fetchAll();
    assert.deepEqual(resources.sort(), ["Bergen", "Oslo"]);
  });

  test("a container's definition is replaced and read back", async () => {
    const container = await account.container();
    const { resource } = await container.read();
    await container.replace({ ...resource, defaultTtl: 500 });
    assert.equal((await container.read()).resource.defaultTtl, 500);
  });

  test("throughput is read and replaced through its offer", async () => {
    const container = await account.container({ throughput: 600 });
    const { resource, offer } = await container.readOffer();
    assert.equal(resource.content.offerThroughput, 600);
    resource.content.offerThroughput = 900;
    await offer.replace(resource);
    assert.equal((await container.readOffer()).resource.content.offerThroughput, 900);
  });

  test("a wrong key is refused with 401", async () => {
    const wrong = account.newClient(Buffer.from("x".repeat(64)).toString("base64"));
    await refused(401, () => wrong.databases.readAll().fetchAll());
  });
});
