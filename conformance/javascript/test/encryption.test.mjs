// Client-side encryption end to end: keys and policies are the server's, everything else is the SDK's.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";

import {
  CosmosClient,
  EncryptionAlgorithm,
  EncryptionKeyResolverName,
  EncryptionQueryBuilder,
  EncryptionType,
  KeyEncryptionAlgorithm,
} from "@azure/cosmos";

import { onEveryAccount, refused } from "./account.mjs";

/** Wraps keys by turning their bits over: the server must not be able to tell. */
const resolver = {
  encryptionKeyResolverName: EncryptionKeyResolverName.AzureKeyVault,
  wrapKey: async (_id, _algorithm, key) => Buffer.from(key.map((byte) => byte ^ 0xff)),
  unwrapKey: async (_id, _algorithm, key) => Buffer.from(key.map((byte) => byte ^ 0xff)),
};
const algorithm = EncryptionAlgorithm.AEAD_AES_256_CBC_HMAC_SHA256;

function wrapping(name) {
  const type = EncryptionKeyResolverName.AzureKeyVault;
  return { type, name, value: `https://vault/${name}`, algorithm: KeyEncryptionAlgorithm.RSA_OAEP };
}

function included(path, encryptionType, clientEncryptionKeyId = "key") {
  return { path, clientEncryptionKeyId, encryptionType, encryptionAlgorithm: algorithm };
}

onEveryAccount("encryption", (account) => {
  test("what a client encrypts is stored so, found again and read in the clear", async () => {
    const client = new CosmosClient({
      endpoint: account.endpoint,
      key: process.env.COSMOS_KEY,
      clientEncryptionOptions: { keyEncryptionKeyResolver: resolver },
    });
    account.clients.push(client);
    const { database } = await client.databases.create({ id: `encrypted-${randomUUID()}` });
    const made = await database.createClientEncryptionKey("key", algorithm, wrapping("one"));
    assert.equal(made.statusCode, 201);
    await refused(409, () => database.createClientEncryptionKey("key", algorithm, wrapping("one")));

    const policy = {
      policyFormatVersion: 2,
      includedPaths: [
        included("/secret", EncryptionType.DETERMINISTIC),
        included("/noise", EncryptionType.RANDOMIZED),
        included("/pk", EncryptionType.DETERMINISTIC),
      ],
    };
    const body = { id: "c", partitionKey: { paths: ["/pk"], version: 2 }, clientEncryptionPolicy: policy };
    const { container } = await database.containers.create(body);
    const item = { id: "1", pk: "p", secret: "s3cret", noise: { deep: [1, true, "x"] }, plain: 5 };
    await container.items.create(item);

    const plain = account.client.database(database.id).container("c");
    const [stored] = (await plain.items.query("SELECT * FROM c").fetchAll()).resources;
    assert.notEqual(stored.secret, item.secret);
    assert.notEqual(stored.pk, item.pk);
    assert.equal(stored.plain, 5);

    const read = (await container.item("1", "p").read()).resource;
    assert.deepEqual([read.secret, read.noise, read.pk], [item.secret, item.noise, item.pk]);
    const question = new EncryptionQueryBuilder("SELECT * FROM c WHERE c.secret = @secret");
    question.addParameter("@secret", "s3cret", "/secret");
    const iterator = await container.items.getEncryptionQueryIterator(question);
    const found = (await iterator.fetchAll()).resources;
    assert.deepEqual(found.map((row) => [row.id, row.secret]), [["1", "s3cret"]]);

    const rewrapped = await database.rewrapClientEncryptionKey("key", wrapping("two"));
    assert.equal(rewrapped.statusCode, 200);
    assert.equal((await container.item("1", "p").read()).resource.secret, "s3cret");
    await database.delete();
  });

  test("a policy must name a key that is there", async () => {
    const policy = { policyFormatVersion: 1, includedPaths: [included("/a", EncryptionType.RANDOMIZED, "nobody")] };
    await refused(400, () => account.container({ clientEncryptionPolicy: policy }));
  });
});
