// Training by policy version: success, groups that teach, staleness, tokens wasted; the trainer's own metrics.
import { html } from "./vendor/htm-preact.js";
import { isSaved, useAnswer, withQuery } from "./api.js";
import { Lines } from "./charts.js";
import { address, count, Filters, Notice, number, percent, seconds, Table, Waiting } from "./ui.js";

const EVERY_S = 10;
const FIELDS = [["agent", "agent"], ["run", "run"], ["other", "compare with run"]];

const share = (value) => `${+(100 * value).toFixed(1)} %`;
const wastedShare = (row) => (row.sampled_tokens ? row.wasted_tokens / row.sampled_tokens : null);
const took = (row) => (row.first_ended_at === null ? null : row.last_ended_at - row.first_ended_at);
const failures = (row) => Object.entries(row.failures).map(([blame, n]) => html`<a href=${address("rollouts", { state: "failed", blame, policy_version: row.policy_version })}>${blame} ${n}</a> `);

const COLUMNS = [
  ["version", (row) => html`<a href=${address("groups", { policy_version: row.policy_version })}>${row.policy_version}</a>`, "number"],
  ["rollouts", (row) => row.rollouts, "number"],
  ["mean reward", (row) => number(row.mean_reward), "number"],
  ["success", (row) => percent(row.success_rate), "number"],
  ["informative", (row) => percent(row.informative_share), "number"],
  ["all 0", (row) => row.outcomes.all_zero ?? 0, "number"],
  ["all 1", (row) => row.outcomes.all_one ?? 0, "number"],
  ["failed", failures, "wrap"],
  ["cancelled", (row) => row.cancelled, "number"],
  ["stale (mean, max)", (row) => `${number(row.mean_staleness, 2)}, ${row.max_staleness ?? "–"}`, "number"],
  ["turns, mean", (row) => number(row.mean_turns, 1), "number"],
  ["tokens, all", (row) => count(row.sampled_tokens), "number"],
  ["wasted", (row) => percent(wastedShare(row)), "number"],
  ["ended within", (row) => seconds(took(row)), "number"],
];

// Well-known metrics of a trainer, by the names that trainers give them. The first that is there is drawn.
const KNOWN = {
  Loss: ["loss", "actor/pg_loss", "actor/loss"],
  Reward: ["reward", "critic/rewards/mean", "critic/score/mean"],
  KL: ["kl", "actor/kl_loss", "actor/ppo_kl"],
  Entropy: ["entropy", "actor/entropy", "actor/entropy_loss"],
  "Gradient norm": ["grad_norm", "actor/grad_norm"],
  "Logprob difference of sampler and trainer": ["sampling/sampling_logp_difference/mean", "prorl/off_policy", "training/rollout_probs_diff_mean"],
  "Learning rate": ["learning_rate", "actor/lr"],
};
const KNOWN_NAMES = Object.values(KNOWN).flat();

// Figures of both runs over the versions of either.
function joined(rows, others, values) {
  const versions = [...new Set([...rows, ...others].map((row) => row.policy_version))].sort((a, b) => a - b);
  const column = (from, value) => {
    const known = new Map(from.map((row) => [row.policy_version, value(row)]));
    return versions.map((version) => known.get(version) ?? null);
  };
  const sides = others.length ? [rows, others] : [rows];
  return [versions, ...sides.flatMap((side) => values.map((value) => column(side, value)))];
}

const pointsOf = (curve) => (curve?.policy_versions ?? []).map((version, at) => ({ policy_version: version, value: curve.values[at] }));

// What trainers report of themselves, one chart a metric.
function Reported({ answer, compared, chosen, other }) {
  const isThere = (name) => [answer, compared].some((one) => one?.metrics[name]);
  const found = Object.entries(KNOWN).map(([title, known]) => [title, known.find(isThere)]);
  const charts = [...found, ["", chosen]].filter(([, name]) => name && isThere(name));
  if (charts.length === 0) return null;
  const chart = (title, name) => {
    const theirs = pointsOf(compared?.metrics[name]);
    return html`<${Lines} key=${name} title=${["", name].includes(title.toLowerCase()) ? name : `${title}: ${name}`} names=${theirs.length ? [name, `${name}, ${other}`] : [name]}
      isTime=${false} data=${joined(pointsOf(answer.metrics[name]), theirs, [(one) => one.value])} />`;
  };
  return html`<h2>The trainer's own metrics</h2><div class="charts">${charts.map((one) => chart(...one))}</div>`;
}

export function Training({ query, set }) {
  const { other, metric, ...filters } = query;
  const wanted = { ...filters, metric: [...KNOWN_NAMES, metric] };
  const { answer, error } = useAnswer(withQuery("/v1/training", wanted), isSaved ? 0 : EVERY_S);
  const compared = useAnswer(other ? withQuery("/v1/training", { ...wanted, run: other }) : null).answer;
  if (!answer) return html`<section><${Filters} fields=${FIELDS} query=${query} set=${set} /><${Waiting} error=${error} /></section>`;
  const rows = answer.versions;
  const others = compared?.versions ?? [];
  const lines = (...values) => joined(rows, others, values);
  const rest = answer.metric_names.filter((name) => !KNOWN_NAMES.includes(name));
  const fields = rest.length ? [...FIELDS, ["metric", "one more metric", rest, "none"]] : FIELDS;
  const names = (...ours) => (others.length ? [...ours, ...ours.map((name) => `${name}, ${other}`)] : ours);
  return html`<section>
    <${Filters} fields=${fields} query=${query} set=${set} />
    <p class="soft">Run ${answer.run}. A rollout counts for the newest version that it sampled with.${other && others.length === 0 && !compared?.metric_names.length ? ` Nothing of run ${other} is here.` : ""}</p><${Notice} text=${answer.notice} />
    ${rows.length > 0 && html`<div class="charts">
      <${Lines} title="Success and mean reward" names=${names("success", "mean reward")} isTime=${false} data=${lines((row) => row.success_rate, (row) => row.mean_reward)} />
      <${Lines} title="Informative groups" names=${names("share")} isTime=${false} data=${lines((row) => row.informative_share)} format=${share} />
      <${Lines} title="Staleness in versions" names=${names("mean", "max")} isTime=${false} data=${lines((row) => row.mean_staleness, (row) => row.max_staleness)} />
      <${Lines} title="Sampled tokens that were wasted" names=${names("share")} isTime=${false} data=${lines(wastedShare)} format=${share} />
    </div>`}
    <${Reported} answer=${answer} compared=${compared} chosen=${metric} other=${other} />
    <${Table} columns=${COLUMNS} rows=${[...rows].reverse()} empty="no rollout has ended" />
  </section>`;
}
