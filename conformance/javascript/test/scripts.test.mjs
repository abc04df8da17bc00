// Stored procedures, triggers, user defined functions and computed properties.

import assert from "node:assert/strict";
import { test } from "node:test";

import { onEveryAccount, refused } from "./account.mjs";

onEveryAccount("scripts", (account) => {
  test("a stored procedure runs in its partition and undoes what it throws away", async () => {
    const container = await account.container();
    const body = function (name, fail) {
      const all = getContext().getCollection();
      all.createDocument(all.getSelfLink(), { id: name, pk: "a" }, (error, made) => {
        if (error || fail) throw error || new Error("enough");
        getContext().getResponse().setBody(made.id);
      });
    };
    await container.scripts.storedProcedures.create({ id: "make", body });
    const procedure = container.scripts.storedProcedure("make");
    assert.equal((await procedure.execute("a", ["one", false])).resource, "one");
    await refused(400, () => procedure.execute("a", ["two", true]));
    assert.equal((await container.item("two", "a").read()).statusCode, 404);
    const listed = await container.scripts.storedProcedures.readAll().fetchAll();
    assert.deepEqual(listed.resources.map((script) => script.id), ["make"]);
    await procedure.delete();
    await refused(404, () => procedure.read());
  });

  test("a trigger runs when it is named", async () => {
    const container = await account.container();
    const body = "function () { var r = getContext().getRequest(), b = r.getBody(); b.stamp = 1; r.setBody(b); }";
    await container.scripts.triggers.create({ id: "stamp", body, triggerType: "Pre", triggerOperation: "Create" });
    const made = await container.items.create({ id: "1", pk: "a" }, { preTriggerInclude: "stamp" });
    assert.equal(made.resource.stamp, 1);
    await refused(400, () => container.items.create({ id: "2", pk: "a" }, { preTriggerInclude: "nobody" }));
  });

  test("a query calls a user defined function and sees computed properties", async () => {
    const container = await account.container({
      computedProperties: [{ name: "lower", query: "SELECT VALUE LOWER(c.s) FROM c" }],
    });
    await container.scripts.userDefinedFunctions.create({ id: "twice", body: "function (n) { return n * 2; }" });
    await container.items.create({ id: "1", pk: "a", n: 21, s: "ABC" });
    const query = "SELECT VALUE [udf.twice(c.n), c.lower] FROM c WHERE c.lower = 'abc'";
    assert.deepEqual((await container.items.query(query, { partitionKey: "a" }).fetchAll()).resources, [[42, "abc"]]);
  });
});
