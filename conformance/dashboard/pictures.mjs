// The pictures of the documents, taken of a demo that runs and of what else a container may hold.

import { join } from 'node:path';
import { browser } from './browser.mjs';
import { dashboard, emulator, once, workflow } from './stage.mjs';

const target = process.argv[2];
const server = await emulator();
const demo = () => once(['demo', '--pace', '150', '--endpoint', server.endpoint, '--json']);
await demo();
for (let i = 0; i < 7; i++) await workflow(server.endpoint, `refund-${1040 + i}`, { status: 'Failed', name: 'refund', output: i % 3 ? 'the card terminal is busy' : 'account 4711 is closed', at: Date.now() - i * 400_000 });
for (let i = 0; i < 4; i++) await workflow(server.endpoint, `invoice-${200 + i}`, { open: true, name: 'invoice', at: Date.now() - i * 90_000 });
await once(['start', 'order-4711', '--name', 'order', '--input', '12 rye loaves', '--endpoint', server.endpoint]);
const pages = await dashboard(['--endpoint', server.endpoint, '--management', server.management]);
const context = await browser();
const page = await context.newPage();
await page.goto(pages.found);
await page.waitForSelector('nav.side');
const base = new URL(pages.found).origin;
async function shot(name, path, { width = 1280, height = 800, scheme = 'light', before } = {}) {
  await page.setViewportSize({ width, height });
  await page.emulateMedia({ colorScheme: scheme });
  await page.goto(base + path);
  await page.waitForSelector('h1');
  await page.waitForFunction(() => !document.querySelector('main').innerText.includes('Loading…'));
  await before?.();
  await page.waitForTimeout(1200);
  await page.screenshot({ path: join(target, `${name}.png`) });
  console.log(join(target, `${name}.png`));
}
await shot('dashboard-overview', '/', { before: async () => { await demo(); await page.click('text=Draw the last 24 hours'); await page.waitForTimeout(5000); } });
await shot('dashboard-instance', '/i/bakery-1-bake', { scheme: 'dark' });
if (process.env.ALL_PICTURES) {
  for (const path of ['/instances', '/i/bakery-2-order?tab=history', '/i/bakery-1-deliver', '/i/invoice-200?tab=why', '/queues', '/runtimes', '/dead-letters', '/care', '/explorer', '/emulator']) await shot('all' + path.replace(/\W+/g, '-'), path);
  for (const path of ['/', '/instances', '/i/bakery-2-order', '/explorer']) await shot('narrow' + path.replace(/\W+/g, '-'), path, { width: 400 });
}
await context.close();
await pages.stop();
await server.stop();
process.exit(0);
