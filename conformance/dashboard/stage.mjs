// Programs of ours as child processes, and documents written past them.

import { spawn } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const TOKEN = '0123456789abcdef0123456789abcdef';
const CDB = process.env.CDB_BIN;
const running = new Set();
process.on('exit', () => { for (const child of running) child.kill('SIGKILL'); });

export const folder = () => mkdtempSync(join(tmpdir(), 'cdb-scene-'));

// Starts `cdb` and waits for a line that has what is looked for.
export function cdb(args, wanted, env = {}) {
  return new Promise((done, failed) => {
    const child = spawn(CDB, args, { env: { ...process.env, CDB_DASHBOARD_TOKEN: TOKEN, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
    running.add(child);
    let text = '';
    const stopped = new Promise((end) => child.on('exit', (code) => { running.delete(child); end(code); failed(new Error(`cdb ${args.join(' ')} ended with ${code}: ${text}`)); }));
    const program = { child, stopped, text: () => text, stop: (signal = 'SIGINT') => { child.kill(signal); return stopped; } };
    const hear = (bytes) => {
      text += bytes;
      const match = wanted.exec(text);
      if (match) done({ ...program, found: match[1] ?? match[0] });
    };
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);
  });
}
export function once(args) {
  return new Promise((done) => {
    const child = spawn(CDB, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    let text = '';
    child.stdout.on('data', (bytes) => { text += bytes; });
    child.stderr.on('data', (bytes) => { text += bytes; });
    child.on('exit', (code) => done({ code, text }));
  });
}
const ADDRESS = /(http:\/\/127\.0\.0\.1:\d+\/#k=\S+)/;
export const dashboard = (args, port = 0) => cdb(['dashboard', '--port', String(port), ...args], ADDRESS);
export const demo = (args) => cdb(['demo', '--dashboard', '--dashboard-port', '0', ...args], ADDRESS);
export async function emulator(args = []) {
  const program = await cdb(['emulator', '--memory', '--port', '0', '--no-auth', ...args], /({"event":"ready".*})/);
  const ready = JSON.parse(program.found);
  return { ...program, endpoint: ready.accountEndpoint, management: ready.managementEndpoint };
}

// Headers are ASCII.
const ascii = (text) => text.replace(/[^\x20-\x7e]/g, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));

// Writes a document as any client could.
export async function put(endpoint, document) {
  const answer = await fetch(new URL('dbs/duroxide/colls/duroxide/docs', endpoint), { method: 'POST', body: JSON.stringify(document), headers: { 'x-ms-version': '2020-07-15', 'x-ms-date': new Date().toUTCString(), 'x-ms-documentdb-is-upsert': 'true', 'x-ms-documentdb-partitionkey': ascii(JSON.stringify([document.instanceId])), 'content-type': 'application/json' } });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
}
// A workflow with one activity, as the provider stores it.
export async function workflow(endpoint, id, { status = 'Completed', output = 'done', name = 'order', input = '{"loaves":12}', result = 'ok', at = Date.now(), open = false } = {}) {
  const event = (n, source, type, fields, ms) => JSON.stringify({ event_id: n, source_event_id: source, instance_id: id, execution_id: 1, timestamp_ms: ms, duroxide_version: '0.1.32', type, ...fields });
  const events = [event(1, null, 'OrchestrationStarted', { name, version: '1.0.0', input, parent_instance: null, parent_id: null }, at - 900), event(2, null, 'ActivityScheduled', { name: 'Bake', input }, at - 890)];
  if (open) events.push(event(3, null, 'ExternalSubscribed', { name: 'yes' }, at - 880));
  else events.push(event(3, 2, 'ActivityCompleted', { result }, at - 100), status === 'Failed' ? event(4, null, 'OrchestrationFailed', { details: { Application: { kind: 'OrchestrationFailed', message: output, retryable: false } } }, at) : event(4, null, 'OrchestrationCompleted', { output }, at));
  // What does not fit into a document is stored in pieces; one piece is less than 2 MB.
  const documents = [];
  for (const [i, text] of events.entries()) {
    const n = i + 1;
    if (text.length < 1_000_000) { documents.push({ id: `${id}:history:1:${n}`, instanceId: id, type: 'history', executionId: 1, eventId: n, turn: n, events: [text], eventCount: 1 }); continue; }
    const pieces = text.match(/[\s\S]{1,1000000}/g);
    for (const [k, data] of pieces.entries()) documents.push({ id: `chunk:c${n}:${k}`, instanceId: id, type: 'chunk', data });
    documents.push({ id: `${id}:history:1:${n}`, instanceId: id, type: 'history', executionId: 1, eventId: n, turn: n, events: [], eventCount: 1, chunks: { commit: `c${n}`, first: 0, count: pieces.length, bytes: text.length } });
  }
  documents.push({ id: `${id}:instance`.replace(/[/\\?#]/g, '_'), instanceId: id, type: 'instance', formatVersion: 2, started: true, incarnation: 'i', orchestrationName: name, orchestrationVersion: '1.0.0', currentExecutionId: 1, status: open ? 'Running' : status, output: open ? undefined : output.slice(0, 1000), lastEventId: events.length, eventCount: events.length, eventBytes: events.join('').length, executionCount: 1, totalEventCount: events.length, createdAt: at - 900, updatedAt: at, executionStartedAt: at - 900, completedAt: open ? undefined : at, heldCount: 0, turn: 3, lastSequence: 1, carryForward: 0, customStatusVersion: 0 });
  for (const document of documents) await put(endpoint, { ...document, id: document.id.replace(/[/\\?#]/g, '_') });
}
