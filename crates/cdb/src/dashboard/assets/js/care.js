// Looking after a container: examine, mend, and whether it is made as it should be.

import { get, post } from './net.js';
import { ago, command, count, empty, h, header, idLink, json, panel, plural, replace, setNow, table, toast, units } from './ui.js';
import { repair } from './actions.js';

export function open({ meta }) {
  const body = h('div', { cls: 'stack' }, h('p', { cls: 'quiet' }, 'Loading…'));
  const node = h('div', {}, header('Care', 'Is everything that is stored consistent, and is the container made as queries want it?'), body);
  let closed = false;
  let timer = null;
  async function load() {
    clearTimeout(timer);
    try {
      const data = await get('/api/care');
      setNow(data.now);
      if (closed) return;
      draw(data);
      if (data.examination.state === 'running') timer = setTimeout(load, 700);
    } catch (error) {
      if (!closed) replace(body, h('div', { cls: 'panel' }, empty('This cannot be shown', error.message)));
    }
  }
  async function begin() {
    try { await post('/api/care/fsck', {}); load(); } catch (error) { toast(error.message, true); }
  }
  const options = meta.options ? ' ' + meta.options : '';
  function draw(data) {
    const seen = data.examination;
    const mendable = seen.defects.filter((defect) => defect.repairable).length;
    const state = {
      never: () => h('div', { cls: 'pad stack' }, h('p', { cls: 'quiet' }, 'Reads every instance once and judges histories, counters, large texts, queues, and whether anything waits for something lost. A defect counts only if a second look finds it again. It costs about 3 RU for each instance.'), h('div', { cls: 'row' }, h('button', { cls: 'primary', onclick: begin }, 'Examine everything')), command(`cdb fsck${options}`)),
      running: () => h('div', { cls: 'pad stack', 'aria-live': 'polite' }, h('p', {}, `${count(seen.done)} of ${plural(seen.all, 'partition')}, ${units(seen.units)} so far`), h('progress', { max: seen.all || 1, value: seen.done, 'aria-label': 'Progress' })),
      done: () => h('div', {}, h('div', { cls: 'pad stack' }, seen.error ? h('p', { cls: 'status failed' }, seen.error) : h('p', {}, h('span', { cls: `status ${seen.found ? 'failed' : 'fine'}` }, seen.found ? plural(seen.found, 'defect') : 'Everything is as it should be'), ' ', h('span', { cls: 'quiet' }, `${plural(seen.all, 'partition')} examined, `), ago(seen.endedAt), h('span', { cls: 'quiet' }, `, for ${units(seen.units)}`)), h('div', { cls: 'row' }, h('button', { onclick: begin }, 'Examine again'), mendable && !meta.readOnly ? h('button', { cls: 'danger', onclick: () => repair(begin) }, `Mend ${count(mendable)}…`) : null)),
        seen.found ? h('div', { cls: 'scroll' }, table([['Instance', (defect) => idLink(defect.instance), 'id'], ['', (defect) => h('span', { cls: `status ${defect.level === 'broken' ? 'failed' : 'pending'}` }, defect.level)], ['Defect', (defect) => defect.defect], ['', (defect) => defect.repairable ? h('span', { cls: 'tag' }, 'can be mended') : null]], seen.defects, { caption: 'Defects' })) : null),
    }[seen.state]();
    const check = (word, good, text) => h('li', {}, h('span', { cls: `mark ${good ? 'fine' : 'stuck'}`, 'aria-hidden': 'true' }, good ? '✔' : '✘'), h('span', {}, h('b', {}, word + ': '), text));
    replace(body, panel('Consistency', { body: state }),
      panel('The container', { note: `${meta.database} / ${meta.container}`, body: h('div', { cls: 'pad stack' }, h('ul', { cls: 'findings' },
        check('Format', data.format === data.formatWanted, data.format === null ? 'it has no stamp: no runtime of this version has opened it' : `version ${data.format}, this program writes ${data.formatWanted}`),
        check('Index', !data.indexingLacks.length, data.indexingLacks.length ? `it lacks ${data.indexingLacks.join(', ')}: queries by these read everything; the next runtime that opens it adds them` : 'every path that queries filter by has one'),
        check('Expiry', data.ttl === -1, data.ttl === -1 ? 'items expire only when they say so themselves' : `the default time to live is ${data.ttl ?? 'off'}; it should be -1`),
        check('Throughput', true, data.throughput ?? 'serverless, or shared by the database'),
        check('Physical partitions', true, `${data.partitions}: each query over everything asks all of them`)), h('details', {}, h('summary', { cls: 'faint' }, 'Indexing policy'), h('div', { cls: 'json' }, json(data.indexing)))) }),
      panel('Retention', { body: h('div', { cls: 'pad stack' }, h('p', { cls: 'quiet' }, 'A policy says how long instances stay after they have ended; without one they stay. It is kept in the container and carried out by the service and the runtimes. The other commands delete and prune once: they count first, and do it with --yes.'), command(`cdb retention show${options}`), command(`cdb retention set completed=30d failed=90d --dry-run${options}`), command(`cdb delete --status completed --before 30d${options}`), command(`cdb prune --keep-last 2${options}`), h('p', {}, h('a', { href: '/instances?status=completed' }, 'Or choose them in the list'))) }));
  }
  load();
  return { node, close() { closed = true; clearTimeout(timer); } };
}
