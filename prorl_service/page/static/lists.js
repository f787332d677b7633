// Groups and rollouts, the newest first: filtered, paged, with a histogram of rewards.
import { html } from "./vendor/htm-preact.js";
import { isSaved, useAnswer, withQuery } from "./api.js";
import { Histogram } from "./charts.js";
import { address, ago, count, Filters, hasEnded, Notice, number, Outcome, Pages, Problem, Reward, rewardKind, rolloutAddress, seconds, State, Table, Waiting } from "./ui.js";
import { plain } from "./text.js";

const LIMIT = 100;
const EVERY_S = 5;
const STATES = ["queued", "init", "ready", "running", "evaluating", "done", "failed", "cancelled"];
const BLAMES = ["task", "agent", "sandbox", "backend", "evaluator", "service"];
const OUTCOME_NAMES = ["open", "informative", "all_zero", "all_one", "all_equal", "unscored"];
const REASONS = ["finished", "max_turns", "length", "timeout", "error"];

const COMMON = [["agent", "agent"], ["task_id", "task"], ["policy_version", "policy version"], ["run", "run"]];
const GROUP_FIELDS = [["outcome", "rewards", OUTCOME_NAMES], ["state", "has a rollout", STATES], ["blame", "blame", BLAMES], ...COMMON];
const ROLLOUT_FIELDS = [["state", "state", STATES], ["blame", "blame", BLAMES], ["finish_reason", "finish", REASONS], ["group_id", "group"], ...COMMON];

// The newest page follows what happens; an older one stays as it is.
function useRows(path, query) {
  return useAnswer(withQuery(path, { ...query, limit: LIMIT }), isSaved || query.before ? 0 : EVERY_S);
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
  ["task", (row) => row.task_id],
  ["agent", (row) => row.agent],
  ["rollouts", (row) => html`<${Dots} group=${row} />`],
  ["mean", (row) => number(row.mean_reward), "number"],
  ["rewards", (row) => html`<${Outcome} outcome=${row.outcome} />`],
  ["failed", (row) => Object.entries(row.blames).map(([blame, n]) => `${blame} ${n}`).join(", ")],
  ["version", (row) => row.policy_versions.join(", "), "number"],
  ["turns", (row) => row.turns, "number"],
  ["sampled", (row) => count(row.sampled_tokens), "number"],
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
    <${Filters} fields=${GROUP_FIELDS} query=${query} set=${set} />
    <p class="soft">Mean reward of the groups listed; click a bar to see all such groups. Groups whose rewards are all equal teach nothing.</p>
    <${Histogram} values=${means} chosen=${chosen} choose=${choose} />
    <${Problem} error=${error} />
    ${answer ? html`<${Notice} text=${answer.notice} /><${Table} columns=${GROUP_COLUMNS} rows=${answer.groups} empty="no group meets these conditions" />
      <${Pages} query=${query} next=${answer.next} set=${set} />` : !error && html`<${Waiting} />`}
  </section>`;
}

// --- rollouts -----------------------------------------------------------------------------------

const ROLLOUT_COLUMNS = [
  ["rollout", (row) => (row.has_content ? html`<a href=${rolloutAddress(row)}>${row.rollout_id}</a>` : html`<span title="its text is not kept">${row.rollout_id}</span>`)],
  ["task", (row) => row.task_id],
  ["agent", (row) => row.agent],
  ["state", (row) => html`<${State} state=${row.state} blame=${row.state === "failed" ? row.error?.blame : null} />`],
  ["reward", (row) => html`<${Reward} reward=${row.reward} />`, "number"],
  ["finish", (row) => row.finish_reason],
  ["turns", (row) => row.turns, "number"],
  ["sampled", (row) => count(row.sampled_tokens), "number"],
  ["version", (row) => row.policy_version, "number"],
  ["stale", (row) => row.staleness, "number"],
  ["run", (row) => seconds(row.timings.run_s), "number"],
  ["ended", (row) => ago(row.ended_at), "number"],
  ["what happened", (row) => row.error && html`<span title=${row.error.hint}>${plain(row.error.message.slice(0, 200))}</span>`, "wide"],
];

export function Rollouts({ query, set }) {
  const { answer, error } = useRows("/v1/rollouts", query);
  return html`<section>
    <${Filters} fields=${ROLLOUT_FIELDS} query=${query} set=${set} />
    <${Problem} error=${error} />
    ${answer ? html`<${Notice} text=${answer.notice} /><${Table} columns=${ROLLOUT_COLUMNS} rows=${answer.rollouts} empty="no rollout meets these conditions" />
      <${Pages} query=${query} next=${answer.next} set=${set} />` : !error && html`<${Waiting} />`}
  </section>`;
}
