// Spans as a picture: queued, running, backing off, waiting; what is open grows with the line that is now.

import { apiPath, clean, h, now, replace, s, span } from './ui.js';
import { get } from './net.js';

const ROW = 26;
const TOP = 26;
const GROUP_OVER = 200;
export const STATES = [['queued', 'queued'], ['running', 'running'], ['backoff', 'backing off'], ['waiting', 'waiting'], ['done', 'done'], ['failed', 'failed'], ['left', 'cancelled or left']];

export function timeline({ id, spans, isOver, from, to, onPick }) {
  const node = h('div', {});
  const chart = h('div', {});
  let rows = spans;
  let over = isOver;
  let failedOnly = false;
  let grouped = spans.length > GROUP_OVER;
  let range = null;
  let bounds = { from, to };
  const open = new Map();
  const buttons = h('div', { cls: 'row' });
  const legend = h('div', { cls: 'legend' }, STATES.map(([cls, word]) => h('span', {}, h('i', { cls }), word)));
  node.append(h('div', { cls: 'chart-row' }, buttons, legend), chart);

  function nested(list, depth, found) {
    const shown = failedOnly ? list.filter((row) => row.state === 'failed') : list;
    if (grouped && depth === 0) {
      const groups = new Map();
      for (const row of shown) {
        const key = `${row.kind} ${row.name}`;
        groups.has(key) ? groups.get(key).push(row) : groups.set(key, [row]);
      }
      for (const [key, members] of groups) {
        if (members.length === 1) { add(members[0], depth, found); continue; }
        found.push({ group: key, members, depth, kind: members[0].kind, name: `${members[0].name} × ${members.length}` });
        if (open.get('group ' + key)) for (const row of members) add(row, depth + 1, found);
      }
      return found;
    }
    for (const row of shown) add(row, depth, found);
    return found;
  }
  function add(row, depth, found) {
    found.push({ ...row, depth });
    const child = row.child && open.get(row.child);
    if (child) nested(child.spans, depth + 1, found);
  }
  async function unfold(row) {
    const key = row.group ? 'group ' + row.group : row.child;
    if (open.has(key)) open.delete(key);
    else if (row.group) open.set(key, true);
    else {
      try { open.set(key, await get(apiPath(row.child))); } catch { return; }
    }
    draw();
  }
  const end = (row) => row.ended ?? (over ? bounds.to : now());

  function draw() {
    const width = Math.max(320, chart.clientWidth || 900);
    const label = width < 620 ? 128 : Math.min(320, Math.round(width * 0.3));
    const list = nested(rows, 0, []);
    const last = over ? bounds.to : Math.max(bounds.to, now());
    const view = range ?? { from: bounds.from, to: Math.max(last, bounds.from + 1) };
    const room = width - label - 74;
    const x = (ms) => label + Math.max(0, Math.min(1, (ms - view.from) / (view.to - view.from))) * room;
    const height = TOP + list.length * ROW + 8;
    const grid = [0, .25, .5, .75, 1].map((part) => { const at = label + part * room; return [s('line', { x1: at, x2: at, y1: TOP - 6, y2: height, cls: 'grid' }), s('text', { x: at, y: 13, cls: 'soft', 'text-anchor': part === 1 ? 'end' : part ? 'middle' : 'start' }, span(view.from - bounds.from + part * (view.to - view.from)))]; });
    const letters = Math.floor((label - 30) / 6.6);
    const cut = (text, n) => { const t = clean(text); return t.length > n ? t.slice(0, Math.max(1, n - 1)) + '…' : t; };
    const lines = list.map((row, i) => {
      const y = TOP + i * ROW;
      const indent = row.depth * 14;
      const folds = row.child || row.group;
      const isOpen = folds && open.has(row.group ? 'group ' + row.group : row.child);
      const bars = (row.members ?? [row]).map((part) => {
        const a = x(part.began), b = Math.max(a + 3, x(end(part)));
        if (end(part) < view.from || part.began > view.to) return null;
        const due = !part.ended && part.due && !over ? s('line', { x1: b, x2: Math.max(b, x(part.due)), y1: y + ROW / 2, y2: y + ROW / 2, cls: 'grid', 'stroke-dasharray': '2 3' }) : null;
        return [s('rect', { x: a, y: y + 7, width: b - a, height: ROW - 14, rx: 4, class: `b-${part.state}`, opacity: row.members ? .55 : null }), due];
      });
      const first = Math.min(...(row.members ?? [row]).map((part) => part.began));
      const until = Math.max(...(row.members ?? [row]).map(end));
      const words = `${row.kind} ${row.name}, ${row.state ?? ''} ${span(until - first)}${row.attempts > 1 ? `, attempt ${row.attempts}` : ''}${row.note ? `: ${row.note}` : ''}`;
      return [
        s('rect', { x: 0, y, width, height: ROW, cls: 'hit', onclick: () => folds && row.group ? unfold(row) : onPick?.(row), 'data-span': row.id ?? null }, s('title', {}, words)),
        folds ? s('text', { x: 4 + indent, y: y + 17, cls: 'fold', role: 'button', tabindex: '0', 'aria-label': `${isOpen ? 'Fold' : 'Unfold'} ${row.name}`, onclick: () => unfold(row), onkeydown: (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); unfold(row); } } }, isOpen ? '▾' : '▸') : null,
        s('text', { x: 18 + indent, y: y + 17, 'pointer-events': 'none' }, cut(row.name, letters - row.depth * 2 - row.kind.length), s('tspan', { cls: 'soft' }, '  ' + row.kind)),
        bars, s('text', { x: width - 4, y: y + 17, cls: 'soft', 'text-anchor': 'end', 'pointer-events': 'none' }, span(until - first)),
      ];
    });
    const line = !over && now() <= view.to + 1000 ? s('line', { x1: x(now()), x2: x(now()), y1: TOP - 6, y2: height, cls: 'now' }) : null;
    const brush = s('rect', { y: TOP - 6, height: height - TOP + 6, width: 0, cls: 'brush' });
    const picture = s('svg', { viewBox: `0 0 ${width} ${height}`, width, height, cls: 'chart', role: 'group', 'aria-label': `Timeline of ${list.length} steps of ${id}; the history tab has the same as a table` }, grid, lines, line, brush);
    zoomable(picture, brush, label, room, view, width);
    replace(chart, list.length ? picture : h('p', { cls: 'empty' }, failedOnly ? 'Nothing has failed.' : 'It has not begun anything yet.'));
    replace(buttons, rows.length > 1 ? h('label', { cls: 'check' }, h('input', { type: 'checkbox', checked: failedOnly, onchange: (event) => { failedOnly = event.target.checked; draw(); } }), 'Failed only') : null,
      rows.length > 12 ? h('label', { cls: 'check' }, h('input', { type: 'checkbox', checked: grouped, onchange: (event) => { grouped = event.target.checked; draw(); } }), 'Grouped by name') : null,
      range ? h('button', { cls: 'plain', onclick: () => { range = null; draw(); } }, 'Whole time') : null);
  }
  // Dragging over the picture looks closer.
  function zoomable(picture, brush, label, room, view, width) {
    let begun = null;
    const at = (event) => { const box = picture.getBoundingClientRect(); return Math.max(label, Math.min(label + room, (event.clientX - box.left) * (width / box.width))); };
    picture.addEventListener('pointerdown', (event) => { if (event.button === 0 && at(event) > label) begun = at(event); });
    picture.addEventListener('pointermove', (event) => { if (begun === null) return; const a = Math.min(begun, at(event)); brush.setAttribute('x', a); brush.setAttribute('width', Math.abs(at(event) - begun)); });
    picture.addEventListener('pointerup', (event) => {
      if (begun === null) return;
      const [a, b] = [Math.min(begun, at(event)), Math.max(begun, at(event))];
      begun = null;
      if (b - a < 8) { brush.setAttribute('width', 0); return; }
      const moment = (px) => view.from + ((px - label) / room) * (view.to - view.from);
      range = { from: moment(a), to: moment(b) };
      draw();
    });
  }
  const resized = new ResizeObserver(() => draw());
  resized.observe(chart);
  const ticker = setInterval(() => { if (!over && !document.hidden && !range) draw(); }, 1000);
  return {
    node,
    update(next) { rows = next.spans; over = next.isOver; bounds = { from: next.from, to: next.to }; draw(); },
    close() { resized.disconnect(); clearInterval(ticker); },
  };
}
