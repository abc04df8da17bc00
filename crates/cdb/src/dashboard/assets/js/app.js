// The shell: navigation, keys, theme, footer. The address is the state; pages read it and write it.

import { get, onNews, state, unlock, watch } from './net.js';
import { count, dialog, h, isUtc, picture, replace, setNow, settings, toast, units } from './ui.js';
import * as overview from './overview.js';
import * as instances from './instances.js';
import * as instance from './instance.js';
import { queues, runtimes, letters } from './lists.js';
import * as care from './care.js';
import * as explorer from './explorer.js';
import * as emulator from './emulator.js';

const PAGES = [
  { path: '/', title: 'Overview', icon: 'overview', key: 'o', page: overview },
  { path: '/instances', title: 'Instances', icon: 'instances', key: 'i', page: instances },
  { path: '/queues', title: 'Queues', icon: 'queues', key: 'q', page: queues },
  { path: '/runtimes', title: 'Runtimes', icon: 'runtimes', key: 'r', page: runtimes },
  { path: '/dead-letters', title: 'Dead letters', icon: 'letters', key: 'd', page: letters },
  { path: '/care', title: 'Care', icon: 'care', key: 'c', page: care },
  { path: '/explorer', title: 'Explorer', icon: 'explorer', key: 'e', page: explorer },
  { path: '/emulator', title: 'Emulator', icon: 'emulator', key: 'm', page: emulator, emulator: true },
];

const main = h('main', { id: 'main', tabindex: '-1' });
const banner = h('div', { role: 'alert' });
const cost = h('footer', { cls: 'cost' });
let nav;
let current = null;
let turn = 0;

export function go(path, { replaced = false } = {}) {
  const here = location.pathname + location.search;
  if (path !== here) history[replaced ? 'replaceState' : 'pushState'](null, '', path);
  show();
}
// Changes the part of the address that is this page's own state.
export function setParams(changes, { replaced = true } = {}) {
  const params = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === '' || value === false) params.delete(name);
    else params.set(name, value);
  }
  const text = params.toString().replaceAll('%2C', ',');
  go(location.pathname + (text ? '?' + text : ''), { replaced });
}

function find(path) {
  if (path.startsWith('/i/')) {
    try { return { page: instance, title: decodeURIComponent(path.slice(3)), id: decodeURIComponent(path.slice(3)), at: '/instances' }; } catch { return null; }
  }
  const found = PAGES.find((entry) => entry.path === path);
  return found ? { ...found, at: path } : null;
}

async function show() {
  const found = find(location.pathname);
  const mine = ++turn;
  const key = location.pathname;
  if (!found) {
    current?.view.close?.();
    current = null;
    replace(main, h('h1', {}, 'Nothing is here'), h('p', {}, h('a', { href: '/' }, 'Back to the overview')));
    return;
  }
  document.title = `${found.title} · cdb`;
  for (const link of nav.querySelectorAll('a.item')) {
    if (link.getAttribute('href') === found.at) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  nav.classList.remove('open');
  const params = new URLSearchParams(location.search);
  // The same page with another state keeps what it has on the screen.
  if (current?.key === key && current.view.update) {
    current.view.update(params);
    return;
  }
  current?.view.close?.();
  const view = found.page.open({ meta: state.meta, params, id: found.id, go, setParams });
  current = { key, view };
  replace(main, view.node);
  window.scrollTo(0, 0);
  if (mine > 1) main.focus({ preventScroll: true });
}

function theme() {
  const chosen = settings.get('theme', 'auto');
  const dark = chosen === 'dark' || (chosen === 'auto' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
}
function toggleTheme() {
  settings.set('theme', document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  theme();
}
function toggleZone() {
  settings.set('zone', isUtc() ? 'local' : 'utc');
  drawFoot();
  const view = current;
  current = null;
  view?.view.close?.();
  show();
}

const foot = h('div', { cls: 'foot' });
function drawFoot() {
  replace(foot,
    h('button', { cls: 'plain', onclick: toggleTheme, title: 'Light or dark (t)' }, 'Theme'),
    h('button', { cls: 'plain', onclick: toggleZone, title: 'Local time or UTC (u)', 'aria-pressed': String(isUtc()) }, isUtc() ? 'UTC' : 'Local time'),
    h('button', { cls: 'plain', onclick: help, title: 'Keys (?)' }, 'Keys'));
}
function drawCost() {
  const last = state.last;
  const live = { on: ['live', 'live'], off: ['live off', 'no connection'], paused: ['live paused', 'paused: nobody looks'] }[state.live];
  replace(cost, h('span', { cls: live[0] }, live[1]),
    h('span', {}, `this dashboard has spent ${units(state.spent)}`),
    last ? h('span', {}, `last answer ${units(last.units)}${last.requests ? `, ${count(last.requests)} requests` : ''}, ${Math.round(last.ms)} ms`) : null,
    h('span', {}, `looks within ${count(state.meta?.budget)} RU/s`),
    state.meta?.readOnly ? h('span', {}, 'read only') : null);
}

const KEYS = [['/', 'filter or query'], ['j k', 'next and previous row'], ['Enter', 'open the row'], ['x', 'pick the row'], ['g then o i q r d c e m', 'overview, instances, queues, runtimes, dead letters, care, explorer, emulator'], ['t', 'light or dark'], ['u', 'local time or UTC'], ['Esc', 'close, or leave a field'], ['?', 'this']];
function help() {
  dialog('Keys', ({ close }) => [h('div', { cls: 'keys' }, KEYS.map(([keys, what]) => [h('span', {}, keys.split(' ').map((k) => k === 'then' ? ' then ' : [h('kbd', {}, k), ' '])), h('span', { cls: 'quiet' }, what)])), h('div', { cls: 'end' }, h('button', { type: 'button', onclick: close }, 'Close'))]);
}

let pending = null;
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  const field = event.target.closest?.('input, textarea, select, [contenteditable]');
  if (field) {
    if (event.key === 'Escape') field.blur();
    return;
  }
  const rows = [...main.querySelectorAll('tbody tr[data-key]')];
  const at = rows.findIndex((row) => row.classList.contains('at'));
  const move = (to) => {
    if (!rows.length) return;
    rows[at]?.classList.remove('at');
    const row = rows[Math.max(0, Math.min(rows.length - 1, to))];
    row.classList.add('at');
    row.scrollIntoView({ block: 'nearest' });
    row.querySelector('a')?.focus({ preventScroll: true });
  };
  if (pending === 'g') {
    pending = null;
    const entry = PAGES.find((page) => page.key === event.key && (!page.emulator || state.meta.emulator));
    if (entry) { event.preventDefault(); go(entry.path); }
    return;
  }
  const actions = {
    '/': () => main.querySelector('[data-main-field]')?.focus(),
    j: () => move(at + 1), k: () => move(at < 0 ? 0 : at - 1), x: () => rows[at]?.querySelector('input[type=checkbox]')?.click(),
    g: () => { pending = 'g'; setTimeout(() => { pending = null; }, 1200); },
    t: toggleTheme, u: toggleZone, '?': help,
  };
  if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
}

function onClick(event) {
  const link = event.target.closest?.('a[href]');
  if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hasAttribute('download')) return;
  const url = new URL(link.href, location.href);
  if (url.origin !== location.origin || url.pathname.startsWith('/api/') || link.getAttribute('href').startsWith('#')) return;
  event.preventDefault();
  go(url.pathname + url.search);
}

function onNewsHere(event) {
  if (event.kind === 'cost' || event.kind === 'live') drawCost();
  if (event.kind === 'changes') drawCost();
  if (event.kind === 'gone') { replace(banner, h('div', { cls: 'banner bad' }, 'The dashboard does not answer. What you see may be old; it goes on by itself when `cdb` is back.')); drawCost(); }
  if (event.kind === 'live' && state.live === 'on') replace(banner);
  if (event.kind === 'trouble') replace(banner, h('div', { cls: 'banner' }, `The account has trouble: ${event.error}`));
  if (event.kind === 'well') replace(banner);
  if (event.kind === 'locked') locked();
  current?.view.news?.(event);
}

function locked() {
  current?.view.close?.();
  current = null;
  replace(main, h('div', { cls: 'empty' }, h('b', {}, 'These pages are locked'), 'Open the address that `cdb` printed in your terminal: it has the token in it. After a restart it is a new one.'));
}

async function start() {
  theme();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', theme);
  onNews(onNewsHere);
  try {
    await unlock();
    state.meta = await get('/api/meta');
  } catch (error) {
    const shell = document.getElementById('shell');
    replace(shell, main);
    if (error.status === 401) locked();
    else replace(main, h('div', { cls: 'empty' }, h('b', {}, 'This did not work'), error.message));
    return;
  }
  setNow(state.meta.now);
  state.spent = state.meta.spent;
  const meta = state.meta;
  nav = h('nav', { cls: 'side', 'aria-label': 'Pages' },
    h('a', { cls: 'brand', href: '/' }, h('img', { src: '/icon.svg', alt: '', width: '26', height: '26' }), h('span', {}, h('b', {}, meta.container), h('small', { title: `${meta.place} · ${meta.database}` }, meta.place))),
    h('button', { cls: 'menu-button', onclick: () => nav.classList.toggle('open') }, 'Menu'),
    PAGES.filter((page) => !page.emulator || meta.emulator).map((page) => [page.path === '/explorer' ? h('div', { cls: 'sep' }) : null, h('a', { cls: 'item', href: page.path }, picture(page.icon), page.title)]),
    foot);
  drawFoot();
  const shell = document.getElementById('shell');
  replace(shell, nav, h('div', { cls: 'content' }, banner, main, cost));
  shell.classList.add('ready');
  drawCost();
  addEventListener('popstate', show);
  document.addEventListener('click', onClick);
  document.addEventListener('keydown', onKey);
  if (meta.missing && location.pathname === '/') { go('/explorer', { replaced: true }); toast('There are no workflows of duroxide here: this is the data explorer.'); } else show();
  watch();
}
start();
