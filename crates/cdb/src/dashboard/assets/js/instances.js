// The list of instances: filters in the address, pages as one scrolls, rows that move while one looks.

import { get } from './net.js';
import { ago, count, empty, h, header, idLink, now, plural, quote, replace, setNow, settings, span, status, table, tableRow, command } from './ui.js';
import { cancelMany, deleteMany, prune, start } from './actions.js';

const WORDS = ['running', 'pending', 'completed', 'failed', 'cancelled'];
const FIELDS = ['status', 'name', 'prefix', 'since', 'before', 'children', 'parent'];

export function open({ meta, params, go, setParams }) {
  let filter = read(params);
  let rows = [];
  let next = null;
  let busy = false;
  let waiting = 0;
  let closed = false;
  let mine = 0;
  const picked = new Set();
  const body = h('div', {});
  const note = h('div', { cls: 'row faint', 'aria-live': 'polite' });
  const bar = h('div', {});
  const filters = h('div', { cls: 'panel' });
  const sentinel = h('div', {});
  const node = h('div', { cls: 'stack' }, header('Instances', 'The one that moved last comes first.', meta.readOnly ? null : h('button', { cls: 'primary', onclick: () => start({}, go) }, 'Start…')), filters, note, h('div', { cls: 'panel scroll' }, body), sentinel, bar);

  function read(params) {
    return Object.fromEntries(FIELDS.map((name) => [name, params.get(name) ?? '']));
  }
  const query = (cursor) => {
    const asked = new URLSearchParams();
    for (const name of FIELDS) if (filter[name]) asked.set(name, filter[name]);
    if (cursor) asked.set('cursor', cursor);
    return '/api/instances?' + asked;
  };
  const columns = [
    [h('span', { cls: 'visually-hidden' }, 'Pick'), (row) => meta.readOnly ? null : h('input', { type: 'checkbox', 'aria-label': `Pick ${row.instance}`, checked: picked.has(row.instance), onchange: (event) => { picked[event.target.checked ? 'add' : 'delete'](row.instance); drawBar(); } }), 'pick'],
    ['Instance', (row) => [idLink(row.instance), row.parent ? h('div', { cls: 'sub' }, 'child of ', idLink(row.parent)) : null], 'id'],
    ['Status', (row) => status(row.status)],
    ['Orchestration', (row) => [row.orchestration, row.version ? h('span', { cls: 'faint' }, ' ' + row.version) : null, row.execution > 1 ? h('div', { cls: 'sub' }, `execution ${row.execution}`) : null]],
    ['Moved', (row) => ago(row.updatedAt)],
    ['Took', (row) => row.completedAt ? span(row.completedAt - row.createdAt) : h('span', { cls: 'faint' }, row.createdAt ? span(now() - row.createdAt) : ''), 'num'],
    ['Error or custom status', (row) => row.error ? h('span', { cls: 'bad-text' }, row.error) : row.customStatus ? h('span', {}, row.customStatus) : null, 'cut'],
  ];

  async function load(more = false) {
    if (busy && more) return;
    busy = true;
    const turn = ++mine;
    try {
      const page = await get(query(more ? next : null));
      if (closed || turn !== mine) return;
      setNow(page.now);
      rows = more ? rows.concat(page.rows) : page.rows;
      next = page.next;
      waiting = 0;
      if (more && body.querySelector('tbody')) body.querySelector('tbody').append(...page.rows.map((row) => tableRow(columns, row, keyOf)));
      else draw();
      drawNote(page);
    } catch (error) {
      if (!closed && turn === mine) replace(body, empty('This cannot be shown', error.message));
    } finally {
      if (turn === mine) busy = false;
    }
    if (next && sentinel.getBoundingClientRect().top < innerHeight + 200 && rows.length < 50) load(true);
  }
  const keyOf = (row) => row.instance;
  function draw() {
    if (!rows.length) {
      replace(body, Object.values(filter).some(Boolean) ? empty('Nothing matches', 'Take a filter away, or wait: what begins to match appears here by itself.') : empty('There are no instances yet', 'Start one, or run a program of yours on this container.'));
      return;
    }
    replace(body, table(columns, rows, { key: keyOf, caption: 'Instances' }));
  }
  const cli = () => `cdb instances${filter.status ? ` --status ${filter.status}` : ''}${filter.name ? ` --name ${quote(filter.name)}` : ''}${filter.prefix ? ` --prefix ${quote(filter.prefix)}` : ''}${filter.since ? ` --since ${quote(filter.since)}` : ''}${filter.before ? ` --before ${quote(filter.before)}` : ''}${filter.children ? '' : ' --roots'}${meta.options ? ' ' + meta.options : ''}`;
  function drawNote() {
    replace(note, h('span', {}, `${plural(rows.length, 'instance')}${next ? ' so far, more below' : ''}`), waiting ? h('button', { onclick: () => load() }, `${plural(waiting, 'new one')}: show`) : null, picked.size ? null : h('span', {}));
  }
  function drawBar() {
    if (!picked.size) { replace(bar); return; }
    const ids = [...picked];
    const done = () => { picked.clear(); drawBar(); load(); };
    replace(bar, h('div', { cls: 'selection', role: 'region', 'aria-label': 'Chosen instances' }, h('b', {}, `${count(ids.length)} chosen`), h('button', { onclick: () => cancelMany(ids, done) }, 'Cancel…'), h('button', { onclick: () => prune(ids, done) }, 'Prune…'), h('button', { cls: 'danger', onclick: () => deleteMany(ids, done) }, 'Delete…'), h('button', { cls: 'plain', onclick: pickAll }, 'All shown'), h('button', { cls: 'plain', onclick: () => { picked.clear(); drawBar(); draw(); } }, 'None')));
  }
  function pickAll() {
    for (const row of rows.slice(0, 1000)) picked.add(row.instance);
    draw();
    drawBar();
  }
  function views() {
    try { return JSON.parse(settings.get('views', '[]')); } catch { return []; }
  }
  function drawFilters() {
    const chosen = new Set(filter.status.split(',').filter(Boolean));
    const toggle = (word) => {
      // Those that wait are no instances yet, so they are looked at alone.
      if (word === 'pending') chosen.has(word) ? chosen.clear() : (chosen.clear(), chosen.add(word));
      else { chosen.delete('pending'); chosen.has(word) ? chosen.delete(word) : chosen.add(word); }
      setParams({ status: [...chosen].join(',') }, { replaced: false });
    };
    const text = (name, label, placeholder, size) => h('input', { value: filter[name], placeholder, 'aria-label': label, size, 'data-main-field': name === 'prefix' ? '' : null, onchange: (event) => setParams({ [name]: event.target.value.trim() }, { replaced: false }) });
    const since = h('select', { 'aria-label': 'Moved within', onchange: (event) => setParams({ since: event.target.value }, { replaced: false }) }, [['', 'any time'], ['15m', 'last 15 minutes'], ['1h', 'last hour'], ['24h', 'last day'], ['7d', 'last week']].map(([value, word]) => h('option', { value, selected: filter.since === value }, word)), filter.since && !['15m', '1h', '24h', '7d'].includes(filter.since) ? h('option', { value: filter.since, selected: true }, `since ${filter.since}`) : null);
    const active = FIELDS.filter((name) => filter[name]);
    replace(filters, h('div', { cls: 'pad stack' },
      h('div', { cls: 'row' }, h('div', { cls: 'chips', role: 'group', 'aria-label': 'Status' }, WORDS.map((word) => h('button', { cls: 'chip', 'aria-pressed': String(chosen.has(word)), onclick: () => toggle(word) }, word[0].toUpperCase() + word.slice(1)))), h('button', { cls: 'plain', onclick: () => setParams({ status: 'running', since: '' }, { replaced: false }) }, 'In flight')),
      h('div', { cls: 'row' }, text('prefix', 'Ids that begin with', 'id begins with…   ( / )', '22'), text('name', 'Orchestration', 'orchestration', '16'), since, h('label', { cls: 'check' }, h('input', { type: 'checkbox', checked: Boolean(filter.children), onchange: (event) => setParams({ children: event.target.checked ? '1' : '' }, { replaced: false }) }), 'Children as well')),
      active.length ? h('div', { cls: 'row' }, active.map((name) => h('button', { cls: 'chip', 'aria-pressed': 'true', title: 'Take away', onclick: () => setParams({ [name]: '' }, { replaced: false }) }, `${name === 'children' ? 'with children' : `${name}: ${filter[name]}`} ✕`)), h('button', { cls: 'plain', onclick: () => setParams(Object.fromEntries(FIELDS.map((name) => [name, ''])), { replaced: false }) }, 'Clear all'), h('button', { cls: 'plain', onclick: save }, 'Keep this view')) : null,
      views().length ? h('div', { cls: 'row' }, h('span', { cls: 'faint' }, 'Views:'), views().map((view) => h('span', { cls: 'chips' }, h('a', { href: '/instances?' + view.query }, view.name), h('button', { cls: 'plain', 'aria-label': `Forget the view ${view.name}`, onclick: () => { settings.set('views', JSON.stringify(views().filter((other) => other.name !== view.name))); drawFilters(); } }, '✕')))) : null,
      h('details', {}, h('summary', { cls: 'faint' }, 'The same in a terminal'), command(cli()))));
  }
  function save() {
    const name = FIELDS.filter((field) => filter[field]).map((field) => filter[field]).join(' ');
    const others = views().filter((view) => view.name !== name);
    settings.set('views', JSON.stringify([...others, { name, query: new URLSearchParams(location.search).toString() }].slice(-12)));
    drawFilters();
  }
  const matches = (row) => {
    const words = filter.status.split(',').filter(Boolean);
    return (!words.length || words.includes(String(row.status).toLowerCase())) && (!filter.name || row.orchestration === filter.name) && row.instance.startsWith(filter.prefix) && (filter.children || filter.parent || !row.parent) && (!filter.parent || row.parent === filter.parent) && !filter.before;
  };
  // Rows that are shown change where they are; what is new waits above while somebody has scrolled down.
  function apply(changed) {
    let fresh = 0;
    const tbody = body.querySelector('tbody');
    for (const row of changed) {
      const at = rows.findIndex((old) => old.instance === row.instance);
      const old = tbody?.querySelector(`tr[data-key="${CSS.escape(row.instance)}"]`);
      if (at >= 0) {
        rows[at] = row;
        if (!old) continue;
        const node = tableRow(columns, row, keyOf);
        if (old.classList.contains('at')) node.classList.add('at');
        node.classList.add('new');
        const focused = old.contains(document.activeElement);
        old.replaceWith(node);
        if (focused) node.querySelector('a')?.focus({ preventScroll: true });
      } else if (matches(row)) {
        if (scrollY > 200) { fresh += 1; continue; }
        rows.unshift(row);
        if (tbody) { const node = tableRow(columns, row, keyOf); node.classList.add('new'); tbody.prepend(node); } else draw();
      }
    }
    waiting += fresh;
    drawNote();
  }
  const seen = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting) && next && !busy) load(true); }, { rootMargin: '400px' });
  seen.observe(sentinel);
  drawFilters();
  load();
  return {
    node,
    update(params) { filter = read(params); picked.clear(); drawBar(); drawFilters(); load(); },
    news(event) {
      if (event.kind === 'reset') load();
      if (event.kind === 'changes') {
        if (filter.status === 'pending') load();
        else apply(event.rows);
      }
    },
    close() { closed = true; seen.disconnect(); },
  };
}
