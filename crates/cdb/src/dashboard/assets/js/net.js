// Requests and live events. Everything that is learned of cost is kept here for the footer.

export const state = { meta: null, spent: 0, last: null, live: 'paused' };
const listeners = new Set();

export function onNews(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
function tell(event) {
  for (const listener of [...listeners]) listener(event);
}

export class Failed extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(method, path, body) {
  const began = performance.now();
  const init = { method, headers: {}, credentials: 'same-origin' };
  if (method !== 'GET') {
    init.headers = { 'content-type': 'application/json', 'x-cdb': '1' };
    init.body = JSON.stringify(body ?? {});
  }
  let answer;
  try {
    answer = await fetch(path, init);
  } catch {
    tell({ kind: 'gone' });
    throw new Failed(0, 'The dashboard does not answer: is `cdb` still running?');
  }
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    if (answer.status === 401) tell({ kind: 'locked' });
    throw new Failed(answer.status, value.error ?? `It answered ${answer.status}.`);
  }
  if (value.cost) {
    state.spent = value.cost.spent ?? state.spent;
    state.last = { ...value.cost, ms: performance.now() - began };
    tell({ kind: 'cost' });
  }
  return value;
}
export const get = (path) => ask('GET', path);
export const post = (path, body) => ask('POST', path, body);
export const put = (path, body) => ask('PUT', path, body);
export const del = (path, body) => ask('DELETE', path, body);

// The token is in the part of the address that browsers keep to themselves. It is used once and taken away.
export async function unlock() {
  const match = /^#k=([\w.~-]+)$/.exec(location.hash);
  if (!match) return;
  history.replaceState(null, '', location.pathname + location.search);
  await post('/api/session', { token: match[1] });
}

// One stream for each tab that is looked at, none for those that are not.
let source = null;
let lost = false;
export function watch() {
  const should = !document.hidden;
  if (!should && source) {
    source.close();
    source = null;
    state.live = 'paused';
    tell({ kind: 'live' });
  }
  if (!should || source) return;
  source = new EventSource('/api/events');
  const stream = source;
  stream.addEventListener('hello', (event) => {
    const value = JSON.parse(event.data);
    state.spent = value.spent;
    state.live = 'on';
    tell({ kind: 'live' });
    if (lost) tell({ kind: 'reset' });
    lost = false;
  });
  for (const kind of ['changes', 'reset', 'quiet', 'trouble', 'well']) {
    stream.addEventListener(kind, (event) => {
      const value = JSON.parse(event.data);
      if (value.spent !== undefined) state.spent = value.spent;
      tell({ kind, ...value });
    });
  }
  stream.onerror = () => {
    lost = true;
    state.live = 'off';
    tell({ kind: 'gone' });
    // A server that answers with an error ends the stream for good: try again in a while.
    if (stream.readyState === EventSource.CLOSED && source === stream) {
      source = null;
      setTimeout(watch, 2000);
    }
  };
}
document.addEventListener('visibilitychange', () => {
  const was = source;
  watch();
  if (!was && source) tell({ kind: 'reset' });
});
