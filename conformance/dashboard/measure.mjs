// What the first pages cost beside 50,000 instances: request units and milliseconds of each answer, and of the page.

import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { browser } from './browser.mjs';
import { dashboard, emulator, once } from './stage.mjs';

const INSTANCES = 50_000;
const at = Date.now();
const items = [{ id: 'format', instanceId: '__meta__', type: 'format', formatVersion: 2 }];
for (let i = 0; i < INSTANCES; i++) {
  const id = `order-${String(i).padStart(6, '0')}`;
  const event = JSON.stringify({ event_id: 1, source_event_id: null, instance_id: id, execution_id: 1, timestamp_ms: at, duroxide_version: '0.1.32', type: 'OrchestrationStarted', name: 'order', version: '1.0.0', input: '12 rye loaves', parent_instance: null, parent_id: null });
  const failed = i % 97 === 0;
  items.push({ id: `${id}:history:1:1`, instanceId: id, type: 'history', executionId: 1, eventId: 1, turn: 1, events: [event], eventCount: 1 });
  items.push({ id: `${id}:instance`, instanceId: id, type: 'instance', formatVersion: 2, started: true, incarnation: 'i', orchestrationName: ['order', 'invoice', 'refund'][i % 3], orchestrationVersion: '1.0.0', currentExecutionId: 1, status: failed ? 'Failed' : 'Completed', output: failed ? 'the card terminal is busy' : 'shipped', turn: 1, lastSequence: 1, lastEventId: 1, eventCount: 1, eventBytes: 300, executionCount: 1, totalEventCount: 1, heldCount: 0, carryForward: 0, customStatusVersion: 0, createdAt: at, updatedAt: at + i, executionStartedAt: at, completedAt: at + i });
}
// The container as the provider makes it: an account that has one says how.
const model = await emulator();
await once(['demo', '--pace', '5', '--endpoint', model.endpoint, '--json']);
const read = await fetch(new URL('dbs/duroxide/colls/duroxide', model.endpoint), { headers: { 'x-ms-version': '2020-07-15', 'x-ms-date': new Date().toUTCString() } });
const { indexingPolicy, partitionKey, defaultTtl } = await read.json();
await model.stop();
const file = join(mkdtempSync(join(tmpdir(), 'cdb-measure-')), 'account.json');
writeFileSync(file, JSON.stringify({ databases: [{ id: 'duroxide', containers: [{ id: 'duroxide', partitionKey, indexingPolicy, defaultTtl }] }], seedItems: [{ database: 'duroxide', container: 'duroxide', items }] }));
const server = await emulator(['--config', file]);
const pages = await dashboard(['--endpoint', server.endpoint]);
const context = await browser();
const page = await context.newPage();
await page.goto(pages.found);
await page.waitForSelector('.tile');
const base = new URL(pages.found).origin;
const median = (list) => list.sort((a, b) => a - b)[Math.floor(list.length / 2)];
for (const [name, path] of [['overview', '/api/overview'], ['instances', '/api/instances'], ['instances, failed', '/api/instances?status=failed'], ['instances, completed', '/api/instances?status=completed'], ['one instance', '/api/instances/order-025000'], ['queues', '/api/queues']]) {
  const times = [];
  let cost;
  for (let i = 0; i < 9; i++) {
    const [answer, ms] = await page.evaluate(async (path) => { const began = performance.now(); const answer = await (await fetch(path)).json(); return [answer, performance.now() - began]; }, path);
    cost = answer.cost;
    times.push(ms);
  }
  console.log(`${name.padEnd(22)} ${cost.units.toFixed(1).padStart(6)} RU ${String(cost.requests).padStart(3)} requests ${median(times).toFixed(0).padStart(5)} ms`);
}
for (const [name, path, sign] of [['overview', '/', '.tile'], ['instances', '/instances', 'tbody tr:nth-child(50)']]) {
  const times = [];
  for (let i = 0; i < 5; i++) {
    const began = performance.now();
    await page.goto(base + path);
    await page.waitForSelector(sign);
    times.push(performance.now() - began);
  }
  console.log(`${('page ' + name).padEnd(22)} on the screen after ${median(times).toFixed(0)} ms`);
}
for (let i = 0; i < 10; i++) { await page.mouse.wheel(0, 6000); await page.waitForTimeout(400); }
console.log(`scrolled to            ${await page.locator('tbody tr').count()} rows`);
await context.close();
await pages.stop();
await server.stop();
process.exit(0);
