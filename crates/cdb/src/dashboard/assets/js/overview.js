// The first page: what runs, what waits, what needs somebody.

import { get } from './net.js';
import { ago, count, empty, h, header, idLink, panel, plural, replace, s, setNow, span, table, units } from './ui.js';
import { deleteMany, start } from './actions.js';

export function open({ meta, go }) {
  const node = h('div', { cls: 'stack' }, h('p', { cls: 'quiet' }, 'Loading…'));
  let data = null;
  let timer = null;
  let closed = false;
  let counts = null;
  let activity = null;
  // Changes of the last two minutes, seen as they came: [second, moved, ended, failed].
  const seen = new Map();

  async function load() {
    timer = null;
    try {
      data = await get('/api/overview');
      setNow(data.now);
    } catch (error) {
      if (!closed) replace(node, header('Overview'), empty('This cannot be shown', error.message));
      return;
    }
    if (!closed) draw();
  }
  // At most one look in five seconds, whatever happens.
  function later() {
    if (!timer && !closed) timer = setTimeout(load, 5000);
  }

  function tile(label, value, { href, dot, sub }) {
    const inside = [h('div', { cls: 'label' }, h('span', { cls: `dot ${dot ?? ''}` }), label), h('div', { cls: 'value' }, value), h('div', { cls: 'sub' }, sub ?? '\u00a0')];
    return href ? h('a', { cls: 'tile', href }, inside) : h('div', { cls: 'tile' }, inside);
  }
  const pulse = h('div', {});
  function drawPulse() {
    const width = 600, height = 64, seconds = 120;
    const at = Math.floor(Date.now() / 1000);
    let most = 4;
    for (const [, moved] of seen.values()) most = Math.max(most, moved);
    const bars = [];
    for (let i = 0; i < seconds; i++) {
      const [, moved, ended, failed] = seen.get(at - i) ?? [0, 0, 0, 0];
      if (!moved) continue;
      const x = width - (i + 1) * (width / seconds);
      let y = height;
      for (const [n, cls] of [[failed, 'b-failed'], [ended, 'b-done'], [moved - ended - failed, 'b-running']]) {
        const tall = (n / most) * (height - 4);
        if (n > 0) { y -= tall; bars.push(s('rect', { x, y, width: width / seconds - 1, height: tall, class: cls, rx: 1 })); }
      }
    }
    replace(pulse, h('div', { cls: 'pad' }, s('svg', { viewBox: `0 0 ${width} ${height}`, cls: 'chart', preserveAspectRatio: 'none', height: '64', role: 'img', 'aria-label': 'Instances that moved in the last two minutes, second by second' }, s('line', { x1: 0, x2: width, y1: height - .5, y2: height - .5, cls: 'grid' }), bars), h('div', { cls: 'spread faint' }, h('span', {}, '2 min ago'), h('span', { cls: 'legend' }, legend('running', 'moved'), legend('done', 'completed'), legend('failed', 'failed')), h('span', {}, 'now'))));
  }
  const legend = (cls, text) => h('span', {}, h('i', { cls }), text);
  const ticker = setInterval(() => { if (!document.hidden && seen.size) drawPulse(); }, 1000);

  function drawActivity() {
    if (!activity) return h('div', { cls: 'pad row' }, h('button', { onclick: async () => { activity = await get('/api/activity'); draw(); } }, 'Draw the last 24 hours'), h('span', { cls: 'faint' }, 'reads up to 2,000 heads, about 0.06 RU each'));
    const hours = Array.from({ length: 24 }, () => ({ Completed: 0, Running: 0, Failed: 0, Cancelled: 0 }));
    for (const [ts, word] of activity.moments) {
      const i = 23 - Math.floor((activity.now / 1000 - ts) / 3600);
      if (hours[i] && hours[i][word] !== undefined) hours[i][word] += 1;
    }
    const most = Math.max(1, ...hours.map((hour) => hour.Completed + hour.Running + hour.Failed + hour.Cancelled));
    const bars = hours.flatMap((hour, i) => {
      let y = 90;
      return [['Failed', 'b-failed'], ['Cancelled', 'b-cancelled'], ['Running', 'b-running'], ['Completed', 'b-done']].map(([word, cls]) => {
        const tall = (hour[word] / most) * 86;
        y -= tall;
        return tall ? s('rect', { x: i * 25 + 2, y, width: 20, height: tall, class: cls, rx: 2 }, s('title', {}, `${24 - i} h ago: ${hour[word]} ${word}`)) : null;
      });
    });
    return h('div', { cls: 'pad' }, s('svg', { viewBox: '0 0 600 92', cls: 'chart', height: '110', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'Instances by the hour in which they last moved' }, s('line', { x1: 0, x2: 600, y1: 90.5, y2: 90.5, cls: 'grid' }), bars), h('div', { cls: 'spread faint' }, '24 h ago', h('span', { cls: 'legend' }, legend('done', 'completed'), legend('running', 'running'), legend('failed', 'failed'), legend('left', 'cancelled')), 'now', activity.more ? `· only the latest ${count(activity.moments.length)}` : `· ${plural(activity.moments.length, 'instance')}`, `· ${units(activity.cost.units)}`));
  }

  function draw() {
    const overdue = data.queues.reduce((sum, pile) => sum + pile.overdue, 0);
    const tiles = h('div', { cls: 'tiles' },
      tile('Running', count(data.running), { href: '/instances?status=running', dot: 'run' }),
      tile('Ready', count(data.ready) + (data.moreWaiting ? '+' : ''), { href: '/queues', dot: overdue ? 'warn' : 'wait', sub: data.ready ? `oldest ${span(data.oldestMs)}` : 'nothing waits' }),
      tile('Failed in 1 h', count(data.failed) + (data.moreFailures ? '+' : ''), { href: '/instances?status=failed&since=1h', dot: data.failed ? 'bad' : 'ok' }),
      tile('Cancelled in 1 h', count(data.cancelled), { href: '/instances?status=cancelled&since=1h' }),
      tile('Dead letters', count(data.deadLetters), { href: '/dead-letters', dot: data.deadLetters ? 'bad' : 'ok' }),
      counts ? tile('All', count(counts.Running + counts.Completed + counts.Failed), { href: '/instances', sub: `${count(counts.Completed)} completed, ${count(counts.Failed)} failed` })
        : h('div', { cls: 'tile' }, h('div', { cls: 'label' }, h('span', { cls: 'dot' }), 'All instances'), h('div', {}, h('button', { onclick: countAll, title: 'Reads every entry of an index: about 0.02 RU each' }, 'Count them')), h('div', { cls: 'sub' }, 'about 0.02 RU each')));
    const attention = h('div', {});
    if (!data.groups.length && !data.stuck.length) attention.append(empty('Nothing needs you', 'No failures in the last hour, and everything that waits is being taken.'));
    if (data.stuck.length) attention.append(h('ul', { cls: 'findings pad' }, data.stuck.map((row) => h('li', {}, h('span', { cls: 'mark stuck', 'aria-hidden': 'true' }, '✘'), h('span', {}, idLink(row.instance), ': ', row.text), h('span', { cls: 'advice' }, h('a', { href: `/i/${encodeURIComponent(row.instance)}?tab=why` }, 'Why?'))))));
    if (data.groups.length) attention.append(h('div', { cls: 'scroll' }, table([
      ['Orchestration', (group) => h('a', { href: `/instances?status=failed&since=1h&name=${encodeURIComponent(group.orchestration)}` }, group.orchestration)],
      ['Error', (group) => h('span', {}, group.error || '(no message)'), 'error cut'],
      ['Failed', (group) => count(group.count), 'num'], ['Last', (group) => ago(group.last)],
      ['', (group) => meta.readOnly ? null : h('button', { cls: 'plain', onclick: () => deleteMany(group.ids, load) }, 'Delete…')],
    ], data.groups, { caption: 'Failures of the last hour by what they say' })));
    drawPulse();
    replace(node, header('Overview', `${meta.place} · ${meta.database} / ${meta.container}`, meta.readOnly ? null : h('button', { cls: 'primary', onclick: () => start({}, go) }, 'Start…')), tiles,
      h('div', { cls: 'two' }, panel('Needs attention', { note: 'failures of the last hour, and what nobody takes', body: attention }),
        h('div', { cls: 'stack' }, panel('Live', { note: 'as it happens, while you look', body: pulse }),
          panel('Waiting', { actions: h('a', { href: '/queues' }, 'All queues'), body: data.queues.length ? h('div', { cls: 'scroll' }, table([['What', (pile) => [pile.what || pile.queue, h('div', { cls: 'sub' }, pile.queue)]], ['Ready', (pile) => count(pile.ready), 'num'], ['Held', (pile) => count(pile.locked), 'num'], ['Later', (pile) => count(pile.later), 'num']], data.queues.slice(0, 6), { caption: 'What waits' })) : empty('Nothing waits', 'Every queue is empty.') }))),
      panel('The last 24 hours', { body: drawActivity() }));
  }
  async function countAll(event) {
    event.target.disabled = true;
    counts = (await get('/api/count')).counts;
    draw();
  }
  load();
  return {
    node,
    news(event) {
      if (event.kind === 'reset') load();
      if (event.kind !== 'changes') return;
      const at = Math.floor(Date.now() / 1000);
      const sum = seen.get(at) ?? [at, 0, 0, 0];
      for (const row of event.rows) { sum[1] += 1; sum[2] += row.status === 'Completed'; sum[3] += row.status === 'Failed' || row.status === 'Cancelled'; }
      seen.set(at, sum);
      for (const key of seen.keys()) if (key < at - 130) seen.delete(key);
      if (data) drawPulse();
      later();
    },
    close() { closed = true; clearTimeout(timer); clearInterval(ticker); },
  };
}
