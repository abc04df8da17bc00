// Scenes in a real browser. Each has programs of its own, and ends with: no dialog, no console error, no CSP report.

import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import assert from 'node:assert/strict';
import { browser } from './browser.mjs';
import { TOKEN, dashboard, demo, emulator, folder, once, put, workflow } from './stage.mjs';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const context = await browser();
const SLOW = 45000;
context.setDefaultTimeout(SLOW);

// A tab that remembers everything that should not happen.
async function tab(url, { expected = [] } = {}) {
  const page = await context.newPage();
  page.trouble = [];
  const note = (text) => { if (!expected.some((pattern) => pattern.test(text))) page.trouble.push(text); };
  page.on('dialog', (dialog) => { note(`dialog ${dialog.message()}`); dialog.dismiss(); });
  page.on('pageerror', (error) => note(`error ${error.message}`));
  page.on('console', (message) => { if (['error', 'warning'].includes(message.type())) note(`console ${message.text()}`); });
  await page.addInitScript(() => {
    globalThis.reports = [];
    globalThis.longest = 0;
    document.addEventListener('securitypolicyviolation', (event) => globalThis.reports.push(event.violatedDirective + ' ' + event.blockedURI));
    new PerformanceObserver((list) => { for (const entry of list.getEntries()) globalThis.longest = Math.max(globalThis.longest, entry.duration); }).observe({ entryTypes: ['longtask'] });
  });
  await page.goto(url);
  return page;
}
async function end(page) {
  assert.deepEqual(await page.evaluate(() => globalThis.reports ?? []), [], 'no CSP reports');
  assert.deepEqual(page.trouble, []);
  await page.close();
}
const at = (url, path) => new URL(path, url).href;
const ready = (page) => page.waitForSelector('nav.side');

// A container that the provider has made, with workflows of the demo in it.
async function account() {
  const server = await emulator();
  await once(['demo', '--pace', '20', '--endpoint', server.endpoint, '--json']);
  return server;
}

const scenes = {
  async 'the token opens the pages once and leaves the address'() {
    const server = await account();
    const pages = await dashboard(['--endpoint', server.endpoint]);
    const locked = await tab(at(pages.found, '/instances'), { expected: [/401/] });
    await locked.waitForSelector('text=These pages are locked');
    await end(locked);
    const page = await tab(pages.found);
    await ready(page);
    assert.equal(new URL(page.url()).hash, '');
    assert.ok(!(await page.content()).includes(TOKEN) && !(await page.content()).includes('C2y6yDjf5'), 'neither token nor key in the page');
    assert.ok(await page.evaluate(() => document.cookie === ''), 'scripts cannot read the cookie');
    await end(page);
    await pages.stop();
    await server.stop();
  },
  async 'the demo runs live, is stopped and goes on'() {
    const data = folder();
    const first = await demo(['--data', data, '--pace', '900']);
    let page = await tab(at(first.found, '/instances') + new URL(first.found).hash, { expected: [/Failed to load|ERR_|401|net::/] });
    await ready(page);
    await page.waitForSelector('tbody tr:has-text("bakery-1-order") .status.running');
    // Without another request of the page: the row changes where it is.
    await page.waitForSelector('tbody tr:has-text("bakery-1-deliver") .status.completed');
    await first.stop();
    await page.waitForSelector('.banner.bad');
    await page.close();
    const second = await demo(['--data', data, '--pace', '100']);
    page = await tab(second.found);
    await ready(page);
    await page.goto(at(second.found, '/i/bakery-1-order'));
    await page.waitForSelector('.status.completed:has-text("Completed")');
    assert.ok(await page.locator('svg.chart rect.b-failed').count() > 0, 'the failed attempt is in the picture');
    await end(page);
    await second.stop();
  },
  async 'texts of others are shown as texts'() {
    const server = await account();
    const ids = ['<img src=x onerror=alert(1)>', 'esc\u001b[2Jend', 'rtl\u202egnp.exe', 'a/b?c#d e%2F', 'x'.repeat(240), '"><script>alert(2)</script>', "o'hara; DROP"];
    for (const id of ids) await workflow(server.endpoint, id, { status: 'Failed', output: '<svg onload=alert(3)>\u001b[31m', input: '{"a":"</script><script>alert(4)</script>"}', name: '<b>bold</b>' });
    const pages = await dashboard(['--endpoint', server.endpoint]);
    const page = await tab(pages.found);
    await ready(page);
    await page.goto(at(pages.found, '/instances?status=failed'));
    await page.waitForSelector('tbody tr:nth-child(7)');
    const text = await page.locator('tbody').innerText();
    assert.ok(text.includes('<img src=x onerror=alert(1)>') && text.includes('esc␛[2Jend') && text.includes('rtl⟨U+202E⟩gnp.exe'), text);
    assert.equal(await page.locator('main img, main script, main svg[onload], tbody b').count(), 0);
    for (const id of ids) {
      await page.goto(at(pages.found, '/instances?status=failed'));
      await page.locator('tbody tr').filter({ has: page.locator(`a[href="/i/${encodeURIComponent(id).replace(/'/g, "'")}"]`) }).locator('td.id a').first().click();
      await page.waitForSelector('h1');
      await page.waitForSelector('[role=tab]');
      assert.equal(new URL(page.url()).pathname, new URL('/i/' + encodeURIComponent(id), pages.found).pathname);
      for (const name of ['history', 'why', 'documents']) await page.goto(page.url().split('?')[0] + '?tab=' + name).then(() => page.waitForSelector('[role=tabpanel] .panel'));
    }
    await page.goto(at(pages.found, '/'));
    await page.waitForSelector('text=<svg onload=alert(3)>');
    await end(page);
    await pages.stop();
    await server.stop();
  },
  async 'a payload of three megabytes does not hold up the page'() {
    const server = await account();
    await workflow(server.endpoint, 'big', { input: 'x'.repeat(3_000_000), output: 'small' });
    const pages = await dashboard(['--endpoint', server.endpoint]);
    const page = await tab(pages.found);
    await ready(page);
    await page.goto(at(pages.found, '/i/big'));
    await page.waitForSelector('button:has-text("Show all 2.9 MB")');
    await page.waitForSelector('svg.chart');
    const longest = await page.evaluate(() => globalThis.longest);
    await page.click('button:has-text("Show all 2.9 MB")');
    await page.waitForSelector('dialog pre.payload');
    // Busy machines make everything longer; laying out megabytes would take many times this.
    assert.ok(longest < 1000, `the longest task took ${longest} ms`);
    console.log(`    longest task ${Math.round(longest)} ms`);
    await end(page);
    await pages.stop();
    await server.stop();
  },
  async 'many are cancelled after they were counted and the count was typed'() {
    const server = await account();
    for (let i = 0; i < 5; i++) await workflow(server.endpoint, `wait-${i}`, { open: true, name: 'wait' });
    const pages = await dashboard(['--endpoint', server.endpoint]);
    const page = await tab(pages.found);
    await ready(page);
    await page.goto(at(pages.found, '/instances?status=running&prefix=wait-'));
    await page.waitForSelector('tbody tr:nth-child(5)');
    for (let i = 0; i < 3; i++) await page.locator('tbody input[type=checkbox]').nth(i).check();
    await page.click('.selection button:has-text("Cancel…")');
    await page.waitForSelector('dialog >> text=3 running instances will be asked to stop.');
    const button = page.locator('dialog button[type=submit]');
    assert.ok(await button.isDisabled());
    await page.fill('dialog input[aria-label="Type to confirm"]', 'cancel 2');
    assert.ok(await button.isDisabled(), 'another count does not do');
    await page.fill('dialog input[aria-label="Type to confirm"]', 'cancel 3');
    await button.click();
    await page.waitForSelector('.toast:has-text("3 instances asked to stop.")');
    const why = await once(['why', 'wait-4', '--endpoint', server.endpoint]);
    assert.ok(/cancel request/.test((await once(['why', 'wait-0', '--endpoint', server.endpoint])).text) || /cancel request/.test(why.text));
    await end(page);
    await pages.stop();
    await server.stop();
  },
  async 'Back keeps filters, keys move, and the address is the state'() {
    const server = await account();
    const pages = await dashboard(['--endpoint', server.endpoint]);
    const page = await tab(pages.found);
    await ready(page);
    await page.keyboard.press('g');
    await page.keyboard.press('i');
    await page.waitForSelector('tbody tr');
    await page.click('button.chip:has-text("Completed")');
    await page.keyboard.press('/');
    await page.keyboard.type('bakery-1-s');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 2);
    assert.equal(new URL(page.url()).search, '?status=completed&prefix=bakery-1-s');
    await page.keyboard.press('Escape');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await page.waitForSelector('[role=tab]');
    await page.goBack();
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 2);
    assert.equal(await page.inputValue('[data-main-field]'), 'bakery-1-s');
    assert.equal(await page.getAttribute('button.chip:has-text("Completed")', 'aria-pressed'), 'true');
    await page.reload();
    await page.waitForFunction(() => document.querySelectorAll('tbody tr').length === 2);
    await page.keyboard.press('u');
    await page.keyboard.press('t');
    assert.equal(await page.getAttribute('html', 'data-theme'), 'dark');
    await page.keyboard.press('t');
    await page.keyboard.press('u');
    await page.keyboard.press('?');
    await page.waitForSelector('dialog:has-text("next and previous row")');
    await end(page);
    await pages.stop();
    await server.stop();
  },
  async 'two tabs share one look, and none looks when nobody does'() {
    const server = await account();
    const pages = await dashboard(['--endpoint', server.endpoint]);
    const looks = async () => (await (await fetch(new URL('ledger', server.management))).json()).lines.filter((line) => line.operation === 'changeFeed').reduce((sum, line) => sum + line.requests, 0);
    const one = await tab(pages.found);
    const two = await tab(pages.found);
    await ready(one);
    await ready(two);
    const before = await looks();
    await one.waitForTimeout(6000);
    const during = await looks() - before;
    assert.ok(during >= 1 && during <= 10, `${during} looks in 6 s`);
    await end(one);
    await end(two);
    // The server notices that a tab has gone when it next tells it something.
    await new Promise((done) => setTimeout(done, 3000));
    const after = await looks();
    await new Promise((done) => setTimeout(done, 5000));
    assert.equal(await looks(), after, 'nobody looks');
    await pages.stop();
    await server.stop();
  },
  async 'a server that went away and came back is found again'() {
    const server = await account();
    let pages = await dashboard(['--endpoint', server.endpoint]);
    const port = new URL(pages.found).port;
    const page = await tab(pages.found, { expected: [/ERR_|Failed to load|net::/] });
    await ready(page);
    await page.goto(at(pages.found, '/instances'));
    await page.waitForSelector('tbody tr');
    await pages.stop();
    await page.waitForSelector('.banner.bad');
    pages = await dashboard(['--endpoint', server.endpoint], port);
    await page.waitForSelector('.banner.bad', { state: 'detached' });
    await workflow(server.endpoint, 'late', {});
    await page.waitForSelector('tbody tr:has-text("late")');
    await end(page);
    await pages.stop();
    await server.stop();
  },
  async 'a hostile page on another port gets nothing'() {
    const server = await account();
    const pages = await dashboard(['--endpoint', server.endpoint]);
    const own = await tab(pages.found);
    await ready(own);
    const evil = createServer((_, answer) => answer.setHeader('content-type', 'text/html').end('<!doctype html><title>evil</title>')).listen(0, '127.0.0.1');
    await new Promise((done) => evil.once('listening', done));
    for (const host of ['127.0.0.1', 'localhost']) {
      const page = await tab(`http://${host}:${evil.address().port}/`, { expected: [/./] });
      const got = await page.evaluate(async (base) => {
        const attempts = {
          read: () => fetch(base + 'api/instances', { credentials: 'include' }).then((a) => a.text()),
          'opaque read': () => fetch(base + 'api/instances', { credentials: 'include', mode: 'no-cors' }).then((a) => a.type === 'opaque' ? Promise.reject(new Error('opaque')) : a.text()),
          'simple post': () => fetch(base + 'api/act/delete', { method: 'POST', credentials: 'include', body: '{"ids":["bakery-1-order"],"confirm":"delete 1"}' }).then((a) => a.text()),
          'json post': () => fetch(base + 'api/act/delete', { method: 'POST', credentials: 'include', headers: { 'content-type': 'application/json', 'x-cdb': '1' }, body: '{"ids":["bakery-1-order"],"confirm":"delete 1"}' }).then((a) => a.text()),
          'blind post': () => fetch(base + 'api/act/delete', { method: 'POST', mode: 'no-cors', credentials: 'include', headers: { 'content-type': 'text/plain' }, body: '{"ids":["bakery-1-order"],"confirm":"delete 1"}' }).then(() => Promise.reject(new Error('opaque'))),
          beacon: async () => { navigator.sendBeacon(base + 'api/act/delete', '{"ids":["bakery-1-order"],"confirm":"delete 1"}'); throw new Error('no answer'); },
          form: () => new Promise((done, failed) => { const form = document.createElement('form'); form.method = 'post'; form.action = base + 'api/act/delete'; form.enctype = 'text/plain'; form.target = 'sink'; const input = document.createElement('input'); input.name = '{"ids":["bakery-1-order"],"confirm":"delete 1","x":"'; input.value = '"}'; form.append(input); const frame = document.createElement('iframe'); frame.name = 'sink'; document.body.append(frame, form); frame.onload = () => { try { done(frame.contentDocument.body.innerText); } catch { failed(new Error('blocked')); } }; form.submit(); setTimeout(() => failed(new Error('nothing')), 3000); }),
          events: () => new Promise((done, failed) => { const source = new EventSource(base + 'api/events', { withCredentials: true }); source.addEventListener('hello', () => done('hello')); source.onerror = () => { source.close(); failed(new Error('refused')); }; }),
          socket: () => new Promise((done, failed) => { const socket = new WebSocket(base.replace('http', 'ws') + 'api/events'); socket.onopen = () => done('open'); socket.onerror = () => failed(new Error('refused')); }),
          script: () => new Promise((done, failed) => { const node = document.createElement('script'); node.src = base + 'js/app.js'; node.onload = () => done('loaded'); node.onerror = () => failed(new Error('refused')); document.body.append(node); }),
          frame: () => new Promise((done, failed) => { const frame = document.createElement('iframe'); frame.src = base; frame.onload = () => { try { done(frame.contentDocument.body.innerText); } catch { failed(new Error('blocked')); } }; document.body.append(frame); setTimeout(() => failed(new Error('nothing')), 3000); }),
          opener: () => new Promise((done, failed) => { const other = open(base); setTimeout(() => { try { other.document.title ? done(other.document.title) : failed(new Error('empty')); } catch { failed(new Error('blocked')); } }, 1500); }),
        };
        const got = {};
        for (const [name, attempt] of Object.entries(attempts)) got[name] = await attempt().then((text) => `GOT ${String(text).slice(0, 80)}`, (error) => `refused: ${error.message.slice(0, 40)}`);
        return got;
      }, at(pages.found, '/'));
      assert.deepEqual(Object.values(got).filter((text) => text.startsWith('GOT') && text !== 'GOT '), [], JSON.stringify(got));
      console.log(`    from ${host}: ${Object.keys(got).join(', ')}: all refused`);
      await page.close();
    }
    const still = await once(['show', 'bakery-1-order', '--endpoint', server.endpoint]);
    assert.equal(still.code, 0, 'nothing was deleted');
    evil.close();
    await end(own);
    await pages.stop();
    await server.stop();
  },
  async 'every page passes axe and fits into 400 pixels'() {
    const server = await emulator(['--explorer', '--dashboard-port', '0']);
    await once(['demo', '--pace', '20', '--endpoint', server.endpoint, '--json']);
    await workflow(server.endpoint, 'wait-1', { open: true, name: 'wait' });
    await workflow(server.endpoint, 'bad-1', { status: 'Failed', output: 'no' });
    await put(server.endpoint, { id: 'dead:intent:3:0', instanceId: 'bad-1', type: 'dead_letter', targetInstanceId: 'wait-1', reason: 'too large', diedAt: Date.now(), document: { id: 'm', workItem: '{}' } });
    await once(['start', 'later-1', '--name', 'nobody', '--endpoint', server.endpoint]);
    for (let i = 0; i < 200 && !/#k=/.test(server.text()); i++) await new Promise((done) => setTimeout(done, 50));
    const url = /(http:\/\/127\.0\.0\.1:\d+\/#k=\S+)/.exec(server.text())[1];
    const page = await tab(url);
    await ready(page);
    for (const path of ['/', '/instances', '/instances?status=failed', '/i/wait-1', '/i/wait-1?tab=why', '/i/bakery-1-bake?tab=history', '/i/bakery-1-deliver?tab=tree', '/i/bakery-1-stock?tab=kv', '/i/bakery-1-order?tab=documents', '/queues', '/runtimes', '/dead-letters', '/care', '/explorer', '/emulator']) {
      for (const [width, scheme] of [[1280, 'light'], [1280, 'dark'], [400, 'light']]) {
        await page.setViewportSize({ width, height: 800 });
        await page.emulateMedia({ colorScheme: scheme });
        await page.goto(at(url, path));
        await page.waitForSelector('h1');
        await page.waitForFunction(() => !document.querySelector('main').innerText.includes('Loading…'));
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wide <= 0, `${path} is ${wide} too wide at ${width}`);
        // The policy of the page lets no script in that is not its own, so the checker comes by the debugger.
        await page.evaluate(AXE).catch(() => {});
        const found = await page.evaluate(async () => globalThis.axe ? (await globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] })).violations.map((violation) => `${violation.id}: ${violation.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`) : ['axe did not start']);
        assert.deepEqual(found, [], `${path} at ${width} ${scheme}`);
      }
    }
    await end(page);
    await server.stop();
  },
};

const wanted = process.argv.slice(2);
let failed = 0;
for (const [name, scene] of Object.entries(scenes)) {
  if (wanted.length && !wanted.some((word) => name.includes(word))) continue;
  const began = Date.now();
  try {
    await scene();
    console.log(`ok   ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)\n${error.stack}`);
  }
}
await context.close();
process.exit(failed ? 1 : 0);
