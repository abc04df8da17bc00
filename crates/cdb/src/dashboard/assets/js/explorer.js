// Any container of the account: SQL with charge, plan and metrics, items with their ETag, and what changes.

import { del, get, post, put } from './net.js';
import { clean, copyButton, count, dialog, empty, h, header, json, panel, plural, replace, settings, table, toast, units } from './ui.js';

const FIRST = 'SELECT * FROM c ORDER BY c._ts DESC';

export function open({ meta, params, setParams }) {
  let at = { database: params.get('database'), container: params.get('container') };
  let tree = [];
  let page = null;
  let form = 'table';
  let feed = null;
  let closed = false;
  const aside = h('aside', { cls: 'panel pad' }, 'Loading…');
  const sql = h('textarea', { cls: 'code', 'aria-label': 'Query', 'data-main-field': '', spellcheck: 'false', rows: '4', value: params.get('q') ?? FIRST });
  const parameters = h('input', { cls: 'mono', placeholder: '{"@name": "value"}', 'aria-label': 'Parameters as JSON', size: '24' });
  const key = h('input', { cls: 'mono', placeholder: 'partition key: "a"', 'aria-label': 'Partition key as JSON', size: '24' });
  const results = h('div', { cls: 'stack' });
  const queryPanel = h('div', { cls: 'panel' });
  const node = h('div', {}, header('Explorer', 'Ask any container of this account.'), h('div', { cls: 'explorer' }, aside, h('div', { cls: 'stack' }, queryPanel, results)));
  sql.addEventListener('keydown', (event) => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });

  async function load() {
    try {
      tree = (await get('/api/explorer/containers')).databases;
    } catch (error) {
      replace(aside, error.message);
      return;
    }
    if (closed) return;
    const all = tree.flatMap((database) => database.containers.map((container) => ({ database: database.id, container: container.id })));
    if (!all.some((one) => one.database === at.database && one.container === at.container)) at = all.find((one) => one.container === meta.container) ?? all[0] ?? {};
    draw();
    if (at.container) run();
    else replace(results, h('div', { cls: 'panel' }, empty('There are no containers yet', 'Programs make them; so does `cdb demo --endpoint …`.')));
  }
  function history_() {
    try { return JSON.parse(settings.get('queries', '[]')); } catch { return []; }
  }
  function draw() {
    replace(aside, h('h2', {}, 'Containers'), tree.map((database) => [h('p', { cls: 'faint' }, database.id), h('ul', {}, database.containers.map((container) => h('li', {}, h('button', { cls: 'plain', 'aria-current': at.database === database.id && at.container === container.id ? 'true' : null, title: `partition key ${(container.partitionKey ?? []).join(', ')}`, onclick: () => { at = { database: database.id, container: container.id }; feed = null; setParams({ database: at.database, container: at.container }); draw(); run(); } }, container.id))))]));
    const old = history_();
    replace(queryPanel, h('div', { cls: 'pad stack' }, sql, h('div', { cls: 'row' }, h('button', { cls: 'primary', onclick: () => run(), title: 'Ctrl-Enter' }, 'Run'), h('button', { onclick: explain }, 'Explain'), h('button', { onclick: tail }, 'Change feed'), meta.readOnly ? null : h('button', { onclick: () => edit(null) }, 'New item…'), parameters, key,
      old.length ? h('select', { 'aria-label': 'Earlier queries', onchange: (event) => { if (event.target.value) sql.value = event.target.value; } }, h('option', { value: '' }, 'Earlier…'), old.map((text) => h('option', { value: text }, text.slice(0, 60)))) : null)));
  }
  function asked() {
    const read = (input) => { if (!input.value.trim()) return null; try { return JSON.parse(input.value); } catch { throw new Error(`${input.getAttribute('aria-label')}: this is not JSON.`); } };
    return { ...at, sql: sql.value, parameters: read(parameters) ?? {}, key: read(key), limit: 100 };
  }
  async function run(continuation) {
    try {
      const answer = await post('/api/explorer/query', { ...asked(), continuation });
      if (closed) return;
      page = continuation ? { ...answer, rows: page.rows.concat(answer.rows), units: page.units + answer.units, pages: page.pages + 1 } : { ...answer, pages: 1 };
      feed = null;
      settings.set('queries', JSON.stringify([sql.value, ...history_().filter((text) => text !== sql.value)].slice(0, 20)));
      setParams({ q: sql.value === FIRST ? '' : sql.value });
      drawResults();
    } catch (error) {
      replace(results, h('div', { cls: 'panel pad' }, h('pre', { cls: 'payload bad' }, error.message)));
    }
  }
  function drawResults() {
    const rows = page.rows;
    replace(results, panel('Result', { note: `${plural(rows.length, 'row')} in ${plural(page.pages, 'page')} · ${units(page.units)} · ${page.ms.toFixed(0)} ms${page.requests ? ` · ${plural(page.requests, 'request')}` : ''}`, actions: [h('button', { cls: 'plain', 'aria-pressed': String(form === 'json'), onclick: () => { form = form === 'json' ? 'table' : 'json'; drawResults(); } }, form === 'json' ? 'As a table' : 'As JSON'), copyButton(JSON.stringify(rows, null, 2))],
      body: [!rows.length ? empty('No rows', page.continuation ? 'This page has none; there are more pages.' : 'The query found nothing.') : form === 'json' ? h('div', { cls: 'pad json' }, json(rows)) : h('div', { cls: 'scroll' }, grid(rows)), page.continuation ? h('div', { cls: 'pad' }, h('button', { onclick: () => run(page.continuation) }, 'Next page')) : null] }));
  }
  const isItem = (row) => row && typeof row === 'object' && typeof row.id === 'string' && row._etag;
  function grid(rows) {
    if (rows.some((row) => row === null || typeof row !== 'object' || Array.isArray(row))) return table([['Value', (row) => h('span', { cls: 'mono' }, JSON.stringify(row))]], rows.slice(0, 500), { caption: 'Rows' });
    const names = [...new Set(rows.slice(0, 100).flatMap((row) => Object.keys(row)))].filter((name) => !['_rid', '_self', '_attachments', '_etag'].includes(name)).slice(0, 8);
    const cell = (value) => { const text = value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value); return h('span', { cls: 'mono' }, text.length > 160 ? clean(text.slice(0, 160)) + '…' : text); };
    return table([...names.map((name) => [name, (row) => cell(row[name]), 'cell']), ['', (row) => h('button', { cls: 'plain', onclick: () => isItem(row) ? edit(row) : showRow(row) }, 'Open')]], rows.slice(0, 500), { caption: 'Rows' });
  }
  function showRow(row) {
    dialog('Row', ({ close }) => [h('div', { cls: 'json' }, json(row)), h('div', { cls: 'end' }, copyButton(JSON.stringify(row, null, 2)), h('button', { type: 'button', onclick: close }, 'Close'))]);
  }
  // The key of an item, by the container's paths.
  function keyOf(item) {
    const paths = tree.find((database) => database.id === at.database)?.containers.find((container) => container.id === at.container)?.partitionKey ?? [];
    return paths.map((path) => path.slice(1).split('/').reduce((value, name) => value?.[name], item) ?? null);
  }
  function edit(row) {
    const shown = row ? Object.fromEntries(Object.entries(row).filter(([name]) => !name.startsWith('_'))) : { id: '' };
    const text = h('textarea', { cls: 'code', rows: '16', spellcheck: 'false', 'aria-label': 'Item as JSON', value: JSON.stringify(shown, null, 2) });
    const typed = h('input', { 'aria-label': 'Type delete 1 to delete', placeholder: 'delete 1', size: '10' });
    dialog(row ? `Item ${row.id}` : 'New item', ({ close, form: inside }) => {
      inside.addEventListener('submit', async (event) => {
        event.preventDefault();
        try {
          const item = JSON.parse(text.value);
          await put('/api/explorer/item', { ...at, key: keyOf(item), item, etag: row?._etag ?? '' });
          close();
          toast('Written.');
          run();
        } catch (error) { toast(error.status === 412 ? 'It has changed since you opened it: open it again.' : error.message, true); }
      });
      const remove = async () => {
        try { await del('/api/explorer/item', { ...at, key: keyOf(row), id: row.id, etag: row._etag, confirm: typed.value }); close(); toast('Deleted.'); run(); } catch (error) { toast(error.message, true); }
      };
      return [row ? h('p', { cls: 'faint mono' }, `ETag ${row._etag} · ${new Date(row._ts * 1000).toISOString()}`) : h('p', { cls: 'faint' }, `The partition key is taken from the item.`), text,
        h('div', { cls: 'end' }, row && !meta.readOnly ? [typed, h('button', { type: 'button', cls: 'danger', onclick: remove }, 'Delete')] : null, copyButton(text.value), h('button', { type: 'button', onclick: close }, 'Leave'), meta.readOnly ? null : h('button', { type: 'submit', cls: 'primary' }, row ? 'Replace if unchanged' : 'Create'))];
    });
  }
  async function explain() {
    try {
      const answer = await post('/api/explorer/explain', asked());
      const info = answer.plan.queryInfo ?? {};
      const facts = Object.entries(info).filter(([, value]) => value !== null && value !== '' && value !== false && value !== 'None' && !(Array.isArray(value) && !value.length) && !(typeof value === 'object' && !Object.keys(value).length));
      replace(results, panel('Plan', { note: 'what an SDK does with it', body: h('div', { cls: 'pad stack' }, facts.length ? h('dl', { cls: 'facts' }, facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', { cls: 'mono' }, typeof value === 'object' ? JSON.stringify(value) : value)))) : h('p', { cls: 'quiet' }, 'It is sent as it is to each partition.'), h('details', {}, h('summary', { cls: 'faint' }, 'All of it'), h('div', { cls: 'json' }, json(answer.plan)))) }),
        panel('The first page in each physical partition', { body: h('div', { cls: 'scroll' }, table([['Partition', (row) => row.id], ['Charge', (row) => units(row.units), 'num'], ['Rows', (row) => row.rows, 'num'], ['Documents read', (row) => count(row.metrics.retrievedDocumentCount), 'num'], ['Index hits', (row) => row.metrics.indexUtilizationRatio !== undefined ? `${Math.round(row.metrics.indexUtilizationRatio * 100)} %` : '', 'num'], ['Time', (row) => row.metrics.totalExecutionTimeInMs !== undefined ? `${row.metrics.totalExecutionTimeInMs} ms` : '', 'num'], ['Metrics', (row) => h('div', { cls: 'json' }, json(row.metrics, 'all', 2))], ['Index use', (row) => row.index ? typeof row.index === 'string' ? h('pre', { cls: 'payload' }, row.index) : h('div', { cls: 'json' }, json(row.index, 'all', 2)) : '']], answer.partitions, { caption: 'By physical partition' })) }));
    } catch (error) {
      replace(results, h('div', { cls: 'panel pad' }, h('pre', { cls: 'payload bad' }, error.message)));
    }
  }
  async function tail() {
    feed = { continuation: null, rows: [] };
    const mine = feed;
    const place = h('div', { cls: 'scroll' });
    const note = h('span', { cls: 'faint' });
    replace(results, panel('Change feed', { actions: [note, h('button', { onclick: () => { feed = null; run(); } }, 'Stop')], body: place }));
    replace(place, empty('Waiting for changes', 'What is written from now on appears here.'));
    while (feed === mine && !closed && node.isConnected) {
      try {
        const asked = new URLSearchParams({ ...at, ...(mine.continuation ? { continuation: mine.continuation } : {}) });
        const answer = await get('/api/explorer/feed?' + asked);
        mine.continuation = answer.continuation;
        if (answer.rows.length) { mine.rows = answer.rows.reverse().concat(mine.rows).slice(0, 200); replace(place, grid(mine.rows)); }
        replace(note, `${plural(mine.rows.length, 'change')} · ${units(answer.units)} the last look`);
      } catch (error) { replace(note, error.message); }
      await new Promise((done) => setTimeout(done, document.hidden ? 5000 : 1500));
    }
  }
  load();
  return { node, update() {}, close() { closed = true; } };
}
