// Now: is it alive, how full is each stage, what failed and by whose fault; the last minutes and the last day.
import { html } from "./vendor/htm-preact.js";
import { useAnswer } from "./api.js";
import { Lines } from "./charts.js";
import { ago, address, count, Fact, mebibytes, Notice, number, percent, rolloutAddress, seconds, State, Table, Waiting } from "./ui.js";
import { plain } from "./text.js";

const SAMPLE_S = 10;
const STAGES = ["init", "run", "eval"];
// States of rollouts at work in a stage.
const AT_WORK = { init: "init", run: "running", eval: "evaluating" };
// Ranges of the charts in seconds, by the text of their buttons, and their names.
const RANGES = { "15 min": [900, "15 minutes"], "1 h": [3600, "hour"], "6 h": [21_600, "6 hours"], "24 h": [86_400, "24 hours"] };

const failedOf = (status) => Object.values(status.failures).reduce((sum, n) => sum + n, 0);

// Points with an empty one where the service was not running.
function withGaps({ at, load, step_s: step }, names) {
  const points = at.flatMap((time, index) => {
    const point = [time, ...names.map((name) => load[name][index])];
    return index > 0 && time - at[index - 1] > 3 * step ? [[time - step, ...names.map(() => null)], point] : [point];
  });
  return [0, ...names].map((_, column) => points.map((point) => point[column]));
}

function Charts({ history }) {
  const chart = (title, lines, format) => {
    const data = withGaps(history, Object.values(lines));
    return data.slice(1).flat().some((value) => value !== null)
      && html`<${Lines} title=${title} names=${Object.keys(lines)} data=${data} format=${format} />`;
  };
  const ofStages = (what) => Object.fromEntries(STAGES.map((stage) => [stage, `${stage}_${what}`]));
  return html`<div class="charts">
    ${chart("Rollouts a second", { ended: "ended_per_s", failed: "failed_per_s" })}
    ${chart("Tokens sampled a second", { tokens: "sampled_tokens_per_s" }, count)}
    ${chart("Rollouts at work", ofStages("running"))}
    ${chart("Rollouts that wait", ofStages("queued"))}
    ${chart("Engine calls", { "in flight": "engine_calls", "waiting there": "engine_waiting" })}
    ${chart("Engines' caches in use", { share: "cache_use" }, percent)}
    ${chart("Longest delay of the service's loop in a minute", { delay: "loop_lag_s" }, seconds)}
  </div>`;
}

function Stage({ status, stage }) {
  const { [stage]: workers = 0 } = status.workers;
  const { [stage]: running = 0 } = status.running;
  return html`<tr><th>${stage.toUpperCase()}</th>
    <td class="number">${status.queues[stage] ?? "–"}</td>
    <td><meter min="0" max=${workers || 1} value=${running} aria-label="${stage} workers"></meter> <a href=${address("rollouts", { state: AT_WORK[stage], sort: "oldest" })}>${running} of ${workers}</a></td></tr>`;
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

export function Now({ query, set, status, error }) {
  const [range, name] = RANGES[query.range] ?? RANGES["15 min"];
  const { answer: history, error: noHistory } = useAnswer(`/v1/history?since=${-range}`, SAMPLE_S);
  const failures = useAnswer("/v1/rollouts?state=failed&limit=5", 10);
  if (!status) return html`<${Waiting} error=${error} />`;
  const hits = status.sandboxes;
  return html`<section>
    <div class="facts">
      <${Fact} name="run">${status.run}<//>
      <${Fact} name="policy version">${status.policy_version}<//>
      <${Fact} name="model">${status.model ?? "no engine has answered yet"}<//>
      <${Fact} name="rollouts a second">${number(history?.load.ended_per_s.at(-1), 2)}<//>
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
    <h2>Last ${name}</h2>
    <p>${Object.keys(RANGES).map((one) => html`<button type="button" class=${RANGES[one][0] === range ? "current" : ""} onClick=${() => set({ ...query, range: one })}>${one}</button> `)}</p>
    ${!history ? html`<${Waiting} error=${noHistory} />` : history.at.length > 0 ? html`<${Charts} history=${history} />`
      : html`<p class="soft">No samples yet: the service takes one every ${SAMPLE_S} s.</p>`}
  </section>`;
}
