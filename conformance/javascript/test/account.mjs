// Clients and containers of the suite. Every test makes the container it needs.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, describe } from "node:test";

import { CosmosClient, PartitionKeyKind } from "@azure/cosmos";

const endpoints = {
  "one partition": process.env.COSMOS_ENDPOINT,
  "four partitions": process.env.COSMOS_ENDPOINT_PARTITIONED,
};

export class Account {
  constructor(endpoint) {
    this.endpoint = endpoint;
    this.clients = [];
    this.client = this.newClient();
  }

  /** A client that has seen nothing yet. */
  newClient(key = process.env.COSMOS_KEY) {
    const client = new CosmosClient({ endpoint: this.endpoint, key });
    this.clients.push(client);
    return client;
  }

  /** Stops the clients' background refresh, which would keep the process alive. */
  dispose() {
    for (const client of this.clients) client.dispose();
  }

  async database() {
    this.created ??= this.client.databases.create({ id: `conformance-${randomUUID()}` });
    return (await this.created).database;
  }

  /** A new container, keyed by /pk unless told otherwise. */
  async container(settings = {}) {
    const database = await this.database();
    const paths = settings.paths ?? ["/pk"];
    const kind = paths.length > 1 ? PartitionKeyKind.MultiHash : PartitionKeyKind.Hash;
    const { paths: _, ...rest } = settings;
    const body = { id: `c-${randomUUID()}`, partitionKey: { paths, kind, version: 2 }, ...rest };
    return (await database.containers.create(body)).container;
  }

  /** A container of forty people in eight partitions, with what the query tests ask about. */
  async people() {
    const container = await this.container();
    const cities = ["Oslo", "Rome", "Lima", "Cairo"];
    for (let number = 0; number < 40; number += 1) {
      await container.items.create({
        id: `p${String(number).padStart(2, "0")}`,
        pk: `key${number % 8}`,
        age: 20 + (number % 10),
        rank: number,
        city: cities[number % 4],
        tags: [`t${number % 3}`, `t${number % 5}`],
      });
    }
    return container;
  }
}

/** Declares the same tests for containers of one physical partition and of four. */
export function onEveryAccount(area, declare) {
  for (const [name, endpoint] of Object.entries(endpoints)) {
    describe(`${area}, ${name}`, () => {
      const account = new Account(endpoint);
      after(() => account.dispose());
      declare(account);
    });
  }
}

/** Waits for an action to fail with a status, and gives back its error. */
export async function refused(code, action) {
  try {
    await action();
  } catch (error) {
    assert.equal(error.code, code, error.message);
    return error;
  }
  return assert.fail(`expected ${code}, but it went through`);
}

export const range = (count) => Array.from({ length: count }, (_, number) => number);
