// Now: is it alive, how full is each stage, what failed and by whose fault; the last 15 minutes.
import { html } from "./vendor/htm-preact.js";
import { useAnswer } from "./api.js";
import { Lines } from "./charts.js";
import { ago, address, count, Fact, mebibytes, Notice, number, percent, rolloutAddress, seconds, State, Table, Waiting } from "./ui.js";
import { plain } from "./text.js";

const MINUTES = 15;
const RATE_S = 30;
const STAGES = ["init", "run", "eval"];

// Samples of /v1/status, kept while the page is open, whichever view is shown.
const history = [];

export function remember(status) {
  const at = Date.now() / 1000;
  history.push({ at, status });
  while (history[0].at < at - 60 * MINUTES) history.shift();
}

const endedOf = (status) => Object.values(status.ended).reduce((sum, n) => sum + n, 0);
const failedOf = (status) => Object.values(status.failures).reduce((sum, n) => sum + n, 0);
const inFlight = (status) => status.backends.reduce((sum, one) => sum + one.in_flight, 0);

// Per second, over the last `RATE_S` seconds before sample `index`; null after a restart.
function rate(index, value) {
  const last = history[index];
  if (!last) return null;
  const first = history.find((one) => one.at >= last.at - RATE_S);
  const change = value(last.status) - value(first.status);
  return first === last || change < 0 ? null : change / (last.at - first.at);
}

function Charts() {
  const times = history.map((one) => one.at);
  const each = (value) => history.map((one) => value(one.status) ?? null);
  const rates = (value) => history.map((_, index) => rate(index, value));
  return html`<div class="charts">
    <${Lines} title="Rollouts a second" names=${["ended", "failed"]} data=${[times, rates(endedOf), rates(failedOf)]} />
    <${Lines} title="Rollouts at work" names=${STAGES} data=${[times, ...STAGES.map((stage) => each((one) => one.running[stage]))]} />
    <${Lines} title="Rollouts that wait" names=${STAGES} data=${[times, ...STAGES.map((stage) => each((one) => one.queues[stage]))]} />
    <${Lines} title="Engine calls in flight" names=${["calls"]} data=${[times, each(inFlight)]} />
    <${Lines} title="Longest delay of the service's loop in a minute" names=${["delay"]} data=${[times, each((one) => one.loop_lag_s)]} format=${seconds} />
  </div>`;
}

function Stage({ status, stage }) {
  const { [stage]: workers = 0 } = status.workers;
  const { [stage]: running = 0 } = status.running;
  return html`<tr><th>${stage.toUpperCase()}</th>
    <td class="number">${status.queues[stage] ?? "–"}</td>
    <td><meter min="0" max=${workers || 1} value=${running} aria-label="${stage} workers"></meter> ${running} of ${workers}</td></tr>`;
}

const OTHER_QUEUES = (status) => Object.entries(status.queues).filter(([name]) => !STAGES.includes(name));

// Means over all calls since the engine's start.
function meanTimes(gauges) {
  if (!gauges?.times || !gauges.timed_calls) return "–";
  const { queue_s, prefill_s, decode_s } = gauges.times;
  return [queue_s, prefill_s, decode_s].map((sum) => seconds(sum / gauges.timed_calls)).join(", ");
}

const ENGINES = [
  ["engine", (one) => html`<code>${plain(one.url)}</code>`],
  ["state", (one) => html`<span class="state ${one.state}">${one.state}</span> ${plain(one.reason)}`],
  ["version", (one) => one.policy_version, "number"],
  ["calls", (one) => `${one.in_flight}${one.max_calls ? ` of ${one.max_calls}` : ""}`, "number"],
  ["rollouts", (one) => one.sessions, "number"],
  ["prompt cached", (one) => (one.prompt_tokens ? percent(one.cached_tokens / one.prompt_tokens) : "–"), "number"],
  ["sampled", (one) => count(one.sampled_tokens), "number"],
  ["cache in use", (one) => (one.gauges?.kv_tokens ? `${percent(one.gauges.kv_use)} of ${count(one.gauges.kv_tokens)}` : "–"), "number"],
  ["waiting there", (one) => one.gauges?.waiting ?? "–", "number"],
  ["preempted", (one) => one.gauges?.preemptions ?? "–", "number"],
  ["a call's queue, prefill, decode", (one) => meanTimes(one.gauges), "number"],
];

const SERVICES = [
  ["service", (one) => html`<code>${plain(one.url)}</code>`],
  ["takes rollouts", (one) => (one.takes_rollouts ? "yes" : "no")],
  ["rollouts", (one) => `${one.load} of ${one.slots}`, "number"],
  ["problem", (one) => plain(one.problem), "wide"],
];

const FAILURES = [
  ["rollout", (row) => html`<a href=${rolloutAddress(row)}>${row.rollout_id}</a>`],
  ["blame", (row) => row.error?.blame],
  ["ended", (row) => ago(row.ended_at)],
  ["what happened", (row) => plain(row.error?.message ?? ""), "wide"],
];

export function Now({ status, error }) {
  const failures = useAnswer("/v1/rollouts?state=failed&limit=5", 10);
  if (!status) return html`<${Waiting} error=${error} />`;
  const hits = status.sandboxes;
  return html`<section>
    <div class="facts">
      <${Fact} name="run">${status.run}<//>
      <${Fact} name="policy version">${status.policy_version}<//>
      <${Fact} name="model">${status.model ?? "no engine has answered yet"}<//>
      <${Fact} name="rollouts a second">${number(rate(history.length - 1, endedOf), 2)}<//>
      <${Fact} name="done">${status.ended.done ?? 0}<//>
      <${Fact} name="failed">${status.ended.failed ?? 0}<//>
      <${Fact} name="cancelled">${status.ended.cancelled ?? 0}<//>
      <${Fact} name="started">${ago(status.started_at)}<//>
    </div>
    <div class="columns">
      <div><h2>Stages</h2><table><thead><tr><th></th><th class="number">waiting</th><th>at work</th></tr></thead>
        <tbody>${STAGES.map((stage) => html`<${Stage} status=${status} stage=${stage} />`)}
        ${OTHER_QUEUES(status).map(([name, n]) => html`<tr><th>${name}</th><td class="number">${n}</td><td></td></tr>`)}</tbody></table></div>
      <div><h2>Failures by blame</h2>${failedOf(status) === 0 ? html`<p class="soft">none since the start</p>` : html`<ul class="plain">
        ${Object.entries(status.failures).map(([blame, n]) => html`<li><a href=${address("rollouts", { state: "failed", blame })}>${blame}</a> <b>${n}</b></li>`)}</ul>`}</div>
      <div><h2>Sandboxes</h2><div class="facts"><${Fact} name="kind">${status.sandbox}<//>
        ${hits && html`<${Fact} name="held">${hits.running}<//><${Fact} name="warm">${hits.warm}<//>
          <${Fact} name="taken warm">${percent(hits.hits + hits.misses ? hits.hits / (hits.hits + hits.misses) : null)}<//>`}</div>
        <h2>Shelf</h2><p>${status.shelf ? `${mebibytes(status.shelf.bytes)} of ${mebibytes(status.shelf.limit_bytes)}` : "off (--shelf-mb 0)"}</p>
        <${Notice} text=${status.shelf?.failure} /></div>
    </div>
    <h2>Engines</h2>${status.cache && html`<div class="facts">
      <${Fact} name="expected in their cache">${count(status.cache.expected_tokens)} of ${count(status.cache.budget_tokens)} tokens<//>
      <${Fact} name="rollouts admitted">${status.cache.admitted}<//>
      <${Fact} name="held before a turn">${status.cache.held}<//>
      <${Fact} name="waiting to begin">${status.cache.waiting}<//></div>`}
    <${Table} columns=${ENGINES} rows=${status.backends} empty="none: add one with --backend" />
    ${status.services.length > 0 && html`<h2>Services behind this front</h2><${Table} columns=${SERVICES} rows=${status.services} />`}
    <h2>Newest failures</h2>
    ${failures.answer ? html`<${Table} columns=${FAILURES} rows=${failures.answer.rollouts} />` : html`<${Waiting} error=${failures.error} />`}
    <h2>Last ${MINUTES} minutes</h2>
    <p class="soft">Sampled while this page is open.</p><${Charts} />
  </section>`;
}
