// A run by task: which tasks are always 0, which teach nothing, and what another run makes of them.
import { html } from "./vendor/htm-preact.js";
import { useAnswer, withQuery } from "./api.js";
import { address, ago, anywhere, Filters, Nothing, Notice, number, percent, Table, Waiting } from "./ui.js";

const EVERY_S = 10;
const LIMIT = 500;
const SORTS = ["best", "most_failed", "least_informative"];
const FIELDS = [["sort", "sort", SORTS, "worst"], ["agent", "agent"], ["task_id", "task"], ["run", "run"], ["other", "compare with run"]];
const WIDTH = 220;
const HEIGHT = 18;

// Mean rewards from 0 to 1 over versions, as a line.
function Trend({ points }) {
  if (points.length < 2) return null;
  const x = (at) => (at * WIDTH) / (points.length - 1);
  const y = (mean) => HEIGHT - 1 - Math.max(0, Math.min(1, mean)) * (HEIGHT - 2);
  const title = points.map((point) => `${point.policy_version}: ${number(point.mean_reward)}`).join(", ");
  return html`<svg class="trend" width=${WIDTH} height=${HEIGHT} role="img" aria-label=${title}><title>${title}</title>
    <polyline points=${points.map((point, at) => `${x(at).toFixed(1)},${y(point.mean_reward).toFixed(1)}`).join(" ")} /></svg>`;
}

function Change({ from, to }) {
  if (from === undefined || from === null || to === null) return "–";
  const points = Math.round(100 * (to - from));
  return html`<span class=${points > 0 ? "more" : points < 0 ? "less" : ""}>${points > 0 ? "+" : ""}${points}</span>`;
}

const columns = (run, others) => [
  ["task", (row) => html`<a href=${address("rollouts", { task_id: row.task_id, agent: row.agent, run })}>${row.task_id}</a>`],
  ["agent", (row) => row.agent],
  ["success", (row) => percent(row.success_rate), "number"],
  ...(others ? [["change, points", (row) => html`<${Change} from=${others.get(row.task_id)?.success_rate} to=${row.success_rate} />`, "number"]] : []),
  ["mean reward", (row) => number(row.mean_reward), "number"],
  ["over versions", (row) => html`<${Trend} points=${row.trend} />`],
  ["informative", (row) => percent(row.informative_share), "number"],
  ["groups", (row) => row.groups, "number"],
  ["rollouts", (row) => row.rollouts, "number"],
  ["failed", (row) => (row.failed ? html`<a href=${address("rollouts", { task_id: row.task_id, state: "failed", run })}>${row.failed}</a>` : 0), "number"],
  ["last", (row) => ago(row.last_ended_at), "number"],
];

export function Tasks({ query, set }) {
  const { other, ...own } = query;
  const wanted = { ...own, task_id: anywhere(own.task_id), limit: LIMIT };
  const { answer, error } = useAnswer(withQuery("/v1/tasks", wanted), EVERY_S);
  const compared = useAnswer(other ? withQuery("/v1/tasks", { ...wanted, run: other }) : null).answer;
  const others = compared && new Map(compared.tasks.map((row) => [row.task_id, row]));
  const change = (row) => Math.abs((row.success_rate ?? 0) - (others.get(row.task_id)?.success_rate ?? row.success_rate ?? 0));
  const rows = answer && others ? [...answer.tasks].sort((a, b) => change(b) - change(a)) : answer?.tasks;
  return html`<section>
    <${Filters} fields=${FIELDS} query=${query} set=${set} rows=${rows ?? []} />
    ${answer ? html`<p class="soft">Run ${answer.run}: ${answer.matches} tasks${others ? (others.size ? `, those that differ most from run ${other} first` : `; nothing of run ${other} is here`) : ""}. Ended rollouts only.</p>
      <${Notice} text=${answer.notice} />
      <${Table} columns=${columns(answer.run, others)} rows=${rows} empty=${html`<${Nothing} what="ended rollout" query=${query} set=${set} />`} />` : html`<${Waiting} error=${error} />`}
  </section>`;
}
