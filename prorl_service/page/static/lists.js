// Groups and rollouts, the newest first: filtered, paged, with a histogram of rewards.
import { html } from "./vendor/htm-preact.js";
import { get, isSaved, save, useAnswer, withQuery } from "./api.js";
import { Histogram } from "./charts.js";
import { address, ago, anywhere, count, Filters, hasEnded, Nothing, Notice, number, Outcome, Pages, Problem, Reward, rewardKind, rolloutAddress, seconds, State, Table, Waiting, waits } from "./ui.js";
import { plain } from "./text.js";

const LIMIT = 100;
const MOST_FOUND = 25;
const EVERY_S = 5;
const STATES = ["queued", "init", "ready", "running", "evaluating", "done", "failed", "cancelled"];
const BLAMES = ["task", "agent", "sandbox", "backend", "evaluator", "service"];
const OUTCOME_NAMES = ["open", "informative", "all_zero", "all_one", "all_equal", "unscored"];
const REASONS = ["finished", "max_turns", "length", "timeout", "error"];

const COMMON = [["client", "by"], ["agent", "agent"], ["task_id", "task"], ["policy_version", "policy version"], ["run", "run"]];
const TEXT = isSaved ? [] : [["text", "text"]];
const GROUP_FIELDS = [...TEXT, ["outcome", "rewards", OUTCOME_NAMES], ["state", "has a rollout", STATES], ["blame", "blame", BLAMES], ...COMMON];
const SORTS = ["oldest", "longest", "shortest", "best", "worst", "most_turns", "fewest_turns", "most_tokens", "fewest_tokens"];
const ROLLOUT_FIELDS = [...TEXT, ["sort", "sort", SORTS, "newest"], ["state", "state", STATES], ["blame", "blame", BLAMES], ["finish_reason", "finish", REASONS], ["group_id", "group"], ...COMMON];

const wanted = (query) => ({ ...query, task_id: anywhere(query.task_id), group_id: anywhere(query.group_id) });

// The newest page follows what happens; an older one stays as it is.
function useRows(path, query) {
  const limit = query.text ? MOST_FOUND : LIMIT;
  return useAnswer(withQuery(path, { ...wanted(query), limit }), isSaved || query.before || query.text ? 0 : EVERY_S);
}

// --- CSV ----------------------------------------------------------------------------------------

const CSV_FIELDS = [
  "rollout_id", "group_id", "task_id", "agent", "run", "state", "reward", "finish_reason", "turns", "sampled_tokens",
  "policy_version", "staleness", "model_s", "tool_s", "created_at", "ended_at",
];
// A spreadsheet takes some texts for formulas: all but plain names get an apostrophe.
const isPlain = (value) => typeof value !== "string" || /^(\w|$)/.test(value);
const cell = (value) => `"${isPlain(value) ? "" : "'"}${String(value ?? "").replaceAll('"', '""')}"`;

// All rollouts that match, the newest first: another order has one page.
async function saveCsv(query) {
  const rows = [];
  let before;
  do {
    const page = await get(withQuery("/v1/rollouts", { ...wanted(query), sort: undefined, before, limit: 500 }));
    rows.push(...page.rollouts);
    before = page.next;
  } while (before);
  const lines = [CSV_FIELDS, ...rows.map((row) => CSV_FIELDS.map((name) => row[name]))];
  save(new Blob([lines.map((line) => line.map(cell).join(",")).join("\n")], { type: "text/csv" }), "rollouts.csv");
}

// --- groups -------------------------------------------------------------------------------------

function Dots({ group }) {
  return html`<span class="dots">${group.states.map((state, index) => {
    const reward = group.rewards[index];
    const kind = hasEnded(state) ? (state === "done" ? rewardKind(reward) : state ?? "lost") : "open";
    return html`<a class="dot ${kind}" title="${index}: ${state ?? "did not end"}, reward ${number(reward)}"
      href=${rolloutAddress({ rollout_id: `${group.group_id}.${index}`, run: group.run })}></a>`;
  })}</span>`;
}

const GROUP_COLUMNS = [
  ["group", (row) => html`<a href=${address(`compare/${encodeURIComponent(row.group_id)}`, { run: row.run })}>${row.group_id}</a>`],
  ["rollouts", (row) => html`<${Dots} group=${row} />`],
  ["mean", (row) => number(row.mean_reward), "number"],
  ["rewards", (row) => html`<${Outcome} outcome=${row.outcome} />`],
  ["task", (row) => row.task_id],
  ["agent", (row) => row.agent],
  ["failed", (row) => Object.entries(row.blames).map(([blame, n]) => `${blame} ${n}`).join(", ")],
  ["version", (row) => row.policy_versions.join(", "), "number"],
  ["turns, all", (row) => row.turns, "number"],
  ["tokens, all", (row) => count(row.sampled_tokens), "number"],
  ["ended", (row) => ago(row.ended_at), "number"],
];

export function Groups({ query, set }) {
  const { answer, error } = useRows("/v1/groups", query);
  const chosen = query.reward_min ? [Number(query.reward_min), Number(query.reward_max)] : null;
  // The bars stay while one of them is chosen: they are those of all groups that the filters leave.
  const all = useRows("/v1/groups", { ...query, reward_min: "", reward_max: "" });
  const means = (all.answer?.groups ?? []).map((row) => row.mean_reward).filter((mean) => mean !== null);
  const choose = (bounds) => set({ ...query, reward_min: bounds?.[0] ?? "", reward_max: bounds?.[1] ?? "", before: undefined });
  return html`<section>
    <${Filters} fields=${GROUP_FIELDS} query=${query} set=${set} rows=${answer?.groups} />
    ${means.length > 0 && html`<p class="soft">Mean reward of the groups listed; click a bar to see all such groups. Groups whose rewards are all equal teach nothing.</p>
      <${Histogram} values=${means} chosen=${chosen} choose=${choose} />`}
    <${Problem} error=${error} />
    ${answer ? html`<${Notice} text=${answer.notice} /><${Table} columns=${GROUP_COLUMNS} rows=${answer.groups} empty=${html`<${Nothing} what="group" query=${query} set=${set} />`} />
      <${Pages} query=${query} next=${answer.next} set=${set} />` : !error && html`<${Waiting} />`}
  </section>`;
}

// --- rollouts -----------------------------------------------------------------------------------

// Seconds of RUN, that of a rollout that is in it included; null before it.
function runOf({ timings, activity }) {
  const current = activity?.stage === "run" && !activity.is_queued ? activity.took_s : 0;
  return timings.run_s + current || null;
}

function Happened({ row, text }) {
  const { activity, error, excerpt } = row;
  if (excerpt) return html`<a class="excerpt" href=${rolloutAddress(row, "rollout", { text })}><span class="soft">${plain(excerpt.place)}:</span> ${plain(excerpt.before)}<mark>${plain(excerpt.match)}</mark>${plain(excerpt.after)}</a>`;
  if (activity) return html`waits for ${plain(waits(activity))}, ${seconds(activity.waits_s)}`;
  return error && html`<span title=${error.hint}>${plain(error.message.slice(0, 200))}</span>`;
}

const happened = (name, text) => [name, (row) => html`<${Happened} row=${row} text=${text} />`, "wide"];

const columns = (text) => [
  ["rollout", (row) => (row.has_content ? html`<a href=${rolloutAddress(row, "rollout", { text })}>${row.rollout_id}</a>` : html`<span title="its text is not kept">${row.rollout_id}</span>`)],
  ["reward", (row) => html`<${Reward} reward=${row.reward} />`, "number"],
  ...(text ? [happened("found", text)] : []),
  ["state", (row) => html`<${State} state=${row.state} blame=${row.state === "failed" ? row.error?.blame : null} />`],
  ["task", (row) => row.task_id],
  ["agent", (row) => row.agent],
  ["finish", (row) => row.finish_reason],
  ["turns", (row) => row.turns, "number"],
  ["sampled", (row) => count(row.sampled_tokens), "number"],
  ["version", (row) => row.policy_version, "number"],
  ["stale", (row) => row.staleness, "number"],
  ["RUN", (row) => seconds(runOf(row)), "number"],
  ["ended", (row) => ago(row.ended_at), "number"],
  ...(text ? [] : [happened("what happened")]),
];

export function Rollouts({ query, set }) {
  const { answer, error } = useRows("/v1/rollouts", isSaved ? query : { ...query, count: true });
  return html`<section>
    <${Filters} fields=${ROLLOUT_FIELDS} query=${query} set=${set} rows=${answer?.rollouts} />
    ${answer?.matches > 0 && html`<p class="actions soft">${answer.matches.toLocaleString("en")} rollouts match
      <button type="button" onClick=${() => saveCsv(query)}>save as CSV</button></p>`}
    <${Problem} error=${error} />
    ${answer ? html`<${Notice} text=${answer.notice} /><${Table} columns=${columns(query.text)} rows=${answer.rollouts} empty=${html`<${Nothing} what="rollout" query=${query} set=${set} />`} />
      <${Pages} query=${query} next=${answer.next} set=${set} />` : !error && html`<${Waiting} />`}
  </section>`;
}
