// One instance: header, why, timeline, history and what else is stored of it.

import { get } from './net.js';
import { ago, apiPath, bytes, clock, command, copyButton, count, dialog, empty, h, idLink, json, moment, now, panel, payload, plural, quote, replace, setNow, span, status, table, toast } from './ui.js';
import { timeline } from './timeline.js';
import { cancelMany, deleteMany, prune, send, start } from './actions.js';

const MARK = { failed: '✘', stuck: '✘', waiting: '◔', fine: '✔' };
const VERDICT = { failed: 'It failed', stuck: 'It looks stuck', waiting: 'It waits', fine: 'Nothing is wrong' };

export function open({ meta, params, id, go, setParams }) {
  let tab = params.get('tab') ?? 'timeline';
  let execution = params.get('execution') ?? '';
  let data = null;
  let line = null;
  let timer = null;
  let closed = false;
  let gone = false;
  const node = h('div', {}, h('p', { cls: 'quiet' }, 'Loading…'));
  const top = h('div', {});
  const tabs = h('div', { cls: 'tabs', role: 'tablist', 'aria-label': 'Parts' });
  const part = h('div', { role: 'tabpanel', id: 'part' });

  async function load() {
    timer = null;
    try {
      data = await get(apiPath(id, execution ? `?execution=${encodeURIComponent(execution)}` : ''));
      setNow(data.now);
      gone = false;
    } catch (error) {
      if (closed) return;
      gone = true;
      replace(node, h('div', { cls: 'head' }, h('h1', {}, id)), empty(error.status === 404 ? 'It is not there' : 'This cannot be shown', error.message));
      return;
    }
    if (closed) return;
    if (!top.isConnected) replace(node, top, tabs, part);
    drawTop();
    drawTabs();
    drawPart(true);
  }
  // Not more often than once in a second.
  function later() {
    if (!timer && !closed) timer = setTimeout(load, 900);
  }
  const head = () => data.head ?? {};
  const isOver = () => ['Completed', 'Failed', 'Cancelled'].includes(head().status) || (execution && String(head().execution) !== String(execution));

  function drawTop() {
    const info = head();
    const act = meta.readOnly ? [] : [
      !isOver() ? h('button', { onclick: () => send(id, data.waitsFor, later) }, data.waitsFor.length ? `Send ${data.waitsFor[0].name}…` : 'Send…') : null,
      h('button', { onclick: () => start({ id: again(id), name: info.orchestration, version: '', input: data.input?.cut ? '' : data.input?.text ?? '' }, go), title: data.input?.cut ? 'Its input is long: paste it yourself' : null }, 'Run again…'),
      !isOver() ? h('button', { onclick: () => cancelMany([id], later) }, 'Cancel…') : null,
      data.executions.length > 1 ? h('button', { onclick: () => prune([id], later) }, 'Prune…') : null,
      h('button', { cls: 'danger', onclick: () => deleteMany([id], () => go('/instances')) }, 'Delete…'),
    ];
    const facts = [
      ['Orchestration', [h('a', { href: `/instances?name=${encodeURIComponent(info.orchestration ?? '')}` }, info.orchestration || '—'), info.version ? h('span', { cls: 'faint' }, ' ' + info.version) : null]],
      ['Created', moment(info.createdAt)], ['Moved', ago(info.updatedAt)],
      [info.completedAt ? 'Took' : 'Age', info.createdAt ? span((info.completedAt ?? now()) - info.createdAt) : '—'],
      info.parent ? ['Parent', idLink(info.parent)] : null,
      data.executions.length > 1 ? ['Execution', h('select', { 'aria-label': 'Execution', onchange: (event) => setParams({ execution: event.target.value }, { replaced: false }) }, data.executions.map((entry) => h('option', { value: entry.execution, selected: entry.execution === data.execution }, `${entry.execution} · ${entry.status} · ${plural(entry.events, 'event')}`)))] : null,
      info.customStatus ? ['Custom status', info.customStatus] : null,
      data.lock ? ['Turn held by', [data.lock.owner ?? 'an older version', ' until ', clock(data.lock.until, false)]] : null,
      ['History', `${plural(data.events.length + data.eventsLeftOut, 'event')}, ${bytes(data.bytes)}`],
      ['This page cost', `${data.cost.units.toFixed(1)} RU`],
    ].filter(Boolean);
    const why = data.why;
    replace(top, h('div', { cls: 'head' }, h('div', { cls: 'grow' }, h('div', { cls: 'row' }, h('h1', {}, id), copyButton(id), status(info.status ?? 'Pending')), h('p', {}, h('a', { href: '/instances' }, 'Instances'), ' / ', info.orchestration ?? 'not begun')), h('div', { cls: 'row' }, act)),
      h('div', { cls: 'stack' },
        h('div', { cls: 'panel pad' }, h('dl', { cls: 'facts' }, facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))))),
        why.level !== 'fine' ? h('a', { cls: `panel pad row`, href: `?tab=why`, onclick: (event) => { event.preventDefault(); setParams({ tab: 'why' }, { replaced: false }); } }, h('span', { cls: `status ${why.level}` }, VERDICT[why.level]), h('span', { cls: 'cut' }, h('span', { cls: 'quiet' }, why.findings[0]?.text))) : null,
        data.input || data.output ? h('div', { cls: 'payloads' }, data.input ? payload('Input', data.input.text, { size: data.input.bytes, cut: data.input.cut, more: () => whole('OrchestrationStarted', 'input') }) : null, data.output ? payload(data.failed ? 'Error' : 'Output', data.output.text, { bad: data.failed, size: data.output.bytes, cut: data.output.cut, more: () => whole('OrchestrationCompleted', 'output') }) : null) : null,
        h('span', {})));
  }
  const again = (old) => { const match = /^(.*)-again-(\d+)$/.exec(old); return match ? `${match[1]}-again-${Number(match[2]) + 1}` : `${old}-again-1`; };
  async function whole(type, field) {
    const event = data.events.find((entry) => entry.type === type);
    if (event) showEvent(event.event_id, field);
  }
  async function showEvent(number, field) {
    try {
      const answer = await get(apiPath(id, `/events/${number}?execution=${data.execution}`));
      const value = field ? answer.event[field] : answer.event;
      const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2);
      dialog(`Event ${number}${field ? `: ${field}` : ''}`, ({ close }) => [
        typeof value === 'string' ? long(text) : h('div', { cls: 'json', tabindex: '0' }, json(opened(value))),
        h('div', { cls: 'end' }, copyButton(text), h('a', { cls: 'button', href: apiPath(id, `/events/${number}?execution=${data.execution}&download=1`), download: '' }, 'Download'), h('button', { type: 'button', onclick: close }, 'Close'))]);
    } catch (error) { toast(error.message, true); }
  }
  // The beginning of a text of megabytes is what people read; laying all of it out would hold up the page.
  function long(text) {
    const shown = 200000;
    return [h('pre', { cls: 'payload', tabindex: '0' }, text.slice(0, shown)), text.length > shown ? h('p', { cls: 'faint' }, `The first ${bytes(shown)} of ${bytes(text.length)}; copy or download it for all.`) : null];
  }
  // Payloads are often JSON in a text: shown as what they are.
  function opened(value) {
    if (typeof value === 'string' && value.length < 200000 && /^\s*[[{]/.test(value)) { try { return JSON.parse(value); } catch { return value; } }
    if (typeof value === 'string' && value.length > 20000) return value.slice(0, 20000) + `… (${bytes(value.length)})`;
    if (value && typeof value === 'object') return Array.isArray(value) ? value.map(opened) : Object.fromEntries(Object.entries(value).map(([k, v]) => [k, opened(v)]));
    return value;
  }

  const PARTS = () => [['timeline', 'Timeline', data.spans.length], ['history', 'History', data.events.length + data.eventsLeftOut], ['why', 'Why', ''], ['tree', 'Tree', data.children.length || ''], ['kv', 'Key-values', data.keys.length || ''], ['documents', 'Documents', '']];
  function drawTabs() {
    replace(tabs, PARTS().map(([key, word, n]) => h('a', { href: `?tab=${key}`, role: 'tab', 'aria-selected': String(key === tab), 'aria-controls': 'part', onclick: (event) => { event.preventDefault(); event.stopPropagation(); setParams({ tab: key === 'timeline' ? '' : key }, { replaced: false }); } }, word, n !== '' ? h('span', { cls: 'count' }, count(n)) : null)));
  }
  let drawn = null;
  function drawPart(fresh) {
    const first = data.events[0]?.timestamp_ms ?? head().createdAt ?? now();
    const last = data.events.at(-1)?.timestamp_ms ?? now();
    if (tab === 'timeline') {
      const state = { id, spans: data.spans, isOver: isOver(), from: first, to: Math.max(last, first + 1), onPick: (row) => row.id && (row.child ? go(`/i/${encodeURIComponent(row.child)}`) : showEvent(row.id)) };
      if (line && drawn === 'timeline') line.update(state);
      else { line?.close(); line = timeline(state); replace(part, panel('Timeline', { note: isOver() ? null : 'the dashed line is now', body: h('div', { cls: 'pad' }, line.node) })); }
    } else {
      line?.close();
      line = null;
      if (tab === 'history') replace(part, history_(first));
      else if (tab === 'why') replace(part, why());
      else if (drawn !== tab || fresh === 'tab') fetchPart(tab);
      else if (fresh && (tab === 'tree' || tab === 'kv')) fetchPart(tab);
    }
    drawn = tab;
  }
  let historyFilter = '';
  function history_(first) {
    const failed = historyFilter === 'failed';
    const shown = data.events.filter((event) => !failed || /Failed|Cancel/.test(event.type));
    const limit = 400;
    const details = (event) => Object.entries(event).filter(([key, value]) => !['event_id', 'source_event_id', 'timestamp_ms', 'type'].includes(key) && value !== null).map(([key, value]) => `${key}: ${key.endsWith('_at_ms') ? clock(value) : typeof value === 'object' ? JSON.stringify(value) : value}`).join('   ');
    const columns = [['#', (event) => event.event_id, 'num'], ['Time', (event) => h('span', { cls: 'nowrap', title: new Date(event.timestamp_ms).toISOString() }, clock(event.timestamp_ms, false))], ['After', (event) => span(event.timestamp_ms - first), 'num'], ['Event', (event) => [h('span', { cls: /Failed/.test(event.type) ? 'status failed' : 'tag' }, event.type), event.source_event_id ? h('span', { cls: 'faint' }, ` of #${event.source_event_id}`) : null]], ['Details', (event) => h('span', { cls: 'mono' }, details(event).slice(0, 400)), 'cut'], ['', (event) => h('button', { cls: 'plain', onclick: () => showEvent(event.event_id) }, 'Open')]];
    const rows = shown.slice(0, limit);
    const list = table(columns, rows, { key: (event) => event.event_id, caption: 'History' });
    const more = shown.length > limit ? h('div', { cls: 'pad' }, h('button', { onclick: (event) => { const at = list.querySelectorAll('tbody tr').length; list.querySelector('tbody').append(...table(columns, shown.slice(at, at + limit), {}).querySelectorAll('tbody tr')); if (at + limit >= shown.length) event.target.remove(); } }, `Show ${count(limit)} more of ${count(shown.length)}`)) : null;
    return panel('History', { note: data.eventsLeftOut ? `the first ${count(data.eventsLeftOut)} are left out` : null, actions: [h('label', { cls: 'check' }, h('input', { type: 'checkbox', checked: failed, onchange: (event) => { historyFilter = event.target.checked ? 'failed' : ''; drawPart(); } }), 'Failed only'), h('a', { cls: 'button', href: apiPath(id, `?execution=${data.execution}&download=1`), download: '' }, 'Download')], body: [data.historyError ? h('p', { cls: 'pad status failed' }, data.historyError) : null, h('div', { cls: 'scroll' }, list), more] });
  }
  function why() {
    return panel('Why', { note: 'live', body: h('div', { cls: 'pad stack' }, h('p', {}, h('span', { cls: `status ${data.why.level}` }, VERDICT[data.why.level])), h('ul', { cls: 'findings' }, data.why.findings.map((finding) => h('li', {}, h('span', { cls: `mark ${finding.level}`, 'aria-hidden': 'true' }, MARK[finding.level]), h('span', {}, finding.text), finding.advice ? h('span', { cls: 'advice' }, finding.advice) : null))), command(`cdb why ${quote(id)}${meta.options ? ' ' + meta.options : ''}`)) });
  }
  async function fetchPart(wanted) {
    const isNew = drawn !== wanted || !part.firstChild;
    if (isNew) replace(part, h('p', { cls: 'quiet' }, 'Loading…'));
    try {
      const body = await { tree, kv, documents }[wanted]();
      if (!closed && tab === wanted) replace(part, body);
    } catch (error) {
      if (!closed && tab === wanted) replace(part, empty('This cannot be shown', error.message));
    }
  }
  async function tree() {
    const branch = (row, open) => {
      const list = h('ul', {});
      const item = h('li', {}, h('span', { cls: 'row' }, h('button', { cls: 'plain', 'aria-label': `Children of ${row.instance}`, onclick: async () => { if (list.childNodes.length) { list.replaceChildren(); return; } const answer = await get(apiPath(row.instance, '/children')); list.append(...(answer.children.length ? answer.children.map((child) => branch(child)) : [h('li', { cls: 'faint' }, 'no children')])); } }, '▸'), idLink(row.instance), status(row.status), h('span', { cls: 'quiet' }, row.orchestration), h('span', { cls: 'faint' }, row.createdAt ? span((row.completedAt ?? row.updatedAt) - row.createdAt) : '')), list);
      if (open) list.append(...data.children.map((child) => branch(child)));
      return item;
    };
    return panel('Tree', { note: plural(data.children.length, 'child').replace('childs', 'children'), body: h('div', { cls: 'pad tree' }, h('ul', {}, branch({ instance: id, ...head() }, true)), h('p', {}, h('a', { href: `/instances?parent=${encodeURIComponent(id)}` }, 'The children as a list'))) });
  }
  async function kv() {
    const answer = await get(apiPath(id, '/kv'));
    if (!answer.values.length) return panel('Key-values', { body: empty('It keeps none', 'Workflows set them with set_kv_value.') });
    return panel('Key-values', { body: h('div', { cls: 'scroll' }, table([['Key', (row) => row.key, 'id'], ['Value', (row) => payload('', row.value.text, { size: row.value.bytes })]], answer.values, { caption: 'Key-values' })) });
  }
  async function documents() {
    const answer = await get(apiPath(id, '/documents'));
    return panel('Documents', { note: `${plural(answer.count, 'document')} as they are stored; long texts are cut`, actions: h('a', { cls: 'button', href: apiPath(id, '/documents?download=1'), download: '' }, 'Download'), body: h('div', { cls: 'pad json' }, answer.documents.map((document) => json(document, `${document.type} · ${document.id}`, 2))) });
  }
  load();
  return {
    node,
    update(params) {
      const before = execution;
      tab = params.get('tab') ?? 'timeline';
      execution = params.get('execution') ?? '';
      if (!data || gone || before !== execution) { load(); return; }
      drawTabs();
      drawPart('tab');
    },
    news(event) {
      if (event.kind === 'reset') load();
      if (event.kind === 'changes' && (event.touched.includes(id) || event.rows.some((row) => row.parent === id))) later();
    },
    close() { closed = true; clearTimeout(timer); line?.close(); },
  };
}
