// What changes something: counted first, then done for who typed what was counted. Each shows the command that does the same.

import { post, state } from './net.js';
import { command, count, dialog, field, h, plural, quote, replace, toast } from './ui.js';

const line = (text) => `cdb ${text}${state.meta.options ? ' ' + state.meta.options : ''}`;
const buttons = (close, submit, word, danger) => h('div', { cls: 'end' }, h('button', { type: 'button', onclick: close }, 'Leave'), h('button', { type: 'submit', cls: danger ? 'danger' : 'primary', disabled: danger, 'data-submit': '' }, word), submit);

// A form whose command follows what is typed.
function ask(title, word, parts, shown, send, done) {
  dialog(title, ({ close, form }) => {
    const place = h('div', {});
    const draw = () => replace(place, command(line(shown())));
    form.addEventListener('input', draw);
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      const button = form.querySelector('[data-submit]');
      button.disabled = true;
      try {
        await send();
        close();
        done?.();
      } catch (error) {
        toast(error.message, true);
        button.disabled = false;
      }
    });
    draw();
    return [parts, place, buttons(close, null, word)];
  });
}

export function start({ id = '', name = '', version = '', input = '' }, go) {
  const fields = { id: h('input', { value: id, required: true, autocomplete: 'off' }), name: h('input', { value: name, required: true, autocomplete: 'off' }), version: h('input', { value: version, autocomplete: 'off' }), input: h('textarea', { cls: 'code', rows: '4', value: input }) };
  ask('Start an orchestration', 'Start', [field('Id of the new instance', fields.id), field('Orchestration', fields.name), field('Version', fields.version, 'empty: the runtime decides'), field('Input', fields.input)],
    () => `start ${quote(fields.id.value || 'ID')} --name ${quote(fields.name.value || 'NAME')}${fields.version.value ? ` --version ${quote(fields.version.value)}` : ''}${fields.input.value ? ` --input ${quote(fields.input.value.replace(/^@/, '@@'))}` : ''}`,
    () => post('/api/act/start', { id: fields.id.value, name: fields.name.value, version: fields.version.value, input: fields.input.value }),
    () => { toast('It starts when a runtime takes it.'); go(`/i/${encodeURIComponent(fields.id.value)}`); });
}

export function send(id, waitsFor, done) {
  const names = waitsFor.map((wanted) => wanted.name);
  const kind = h('select', {}, h('option', { value: 'raise' }, 'Raise an event'), h('option', { value: 'enqueue', selected: waitsFor[0]?.kind === 'queue' }, 'Put into a queue'));
  const name = h('input', { list: 'waits-for', required: true, value: names[0] ?? '', autocomplete: 'off' });
  const data = h('textarea', { cls: 'code', rows: '3' });
  ask(`Send to ${id}`, 'Send', [field('What', kind), field('Name', name, names.length ? `it waits for ${names.join(', ')}` : null), h('datalist', { id: 'waits-for' }, names.map((wanted) => h('option', { value: wanted }))), field('Data', data)],
    () => `${kind.value} ${quote(id)} ${quote(name.value || 'NAME')}${data.value ? ' ' + quote(data.value.replace(/^@/, '@@')) : ''}`,
    () => post(`/api/act/${kind.value}`, { id, event: name.value, queue: name.value, data: data.value }),
    () => { toast('It is on its way.'); done?.(); });
}

// Rehearses, shows the count, and wants it typed.
function confirm(title, { explain, path, body, shown, extra, counted, told }, done) {
  dialog(title, ({ close, form }) => {
    const place = h('div', { cls: 'stack' }, h('p', { cls: 'quiet' }, 'Counting…'));
    const typed = h('input', { autocomplete: 'off', 'aria-label': 'Type to confirm', spellcheck: 'false' });
    const button = h('button', { type: 'submit', cls: 'danger', disabled: true }, 'Do it');
    let word = null;
    const more = extra?.parts ?? [];
    const wanted = () => ({ ...body, ...(extra?.read() ?? {}) });
    const rehearse = async () => {
      word = null;
      button.disabled = true;
      try {
        const counts = await post(path, { ...wanted(), rehearse: true });
        word = counts.count > 0 ? counts.word : null;
        replace(place, h('p', { cls: 'count-line' }, counted(counts)), word ? h('label', { cls: 'field' }, h('span', {}, 'Type ', h('code', {}, word), ' to confirm'), typed) : null, command(line(shown(wanted()))));
        typed.focus();
      } catch (error) {
        replace(place, h('p', { cls: 'status failed' }, error.message));
      }
    };
    typed.addEventListener('input', () => { button.disabled = !word || typed.value !== word; });
    for (const part of more) part.addEventListener('change', rehearse);
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      if (!word || typed.value !== word) return;
      button.disabled = true;
      try {
        const answer = await post(path, { ...wanted(), confirm: word });
        close();
        toast(told(answer), Boolean(answer.failures?.length));
        done?.(answer);
      } catch (error) {
        toast(error.message, true);
        button.disabled = false;
      }
    });
    rehearse();
    return [explain ? h('p', { cls: 'quiet' }, explain) : null, more, place, h('div', { cls: 'end' }, h('button', { type: 'button', onclick: close }, 'Leave'), button)];
  });
}
const failures = (answer) => answer.failures?.length ? ` Not done: ${answer.failures.slice(0, 3).join('; ')}` : '';

export function cancelMany(ids, done) {
  const reason = h('input', { value: 'cancelled by an operator' });
  confirm(ids.length === 1 ? `Cancel ${ids[0]}` : `Cancel ${plural(ids.length, 'instance')}`, {
    explain: 'They are asked to stop; each ends with its next turn.', path: '/api/act/cancel', body: { ids }, extra: { parts: [field('Reason, for the history', reason)], read: () => ({ reason: reason.value }) },
    shown: () => ids.length === 1 ? `cancel ${quote(ids[0])} --reason ${quote(reason.value)}` : `cancel ID --reason ${quote(reason.value)}`,
    counted: (c) => [`${plural(c.count, 'running instance')} will be asked to stop.`, c.leftOut ? ` ${plural(c.leftOut, 'instance')} of those chosen ${c.leftOut === 1 ? 'has' : 'have'} ended already.` : ''],
    told: (answer) => `${plural(answer.done, 'instance')} asked to stop.${failures(answer)}`,
  }, done);
}

export function deleteMany(ids, done) {
  const force = h('input', { type: 'checkbox' });
  const label = h('label', { cls: 'check' }, force, 'Delete running ones as well');
  confirm(ids.length === 1 ? `Delete ${ids[0]}` : `Delete ${plural(ids.length, 'instance')}`, {
    explain: 'Each goes with its sub-orchestrations, histories and messages. This cannot be undone.', path: '/api/act/delete', body: { ids }, extra: { parts: [label], read: () => ({ force: force.checked }) },
    shown: (b) => `delete ${ids.slice(0, 20).map(quote).join(' ')}${ids.length > 20 ? ' …' : ''}${b.force ? ' --force' : ''} --yes`,
    counted: (c) => [`${plural(c.tally.instances, 'instance')} in ${plural(c.count, 'tree')}, with ${plural(c.tally.executions, 'execution')}, ${plural(c.tally.events, 'event')} and ${plural(c.tally.messages, 'waiting message')}, will be deleted.`, c.running.length ? ` ${plural(c.running.length, 'tree')} with something running in ${c.running.length === 1 ? 'it is' : 'them are'} left out.` : ''],
    told: (answer) => `${plural(answer.tally.instances, 'instance')} deleted.${failures(answer)}`,
  }, done);
}

export function prune(ids, done) {
  const keep = h('input', { type: 'number', min: '1', value: '1' });
  confirm(`Prune ${ids.length === 1 ? ids[0] : plural(ids.length, 'instance')}`, {
    explain: 'Old executions go; the current one always stays.', path: '/api/act/prune', body: { ids }, extra: { parts: [field('Executions that stay', keep)], read: () => ({ keepLast: Number(keep.value) || 1 }) },
    shown: (b) => `prune ${ids.slice(0, 20).map(quote).join(' ')} --keep-last ${b.keepLast} --yes`,
    counted: (c) => `${plural(c.count, 'execution')} with ${plural(c.events, 'event')} of ${plural(c.instances, 'instance')} will be deleted.`,
    told: (answer) => `${plural(answer.count, 'execution')} deleted.`,
  }, done);
}

export function dropLetters(letters, done) {
  confirm(`Drop ${plural(letters.length, 'dead letter')}`, {
    explain: 'Their messages are lost.', path: '/api/act/dead-letters', body: { letters, what: 'drop' },
    shown: () => `dead-letters drop ${letters.slice(0, 10).map((letter) => quote(letter.id)).join(' ')}`,
    counted: (c) => `${plural(c.count, 'dead letter')} will be dropped.`, told: (answer) => `${plural(answer.done, 'dead letter')} dropped.${failures(answer)}`,
  }, done);
}

export async function requeueLetters(letters, done) {
  try {
    const answer = await post('/api/act/dead-letters', { letters, what: 'requeue' });
    toast(`${plural(answer.done, 'dead letter')} sent again.${failures(answer)}`, Boolean(answer.failures.length));
    done?.();
  } catch (error) {
    toast(error.message, true);
  }
}

export function repair(done) {
  confirm('Mend what can be mended', {
    explain: 'Lost work is queued again, litter is removed, histories are counted anew.', path: '/api/act/repair', body: {}, shown: () => 'fsck --repair',
    counted: (c) => `${plural(c.count, 'defect')} can be mended.`, told: (answer) => `${count(answer.mended)} of ${plural(answer.of, 'defect')} mended.`,
  }, done);
}
