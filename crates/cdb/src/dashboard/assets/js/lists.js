// Queues, runtimes and dead letters.

import { get } from './net.js';
import { ago, clock, count, empty, h, header, idLink, json, panel, plural, replace, setNow, span, table } from './ui.js';
import { dropLetters, requeueLetters } from './actions.js';

// A page that is one answer, asked again when something of it changed.
function page(path, title, text, kinds, draw, slowest = 3000) {
  return {
    open(context) {
      const body = h('div', { cls: 'stack' }, h('p', { cls: 'quiet' }, 'Loading…'));
      const node = h('div', {}, header(title, text), body);
      let timer = null;
      let closed = false;
      async function load() {
        timer = null;
        try {
          const data = await get(path);
          setNow(data.now);
          if (!closed) replace(body, draw(data, { ...context, load }));
        } catch (error) {
          if (!closed) replace(body, h('div', { cls: 'panel' }, empty('This cannot be shown', error.message)));
        }
      }
      load();
      return {
        node,
        news(event) {
          if (event.kind === 'reset') load();
          if (event.kind === 'changes' && !timer && (!kinds || event.kinds.some((kind) => kinds.includes(kind)))) timer = setTimeout(load, slowest);
        },
        close() { closed = true; clearTimeout(timer); },
      };
    },
  };
}

export const queues = page('/api/queues', 'Queues', 'What waits: messages for workflows, activities for workers, timers, and what could not be delivered.', ['orch_queue', 'worker_queue', 'outbox_intent', 'dead_letter', 'instance'], (data) => {
  if (!data.queues.length) return h('div', { cls: 'panel' }, empty('Nothing waits', 'Every queue is empty.'));
  const most = Math.max(1, ...data.queues.map((pile) => pile.ready + pile.locked + pile.later));
  const bar = (pile) => h('meter', { min: 0, max: most, value: pile.ready + pile.locked + pile.later, 'aria-label': `${pile.ready + pile.locked + pile.later} of them` });
  return [
    data.more ? h('p', { cls: 'quiet' }, 'There is more than is counted here: the first 1,000 are shown.') : null,
    h('div', { cls: 'panel scroll' }, table([
      ['Queue', (pile) => pile.queue], ['What', (pile) => [h('b', {}, pile.what || '—'), pile.overdue ? h('div', { cls: 'sub' }, h('span', { cls: 'status pending' }, `${plural(pile.overdue, 'item')} that nobody takes`)) : null], 'id'],
      ['Ready', (pile) => count(pile.ready), 'num'], ['Held', (pile) => count(pile.locked), 'num'], ['Later', (pile) => count(pile.later), 'num'], ['Oldest ready', (pile) => pile.ready ? span(pile.oldestMs) : '', 'num'], ['', bar],
    ], data.queues, { caption: 'Queues' })),
    data.queues.filter((pile) => pile.examples?.length && pile.queue !== 'dead letters').map((pile) => h('details', { cls: 'panel' }, h('summary', { cls: 'pad' }, `${pile.what || pile.queue}: the longest waiting`), h('div', { cls: 'scroll' }, table([
      ['Instance', (row) => idLink(row.instance), 'id'], ['What', (row) => row.what], ['Since', (row) => ago(row.since)], ['Attempts', (row) => count(row.attempts), 'num'], ['', (row) => row.locked ? h('span', { cls: 'tag' }, 'held') : null], ['', (row) => h('a', { href: `/i/${encodeURIComponent(row.instance)}?tab=why` }, 'Why?')],
    ], pile.examples, { key: (row) => row.instance, caption: pile.what })))),
  ];
});

export const runtimes = page('/api/runtimes', 'Runtimes', 'Who works on this container: the members of the fleet, and what each process holds now.', null, (data) => [
  data.remarks.length ? h('div', { cls: 'panel pad' }, data.remarks.map((remark) => h('p', {}, remark))) : null,
  panel('Fleet', {
    note: 'processes that share the container among themselves', body: data.members.length ? h('div', { cls: 'scroll' }, table([
      ['Member', (member) => [h('b', {}, member.owner), h('div', { cls: 'sub' }, member.host ? `${member.host} (${member.process})` : '')], 'id'],
      ['State', (member) => h('span', { cls: `status ${{ alive: 'completed', silent: 'pending', ended: 'failed' }[member.state]}` }, member.state === 'ended' ? 'lease ended' : member.state)],
      ['Slots', (member) => [count(member.slots), h('div', { cls: 'sub' }, member.slotRanges)], 'num'],
      ['Load', (member) => [member.capacity ? h('meter', { min: 0, max: member.capacity, value: member.running, 'aria-label': `${member.running} of ${member.capacity}` }) : null, h('div', { cls: 'sub' }, member.capacity ? `${member.running} of ${member.capacity}` : count(member.running))], 'num'],
      ['Backlog', (member) => [count(member.backlog), member.backlog ? h('div', { cls: 'sub' }, `oldest ${span(member.oldestMs)}`) : null], 'num'],
      ['Last heard of', (member) => ago(member.beatAt)], ['Up since', (member) => ago(member.joinedAt)], ['Serves', (member) => member.serves.join(', ') || '—'], ['Build', (member) => member.build || '—'],
    ], data.members, { key: (member) => member.owner, caption: 'Members of the fleet' })) : empty('No members', 'No runtime has written that it is a member. Runtimes of versions that do not form a fleet work all the same; below is what is seen of them.'),
  }),
  panel('What is held now', {
    note: 'turns and sessions, by the owner in their lock', body: data.owners.length ? h('div', { cls: 'scroll' }, table([
      ['Owner', (owner) => h('span', { cls: 'mono' }, owner.owner), 'id'], ['Holds', (owner) => owner.holds.slice(0, 12).map((held) => h('div', {}, held.instance ? idLink(held.instance) : ['session ', h('span', { cls: 'mono' }, held.session)], h('span', { cls: 'faint' }, ` until ${clock(held.until, false)}`))), ''], ['', (owner) => count(owner.holds.length), 'num'],
    ], data.owners, { caption: 'Owners of locks' })) : empty('Nothing is held', 'No turn runs at this moment and no session has an owner. Turns take milliseconds: look at the live strip of the overview.'),
  }),
], 4000);

export const letters = page('/api/dead-letters', 'Dead letters', 'Messages that could never be delivered. They stay until somebody decides.', ['dead_letter'], (data, { meta, load }) => {
  if (!data.letters.length) return h('div', { cls: 'panel' }, empty('There are no dead letters', 'Everything that was sent has arrived.'));
  const name = (letter) => ({ from: letter.from, id: letter.id });
  const all = data.letters.map(name);
  return [
    meta.readOnly ? null : h('div', { cls: 'row' }, h('span', { cls: 'grow quiet' }, plural(data.count, 'dead letter')), h('button', { onclick: () => requeueLetters(all, load) }, 'Send all again'), h('button', { cls: 'danger', onclick: () => dropLetters(all, load) }, 'Drop all…')),
    h('div', { cls: 'panel scroll' }, table([
      ['From', (letter) => idLink(letter.from), 'id'], ['To', (letter) => idLink(letter.to), 'id'], ['What', (letter) => letter.what], ['Died', (letter) => ago(letter.diedAt)], ['Reason', (letter) => h('span', {}, letter.reason), 'error cut'],
      ['Message', (letter) => h('div', { cls: 'json' }, json(letter.message, 'message', 2))],
      ['', (letter) => meta.readOnly ? null : h('div', { cls: 'row' }, h('button', { cls: 'plain', onclick: () => requeueLetters([name(letter)], load) }, 'Send again'), h('button', { cls: 'plain', onclick: () => dropLetters([name(letter)], load) }, 'Drop…'))],
    ], data.letters, { key: (letter) => letter.from + letter.id, caption: 'Dead letters' })),
  ];
});
