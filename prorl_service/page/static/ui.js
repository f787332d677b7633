// Parts that all views share: numbers and times as text, badges, tables, filters, errors, keys.
import { html, useLayoutEffect, useState } from "./vendor/htm-preact.js";
import { isSaved, useAnswer } from "./api.js";
import { plain } from "./text.js";

// --- values as text -----------------------------------------------------------------------------

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 100) return `${value.toFixed(1)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10_000) return String(value);
  return value < 1e6 ? `${(value / 1e3).toFixed(1)} k` : `${(value / 1e6).toFixed(1)} M`;
}

export const number = (value, digits = 3) => (value === null || value === undefined ? "–" : String(+value.toFixed(digits)));
export const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
export const mebibytes = (bytes) => `${Math.round(bytes / 2 ** 20)} MiB`;
export function ago(at) {
  if (at === null || at === undefined) return "–";
  const age = Math.max(0, Date.now() / 1000 - at);
  return `${age < 100 ? `${Math.round(age)} s` : seconds(age)} ago`;
}

export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

const ENDED = ["done", "failed", "cancelled"];
export const hasEnded = (state) => state === null || ENDED.includes(state);

export function rewardKind(reward) {
  if (reward === null || reward === undefined) return "none";
  return reward >= 1 ? "full" : reward > 0 ? "part" : "zero";
}

// --- addresses ----------------------------------------------------------------------------------

export function address(view, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") parameters.set(name, value);
  }
  const text = parameters.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

export const rolloutAddress = (row, view = "rollout", query = {}) => address(`${view}/${encodeURIComponent(row.rollout_id)}`, { run: row.run, ...query });

// --- small parts --------------------------------------------------------------------------------

export const State = ({ state, blame = null }) =>
  html`<span class="state ${state ?? "lost"}">${state ?? "did not end"}${blame ? `: ${blame}` : ""}</span>`;

export const Reward = ({ reward }) => html`<span class="reward ${rewardKind(reward)}">${number(reward)}</span>`;

const OUTCOMES = {
  open: "open", informative: "informative", all_zero: "all 0", all_one: "all 1", all_equal: "all equal", unscored: "no reward",
};
export const Outcome = ({ outcome }) => html`<span class="outcome ${outcome}">${OUTCOMES[outcome]}</span>`;

// What an unfinished rollout waits for, in words.
const WAITS_FOR = {
  worker: "a free worker", engine: "an engine (slot, cache or new weights)", model: "the model's reply", agent: "the agent's code",
  service: "the service (a scoring process, or a turn to be saved)",
};
export const waits = (activity) => (activity.waits_for === "tool" ? `tool ${activity.tool}` : WAITS_FOR[activity.waits_for]);

export const Notice = ({ text }) => (text ? html`<p class="notice">${plain(text)}</p>` : null);

export function Problem({ error }) {
  return error && html`<p class="problem" role="alert">${plain(error.message)}${error.hint && html`<br /><span class="soft">${plain(error.hint)}</span>`}</p>`;
}

// What an answer is not there for yet.
export const Waiting = ({ error }) => (error ? html`<${Problem} error=${error} />` : html`<p class="soft">loading …</p>`);

export const Fact = ({ name, children }) => html`<span class="fact"><span class="soft">${name}</span> <b>${children}</b></span>`;

export function Table({ columns, rows, empty = "none" }) {
  if (rows.length === 0) return typeof empty === "string" ? html`<p class="soft">${empty}</p>` : empty;
  return html`<div class="scroll"><table>
    <thead><tr>${columns.map(([name, , kind]) => html`<th class=${kind ?? ""}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr class=${row.isCurrent ? "current" : ""}>
      ${columns.map(([, value, kind]) => html`<td class=${kind ?? ""}>${value(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// A name without `*` is looked for anywhere in names.
export const anywhere = (text) => (text && !text.includes("*") ? `*${text}*` : text);

// --- filters ------------------------------------------------------------------------------------

// Names that rows had so far, by field: a filter suggests them.
const seen = {};
const MOST_SEEN = 500;

function see(rows, fields) {
  for (const [name] of fields) {
    const names = (seen[name] ??= new Set());
    for (const row of rows) if (row[name] && names.size < MOST_SEEN) names.add(String(row[name]));
  }
}

const RUNS = ["run", "other"];

const Suggested = ({ name, names }) => html`<datalist id="seen-${name}">${names.map((one) => html`<option value=${one}></option>`)}</datalist>`;

// A form of selects and fields, each with its name, label, choices, and what none of them is called; `set` takes the changed query, `rows` are
// what is listed. On a phone the first field is shown, and the others on demand.
export function Filters({ fields, query, set, rows = [] }) {
  const [isOpen, setOpen] = useState(false);
  const [isAsked, setAsked] = useState(false);
  const { answer } = useAnswer(isAsked && !isSaved ? "/v1/runs" : null);
  see(rows, fields.filter(([, , choices]) => !choices));
  const names = (name) => (RUNS.includes(name) ? answer?.runs ?? [] : [...(seen[name] ?? [])]);
  const change = (name) => (event) => set({ ...query, [name]: event.target.value, before: undefined });
  const isFiltered = Object.values(query).some(Boolean);
  return html`<form class="filters ${isOpen ? "open" : ""}" onSubmit=${(event) => event.preventDefault()}>
    ${fields.map(([name, label, choices, none = "any"]) => html`<label>${label}
      ${choices ? html`<select name=${name} value=${query[name] ?? ""} onChange=${change(name)}>
        <option value="">${none}</option>
        ${choices.map((one) => html`<option value=${one} selected=${query[name] === one}>${one.replaceAll("_", " ")}</option>`)}
      </select>` : html`<input name=${name} type=${name === "text" ? "search" : "text"} value=${query[name] ?? ""} onChange=${change(name)}
        placeholder=${name === "text" ? "words in prompts, replies, outputs, errors" : ""} size=${name === "text" ? 42 : 12} list="seen-${name}" autocomplete="off"
        onFocus=${() => RUNS.includes(name) && setAsked(true)} /><${Suggested} name=${name} names=${names(name)} />`}
    </label>`)}
    <button type="button" class="more-filters" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${isOpen ? "fewer filters" : "filters"}</button>
    ${isFiltered && html`<button type="button" onClick=${() => set({})}>clear</button>`}
  </form>`;
}

const START = [
  ["prorl try AGENT --task task.json --replies replies.jsonl", "runs an agent on one task, without a model"],
  ["prorl check tasks.jsonl --url URL", "checks all tasks before a training"],
  ["curl URL/v1/rollouts -H \"Authorization: Bearer $(prorl token)\" -H 'Content-Type: application/json' -d @group.json", "submits a group, as a trainer does"],
];

// A list without rows: because of its filters, or since nothing was submitted yet.
export function Nothing({ what, query, set }) {
  if (Object.values(query).some(Boolean)) {
    return html`<p class="actions soft">No ${what} meets these conditions. <button type="button" onClick=${() => set({})}>clear filters</button></p>`;
  }
  if (isSaved) return html`<p class="soft">No ${what} was saved.</p>`;
  return html`<div class="soft"><p>No ${what} is here yet. To begin:</p>
    <dl class="commands">${START.map(([command, why]) => html`<dt><code>${command.replace("URL", location.origin)}</code></dt><dd>${why}</dd>`)}</dl></div>`;
}

export const Pages = ({ query, next, set }) => html`<p class="pages">
  ${query.before && html`<button type="button" onClick=${() => set({ ...query, before: undefined })}>newest</button>`}
  ${next && html`<button type="button" onClick=${() => set({ ...query, before: next })}>older</button>`}
</p>`;

// --- keys ---------------------------------------------------------------------------------------

// `actions` by key; keys typed into fields are left alone.
export function useKeys(actions) {
  // Before the next key: what it does depends on what is shown.
  useLayoutEffect(() => {
    const onKey = (event) => {
      const isTyping = event.target.matches?.("input, select, textarea");
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
      event.preventDefault();
      actions[event.key]();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  });
}
