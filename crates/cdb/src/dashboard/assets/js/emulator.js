// The emulator behind the pages: requests as they come, regions, partitions, faults, clock, snapshots.

import { del, get, post } from './net.js';
import { clock, command, count, dialog, empty, field, h, header, json, panel, replace, table, toast, units } from './ui.js';

const FAULT = { operation: 'readItem', count: 2, verdict: { kind: 'status', code: 429, subStatus: 3200, retryAfterMs: 10 } };

export function open({ meta }) {
  const requests = h('div', {});
  const rest = h('div', { cls: 'stack' });
  const node = h('div', { cls: 'stack' }, header('Emulator', 'A Cosmos DB account for development: watch it, and make it misbehave.'), requests, rest);
  let closed = false;
  let paused = false;
  let own = false;
  let totals = null;
  const act = async (work, text) => { try { await work(); toast(text); load(); } catch (error) { toast(error.message, true); } };
  const base = `/api/emulator/databases/${encodeURIComponent(meta.database)}/containers/${encodeURIComponent(meta.container)}`;

  async function tick() {
    while (!closed) {
      if (!paused && !document.hidden) {
        try { drawRequests(await get('/api/emulator/ledger')); } catch (error) { replace(requests, h('div', { cls: 'panel' }, empty('This cannot be shown', error.message))); }
      }
      await new Promise((done) => setTimeout(done, 1500));
    }
  }
  function drawRequests(ledger) {
    const rate = totals ? { requests: ledger.totals.requests - totals.requests, units: ledger.totals.requestUnits - totals.requestUnits } : { requests: 0, units: 0 };
    totals = ledger.totals;
    const rows = ledger.recent.slice().reverse().filter((record) => own || !['changeFeed', 'readRanges'].includes(record.operation)).slice(0, 60);
    replace(requests, panel('Requests', { note: `${count(ledger.totals.requests)} since the start, ${units(ledger.totals.requestUnits)}, ${count(ledger.totals.failures)} with 400 or more · ${(rate.requests / 1.5).toFixed(1)}/s, ${(rate.units / 1.5).toFixed(1)} RU/s`, actions: [h('label', { cls: 'check' }, h('input', { type: 'checkbox', checked: own, onchange: (event) => { own = event.target.checked; } }), 'Looks for changes too'), h('button', { 'aria-pressed': String(paused), onclick: (event) => { paused = !paused; event.target.textContent = paused ? 'Go on' : 'Pause'; } }, paused ? 'Go on' : 'Pause'), meta.readOnly ? null : h('button', { cls: 'plain', onclick: () => act(() => del('/api/emulator/ledger'), 'Counting starts anew.') }, 'Reset')],
      body: rows.length ? h('div', { cls: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'The last requests' }, table([
        ['#', (row) => row.number, 'num'], ['Operation', (row) => row.operation], ['Status', (row) => h('span', { cls: row.status >= 400 && row.status !== 404 ? 'status failed' : 'status' }, `${row.status || 'reset'}${row.subStatus ? '/' + row.subStatus : ''}`)], ['Charge', (row) => units(row.requestUnits), 'num'], ['Documents', (row) => count(row.documentsVisited), 'num'], ['Partition key', (row) => h('span', { cls: 'mono' }, row.partitionKey ?? ''), 'cut'], ['Path', (row) => h('span', { cls: 'mono' }, row.path), 'cut'],
      ], rows, { caption: 'The last requests' })) : empty('No requests yet', 'What clients send appears here.') }));
  }
  async function load() {
    const [regions, faults, time, partitions] = await Promise.all([get('/api/emulator/regions'), get('/api/emulator/faults'), get('/api/emulator/clock'), get(base + '/partitions').catch(() => ({ partitions: [] }))]).catch((error) => { toast(error.message, true); return []; });
    if (closed || !regions) return;
    const list = regions.regions ?? regions;
    const rules = faults.faults ?? faults.rules ?? faults;
    const may = !meta.readOnly;
    const path = (name, verb) => `/api/emulator/regions/${encodeURIComponent(name)}/${verb}`;
    replace(rest,
      panel('Regions', { body: h('div', { cls: 'scroll' }, table([
        ['Region', (region) => region.name], ['State', (region) => h('div', { cls: 'json' }, json(Object.fromEntries(Object.entries(region).filter(([key]) => key !== 'name')), 'all', 2))],
        ['', (region) => may ? h('div', { cls: 'row' }, h('button', { cls: 'plain', onclick: () => act(() => post(path(region.name, 'offline'), { manner: 'refuse' }), `${region.name} refuses connections.`) }, 'Offline'), h('button', { cls: 'plain', onclick: () => act(() => post(path(region.name, 'online'), {}), `${region.name} is back.`) }, 'Online'), h('button', { cls: 'plain', onclick: () => act(() => post('/api/emulator/failover', { writeRegion: region.name, kind: 'planned' }), `${region.name} writes now.`) }, 'Make it write')) : null],
      ], list, { caption: 'Regions' })) }),
      panel('Physical partitions', { note: `${meta.database} / ${meta.container}`, body: partitions.partitions.length ? h('div', { cls: 'scroll' }, table([
        ['Partition', (row) => row.id], ['Items', (row) => count(row.items ?? row.itemCount), 'num'], ['All of it', (row) => h('div', { cls: 'json' }, json(row, 'all', 2))],
        ['', (row) => may ? h('button', { cls: 'plain', onclick: () => act(() => post(`${base}/partitions/${row.id}/split`, {}), 'It is being split.') }, 'Split') : null],
      ], partitions.partitions, { caption: 'Physical partitions' })) : empty('There is no such container', 'Partitions are shown for the container of the workflows.') }),
      panel('Faults', { actions: may ? [h('button', { onclick: addFault }, 'Add…'), h('button', { cls: 'plain', onclick: () => act(() => del('/api/emulator/faults'), 'All rules are gone.') }, 'Remove all')] : null, body: rules.length ? h('div', { cls: 'scroll' }, table([['Rule', (rule) => h('div', { cls: 'json' }, json(rule, String(rule.id ?? ''), 1))], ['', (rule) => may ? h('button', { cls: 'plain', onclick: () => act(() => del(`/api/emulator/faults/${rule.id}`), 'The rule is gone.') }, 'Remove') : null]], rules, { caption: 'Fault rules' })) : empty('Nothing is broken on purpose', 'A rule makes requests fail, hang or wait.') }),
      panel('Clock and snapshots', { body: h('div', { cls: 'pad stack' }, h('div', { cls: 'json' }, json(time)), may ? h('div', { cls: 'row' }, [['+1 min', 60], ['+1 h', 3600], ['+1 day', 86400]].map(([word, seconds]) => h('button', { onclick: () => act(() => post('/api/emulator/clock/advance', { seconds }), `The clock of the account is ${word.slice(1)} ahead.`) }, word)), h('button', { onclick: snapshot }, 'Snapshot…')) : null, h('p', { cls: 'faint' }, `Timers of workflows and expiry of items follow this clock. Now ${clock(Date.now())}.`)) }));
  }
  function addFault() {
    const text = h('textarea', { cls: 'code', rows: '8', spellcheck: 'false', value: JSON.stringify(FAULT, null, 2) });
    dialog('Add a fault rule', ({ close, form }) => {
      form.addEventListener('submit', (event) => { event.preventDefault(); let rule; try { rule = JSON.parse(text.value); } catch { toast('This is not JSON.', true); return; } act(() => post('/api/emulator/faults', rule), 'The rule is in force.').then(close); });
      return [field('Rule', text), command("curl $MANAGEMENT/faults --json '…'"), h('div', { cls: 'end' }, h('button', { type: 'button', onclick: close }, 'Leave'), h('button', { type: 'submit', cls: 'primary' }, 'Add'))];
    });
  }
  function snapshot() {
    const folder = h('input', { required: true, placeholder: '/tmp/snapshot' });
    dialog('Copy the data into a new folder', ({ close, form }) => {
      form.addEventListener('submit', (event) => { event.preventDefault(); act(() => post('/api/emulator/snapshot', { folder: folder.value }), `The data is in ${folder.value}.`).then(close); });
      return [field('Folder on the machine of the emulator', folder), command('cdb emulator --restore DIR'), h('div', { cls: 'end' }, h('button', { type: 'button', onclick: close }, 'Leave'), h('button', { type: 'submit', cls: 'primary' }, 'Copy'))];
    });
  }
  tick();
  load();
  return { node, close() { closed = true; } };
}
