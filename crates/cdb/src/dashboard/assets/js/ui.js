// Elements, texts and small parts. Texts of others become text nodes and nothing else.

const SVG = 'http://www.w3.org/2000/svg';
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

// What would not be seen, or would move what is seen, is shown as what it is.
export function clean(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.codePointAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return '\u2421';
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, '0')}⟩`;
  });
}

function fill(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
  return node;
}
function make(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'value') node.value = value;
    else if (name === 'checked') node.checked = value;
    else node.setAttribute(name === 'cls' ? 'class' : name, value === true ? '' : clean(value));
  }
  return fill(node, children);
}
export const h = (tag, props, ...children) => make(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => make(document.createElementNS(SVG, tag), props, children);
export function replace(node, ...children) {
  node.replaceChildren();
  return fill(node, children);
}

// Settings that stay with the browser.
export const settings = {
  get: (name, otherwise) => {
    try { return localStorage.getItem('cdb.' + name) ?? otherwise; } catch { return otherwise; }
  },
  set: (name, value) => {
    try { localStorage.setItem('cdb.' + name, value); } catch { /* a browser that keeps nothing */ }
  },
};

// Times. The server's clock is what counts.
let skew = 0;
export const setNow = (ms) => { skew = ms - Date.now(); };
export const now = () => Date.now() + skew;
export const isUtc = () => settings.get('zone', 'local') === 'utc';
const two = (n) => String(n).padStart(2, '0');
export function clock(ms, withDate = true) {
  if (!ms) return '—';
  const d = new Date(ms);
  const u = isUtc();
  const date = u ? `${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())}` : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
  const time = u ? `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}:${two(d.getUTCSeconds())}` : `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return (withDate ? `${date} ${time}` : time) + (u ? ' UTC' : '');
}
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return '';
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} m ${two(Math.floor(ms / 1000) % 60)} s`;
  if (ms < 86400000) return `${Math.floor(ms / 3600000)} h ${two(Math.floor(ms / 60000) % 60)} m`;
  return `${Math.floor(ms / 86400000)} d ${two(Math.floor(ms / 3600000) % 24)} h`;
}
function agoText(ms) {
  const gone = now() - ms;
  if (gone < -999) return `in ${span(-gone)}`;
  if (gone < 1000) return 'just now';
  if (gone < 60000) return `${Math.floor(gone / 1000)} s ago`;
  if (gone < 3600000) return `${Math.floor(gone / 60000)} min ago`;
  if (gone < 86400000) return `${Math.floor(gone / 3600000)} h ago`;
  return `${Math.floor(gone / 86400000)} d ago`;
}
// A moment as it is seen from now; it moves by itself. Its title has both zones.
export function ago(ms) {
  if (!ms) return h('span', { cls: 'faint' }, '—');
  const iso = new Date(ms).toISOString();
  return h('time', { datetime: iso, title: `${clock(ms)} · ${iso}`, 'data-ago': ms, cls: 'nowrap' }, agoText(ms));
}
export const moment = (ms) => ms ? h('time', { datetime: new Date(ms).toISOString(), title: `${new Date(ms).toISOString()} · ${agoText(ms)}`, cls: 'nowrap' }, clock(ms)) : '—';
setInterval(() => {
  if (document.hidden) return;
  for (const node of document.querySelectorAll('[data-ago]')) {
    const text = agoText(Number(node.dataset.ago));
    if (node.textContent !== text) node.textContent = text;
  }
}, 1000);

export const count = (n) => Number(n ?? 0).toLocaleString('en-US');
export const units = (n) => `${Number(n ?? 0).toLocaleString('en-US', { maximumFractionDigits: n < 100 ? 1 : 0 })} RU`;
export function bytes(n) {
  if (n < 1024) return `${n} B`;
  if (n < 1048576) return `${(n / 1024).toFixed(1)} KB`;
  return `${(n / 1048576).toFixed(1)} MB`;
}
export const plural = (n, noun) => `${count(n)} ${noun}${Number(n) === 1 ? '' : 's'}`;

// Ids are encoded once, wherever they go.
export const idPath = (id) => '/i/' + encodeURIComponent(id);
export const apiPath = (id, rest = '') => `/api/instances/${encodeURIComponent(id)}${rest}`;
export const idLink = (id, props) => h('a', { href: idPath(id), ...props }, id);
export const status = (word) => h('span', { cls: `status ${String(word).toLowerCase()}` }, word || 'Unknown');
export const empty = (title, text) => h('div', { cls: 'empty' }, h('b', {}, title), text);
export function panel(title, { actions, body, note, id } = {}) {
  return h('section', { cls: 'panel', 'aria-label': title, id }, h('header', {}, h('h2', {}, title), note ? h('span', { cls: 'faint' }, note) : null, h('span', { cls: 'grow' }), actions), body);
}
export function header(title, text, ...actions) {
  return h('div', { cls: 'head' }, h('div', { cls: 'grow' }, h('h1', {}, title), text ? h('p', {}, text) : null), h('div', { cls: 'row' }, actions));
}
// Columns: [title, cell(row), class]. Rows become cards on narrow screens.
export function table(columns, rows, { key, onRow, caption } = {}) {
  const body = h('tbody', {});
  for (const row of rows) body.append(tableRow(columns, row, key, onRow));
  return h('table', { cls: 'cards' }, h('caption', { cls: 'visually-hidden' }, caption ?? ''), h('thead', {}, h('tr', {}, columns.map(([title, , cls]) => h('th', { scope: 'col', cls }, title)))), body);
}
export function tableRow(columns, row, key, onRow) {
  const cells = columns.map(([title, cell, cls]) => h('td', { cls, 'data-label': typeof title === 'string' && title && cls !== 'id' ? title : null }, cell(row)));
  const node = h('tr', { 'data-key': key ? key(row) : null }, cells);
  if (onRow) onRow(node, row);
  return node;
}

// A value as a tree. Lists and objects fold; what is long folds at first.
export function json(value, key, depth = 0) {
  const name = key === undefined ? null : [h('span', { cls: 'k' }, key), ': '];
  if (value !== null && typeof value === 'object') {
    const list = Array.isArray(value);
    const entries = Object.entries(value);
    const shown = entries.slice(0, 500);
    const node = h('details', { open: depth < 2 && entries.length <= 60 }, h('summary', {}, name, list ? `[${entries.length}]` : `{${entries.length}}`));
    const fillIn = () => {
      if (node.childNodes.length > 1) return;
      node.append(...shown.map(([k, v]) => json(v, k, depth + 1)));
      if (entries.length > shown.length) node.append(h('div', { cls: 'leaf faint' }, `… ${entries.length - shown.length} more`));
    };
    if (node.open) fillIn();
    node.addEventListener('toggle', fillIn);
    return node;
  }
  const cls = typeof value === 'string' ? 's' : 'n';
  return h('div', { cls: 'leaf' }, name, h('span', { cls }, typeof value === 'string' ? JSON.stringify(value) : String(value)));
}
// A text that may be JSON, with how long it is; a long one is fetched when somebody wants it.
export function payload(title, text, { bad, size, cut, more } = {}) {
  let value;
  try { value = JSON.parse(text); } catch { /* a plain text */ }
  const isTree = value !== null && typeof value === 'object';
  const body = isTree ? h('pre', { cls: 'payload', tabindex: '0', 'aria-label': title }, h('div', { cls: 'json' }, json(value))) : h('pre', { cls: bad ? 'payload bad' : 'payload', tabindex: '0', 'aria-label': title }, text === '' ? h('span', { cls: 'faint' }, '(empty)') : text);
  return h('div', { cls: 'stack-s' }, h('div', { cls: 'row' }, h('h3', { cls: 'quiet' }, title), h('span', { cls: 'faint' }, size > 60 ? bytes(size) : ''), copyButton(text), cut && more ? h('button', { cls: 'plain', onclick: more }, `Show all ${bytes(size)}`) : null), body);
}

export function copyButton(text) {
  return h('button', { cls: 'plain', type: 'button', title: 'Copy', 'aria-label': 'Copy', onclick: async (event) => {
    event.preventDefault();
    try { await navigator.clipboard.writeText(text); toast('Copied.'); } catch { toast('The browser does not allow copying: select the text.', true); }
  } }, 'Copy');
}
// The command that does the same.
export const quote = (text) => /^[\w./~:@%+=,-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`;
export const command = (text) => h('div', { cls: 'command' }, h('code', {}, text), copyButton(text));

let toasts;
export function toast(text, bad = false) {
  if (!toasts?.isConnected) {
    toasts = h('div', { cls: 'toasts', role: 'status', 'aria-live': 'polite' });
    document.body.append(toasts);
  }
  const node = h('div', { cls: bad ? 'toast bad' : 'toast' }, text);
  toasts.append(node);
  setTimeout(() => node.remove(), bad ? 9000 : 4000);
}
export function dialog(title, build) {
  const node = h('dialog', { 'aria-label': title });
  const form = h('form', { method: 'dialog' }, h('h2', {}, title));
  const close = () => { node.close(); };
  fill(form, [build({ close, form })]);
  node.append(form);
  node.addEventListener('close', () => node.remove());
  document.body.append(node);
  node.showModal();
  return node;
}
export const field = (label, input, hint) => h('label', { cls: 'field' }, label, input, hint ? h('span', { cls: 'faint' }, hint) : null);

// Pictures, one stroke each.
const PATHS = {
  overview: 'M2 13V8h3v5zm5 0V3h3v10zm5 0V6h2v7', instances: 'M2 3.5h12M2 8h12M2 12.5h8', queues: 'M3 3h10v3H3zM3 8h10v2H3zm0 4h10', runtimes: 'M3 3h10v7H3zM6 13h4M8 10v3',
  letters: 'M2 4h12v8H2zM2 4l6 5 6-5', care: 'M8 13S2.5 9.6 2.5 5.9A2.9 2.9 0 0 1 8 4.6a2.9 2.9 0 0 1 5.5 1.3C13.500 9.600 8 13 8 13z', explorer: 'M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zm4-1 3 3', emulator: 'M3 4c0-3 10-3 10 0v8c0 3-10 3-10 0zm0 0c0 3 10 3 10 0M3 8c0 3 10 3 10 0',
};
export const picture = (name) => s('svg', { viewBox: '0 0 16 16', 'aria-hidden': 'true', fill: 'none', stroke: 'currentColor', 'stroke-width': '1.4', 'stroke-linecap': 'round', 'stroke-linejoin': 'round' }, s('path', { d: PATHS[name] }));
