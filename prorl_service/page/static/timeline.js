// Slots over time: a bar a rollout, in the lane of the slot that it took, and what it did there.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { get, listen, withQuery } from "./api.js";
import { clock, hasEnded, number, rewardKind, rolloutAddress, seconds, Waiting } from "./ui.js";

const MINUTES = [1, 5, 15, 60];
const MOST = 2000;
const LANE = 12;
const MOST_LANES = 256;
const STAGES = { init: "init", running: "run", evaluating: "eval" };

// Bars of what has ended, from the seconds of its stages; those of several attempts are added up.
export function barOf(row) {
  const { init_s: init, run_s: run, eval_s: evaluation } = row.timings;
  const stop = row.ended_at;
  const parts = [["init", stop - evaluation - run - init, stop - evaluation - run], ["run", stop - evaluation - run, stop - evaluation], ["eval", stop - evaluation, stop]];
  return { id: row.rollout_id, run: row.run, state: row.state, reward: row.reward, parts: parts.filter(([, from, to]) => to > from) };
}

// Lanes by first fit: a bar takes the first lane that is free when it begins.
export function inLanes(bars) {
  const lanes = [];
  for (const bar of [...bars].sort((a, b) => a.parts[0][1] - b.parts[0][1])) {
    const from = bar.parts[0][1];
    let at = lanes.findIndex((busyUntil) => busyUntil <= from);
    if (at < 0) at = lanes.length;
    lanes[at] = bar.parts.at(-1)[2] ?? Infinity;
    bar.lane = at;
  }
  return lanes.length;
}

// Bars of what is at work: in its stage for as long as it says, in INIT right before RUN.
function openBar(row, now) {
  const began = now - (row.activity?.took_s ?? now - row.created_at);
  const stage = STAGES[row.state];
  const parts = stage === "run" ? [["init", began - row.timings.init_s, began], [stage, began, null]] : [[stage, began, null]];
  return { id: row.rollout_id, run: row.run, state: row.state, reward: null, parts: row.state in STAGES ? parts : [] };
}

// Bars of the rollouts that may have held a slot between two times, those created last first.
async function barsBetween(from, until, signal) {
  const bars = [];
  let before;
  do {
    const page = await get(withQuery("/v1/rollouts", { ended_after: from, created_before: until, before, limit: 500 }), signal);
    const now = Date.now() / 1000;
    bars.push(...page.rollouts.map((row) => (row.ended_at ? barOf(row) : openBar(row, now))));
    before = page.next;
  } while (before && bars.length < MOST);
  return { bars, isCut: Boolean(before) };
}

function usePast(minutes, until) {
  const [state, setState] = useState({});
  useEffect(() => {
    const abort = new AbortController();
    const right = until ?? Date.now() / 1000;
    setState({});
    barsBetween(right - 60 * minutes, until, abort.signal).then(setState).catch((error) => abort.signal.aborted || setState({ error }));
    return () => abort.abort();
  }, [minutes, until]);
  return state;
}

// What events tell from now on: a part a state, open until the next.
function noted(live, event) {
  const { rollout_id: id, state, at, reward = null } = event.data;
  const bar = live.get(id) ?? { id, parts: [], since: at };
  const last = bar.parts.at(-1);
  if (last && last[2] === null) last[2] = at;
  if (state in STAGES) bar.parts.push([STAGES[state], at, null]);
  Object.assign(bar, { state, reward });
  live.set(id, bar);
}

// What was known before, and what events have told since.
function joined(past, live) {
  const ended = new Set(past.filter((bar) => hasEnded(bar.state)).map((bar) => bar.id));
  const open = new Map(past.filter((bar) => !ended.has(bar.id)).map((bar) => [bar.id, bar]));
  const told = [...live.values()].filter((bar) => !ended.has(bar.id)).map((bar) => {
    const before = (open.get(bar.id)?.parts ?? []).filter(([, from]) => from < bar.since);
    open.delete(bar.id);
    return { ...bar, parts: [...before.map(([stage, from, to]) => [stage, from, to ?? bar.since]), ...bar.parts] };
  });
  return [...past.filter((bar) => ended.has(bar.id)), ...open.values(), ...told].filter((bar) => bar.parts.length > 0);
}

function useLive() {
  const [live] = useState(() => new Map());
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const abort = new AbortController();
    listen((event) => event.kind === "rollout" && noted(live, event), abort.signal);
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, []);
  return { live, now };
}

function Bar({ bar, left, scale, now }) {
  const outcome = hasEnded(bar.state) ? (bar.state === "done" ? rewardKind(bar.reward) : bar.state) : "open";
  const from = bar.parts[0][1];
  const to = bar.parts.at(-1)[2] ?? now;
  const y = bar.lane * LANE;
  const title = `${bar.id}: ${bar.state}, reward ${number(bar.reward)}\n${clock(from)}, ${seconds(to - from)}: ${bar.parts.map(([stage, a, b]) => `${stage} ${seconds((b ?? now) - a)}`).join(", ")}`;
  return html`<a href=${rolloutAddress({ rollout_id: bar.id, run: bar.run })}><g><title>${title}</title>
    ${bar.parts.map(([stage, a, b]) => html`<rect class="stage ${stage}" x=${(a - left) * scale} y=${y + 1} width=${Math.max(0.5, ((b ?? now) - a) * scale)} height=${LANE - 4} />`)}
    <rect class="mark ${outcome}" x=${(from - left) * scale} y=${y + LANE - 3} width=${Math.max(0.5, (to - from) * scale)} height="2" /></g></a>`;
}

function Axis({ left, right, scale, height }) {
  const step = (right - left) / 6;
  return Array.from({ length: 7 }, (_, at) => left + at * step).map((at) => html`
    <line x1=${(at - left) * scale} x2=${(at - left) * scale} y1="0" y2=${height} /><text x=${(at - left) * scale + 2} y=${height + 12}>${clock(at)}</text>`);
}

const WIDTH = 1200;

// Minutes of the window, and when it ends: at `until`, a Unix time, or now.
function Window({ minutes, until, now, set }) {
  const to = (time) => set({ minutes, until: time && time < now ? Math.round(time) : undefined });
  const right = until ?? now;
  const local = new Date((right - 60 * new Date(right * 1000).getTimezoneOffset()) * 1000).toISOString().slice(0, 16);
  return html`<p class="actions"><span>${MINUTES.map((one) => html`<button type="button" class=${one === minutes ? "current" : ""} onClick=${() => set({ until, minutes: one })}>${one} min</button>`)}</span>
    <span><button type="button" title="the minutes before" onClick=${() => to(right - 60 * minutes)}>earlier</button>
      <label class="soft"> until <input type="datetime-local" value=${local} onChange=${(event) => to(new Date(event.target.value).getTime() / 1000)} /></label>
      ${until && html` <button type="button" onClick=${() => to(until + 60 * minutes)}>later</button> <button type="button" onClick=${() => to()}>now</button>`}</span></p>`;
}

export function Timeline({ query, set }) {
  const minutes = Number(query.minutes ?? 5);
  const until = query.until ? Number(query.until) : undefined;
  const { bars: past, isCut, error } = usePast(minutes, until);
  const { live, now } = useLive();
  const right = until ?? now;
  const left = right - 60 * minutes;
  const bars = joined(past ?? [], live);
  const shown = bars.filter((bar) => bar.parts[0][1] < right && (bar.parts.at(-1)[2] ?? now) > left);
  const lanes = Math.min(MOST_LANES, inLanes(shown));
  const scale = WIDTH / (right - left);
  const height = Math.max(1, lanes) * LANE;
  return html`<section>
    <${Window} minutes=${minutes} until=${until} now=${now} set=${set} />
    <p><span class="soft">${shown.length} rollouts in ${lanes} slots. </span>
      <span class="key init">INIT</span><span class="key run">RUN</span><span class="key eval">EVAL</span>
      <span class="key full">reward 1</span><span class="key part">below 1</span><span class="key zero">0</span><span class="key failed">failed</span></p>
    ${past ? html`<svg class="timeline" viewBox="0 0 ${WIDTH} ${height + 16}" role="img" aria-label="Slots over time">
      <${Axis} left=${left} right=${right} scale=${scale} height=${height} />
      ${shown.filter((bar) => bar.lane < lanes).map((bar) => html`<${Bar} key=${bar.id} bar=${bar} left=${left} scale=${scale} now=${now} />`)}
    </svg>` : html`<${Waiting} error=${error} />`}
    ${isCut && html`<p class="notice">Only the ${MOST} rollouts created last are shown: choose fewer minutes.</p>`}
    <p class="soft">Drawn from events since this view was opened; what was before, from the seconds of each stage, those of several attempts added up.</p>
  </section>`;
}
