// Siblings side by side: the same task, turn by turn, with the first difference marked.
import { html } from "./vendor/htm-preact.js";
import { rolloutPath, useAnswer, withQuery } from "./api.js";
import { address, Fact, Notice, number, Outcome, Reward, rolloutAddress, seconds, State, Waiting } from "./ui.js";
import { plain, Text } from "./text.js";
import { commandOf } from "./rollout.js";

const MOST = 4;

// What a turn shows: what was sampled, then the calls' results.
function shownOf(turn) {
  if (!turn) return null;
  const calls = turn.tool_calls.map((call) => `${call.name}: ${commandOf(call.arguments)}\n${call.output ?? "(not made)"}`);
  return [turn.reasoning && `[reasoning] ${turn.reasoning}`, turn.text.trim() || (calls.length ? "" : turn.raw), ...calls, turn.format_error].filter(Boolean).join("\n");
}

const LONGEST_WORD = 40;

export function commonLength(texts) {
  const [first, ...others] = texts;
  let length = Math.min(...texts.map((text) => text.length));
  for (const other of others) {
    let at = 0;
    while (at < length && first[at] === other[at]) at += 1;
    length = at;
  }
  // Whole words differ, which no character of two units spans.
  const from = Math.max(0, length - LONGEST_WORD);
  const word = /[^\s]*$/.exec(first.slice(from, length))[0].length;
  return length - (word < LONGEST_WORD ? word : Number(/[\ud800-\udbff]/.test(first[length - 1])));
}

// Index of the first turn in which the columns differ; -1 if none does.
export function firstDifference(columns) {
  const longest = Math.max(...columns.map((turns) => turns.length));
  for (let at = 0; at < longest; at += 1) {
    if (new Set(columns.map((turns) => shownOf(turns[at]))).size > 1) return at;
  }
  return -1;
}

const CONTEXT = 400;

function Cell({ turn, common, isFirst }) {
  if (!turn) return html`<div class="cell soft">ended before</div>`;
  const text = shownOf(turn);
  if (!isFirst) return html`<div class="cell"><${Text} text=${text} /></div>`;
  const from = Math.max(0, common - CONTEXT);
  return html`<div class="cell first-difference">
    <pre>${from > 0 ? "… " : ""}<span class="soft">${plain(text.slice(from, common))}</span></pre>
    <p class="soft">first difference</p><${Text} text=${text.slice(common) || "(ends here)"} kind="different" /></div>`;
}

function Column({ row, text, error }) {
  return html`<div class="head"><a href=${rolloutAddress(row)}>${row.rollout_id}</a> <${Reward} reward=${row.reward} /> <${State} state=${row.state} blame=${row.state === "failed" ? row.error?.blame : null} />
    <p class="soft">${row.turns ?? "–"} turns, ${row.sampled_tokens ?? "–"} tokens, ${seconds(row.timings.run_s)}, ${row.finish_reason ?? ""}</p>
    ${Object.entries(row.reward_components).map(([name, value]) => html`<${Fact} name=${plain(name)}>${number(value)}<//> `)}
    ${row.error && html`<p class="problem">${plain(row.error.message)}</p>`}
    ${!text && html`<${Waiting} error=${error} />`}</div>`;
}

// The best and the worst first: they say most.
function chosenOf(rows, query) {
  const wanted = (query.of ?? "").split(",").filter(Boolean).map(Number);
  if (wanted.length) return rows.filter((row) => wanted.includes(row.index)).slice(0, MOST);
  const readable = rows.filter((row) => row.has_content && row.state !== "queued");
  const byReward = [...readable].sort((a, b) => (b.reward ?? -1) - (a.reward ?? -1));
  return byReward.length < 2 ? byReward : [byReward[0], byReward.at(-1)].sort((a, b) => a.index - b.index);
}

function Turns({ columns }) {
  const first = firstDifference(columns);
  const longest = Math.max(...columns.map((turns) => turns.length));
  return Array.from({ length: longest }, (_, at) => {
    const there = columns.map((turns) => shownOf(turns[at])).filter((text) => text !== null);
    const common = at === first && there.length > 1 ? commonLength(there) : 0;
    const isSame = columns.length > 1 && (first < 0 || at < first);
    return html`<h3 class="across">turn ${at + 1}${isSame ? html` <span class="soft">the same</span>` : ""}</h3>
      ${isSame
        ? html`<details class="across"><summary class="soft">show</summary><${Text} text=${there[0]} /></details>`
        : columns.map((turns) => html`<${Cell} turn=${turns[at]} common=${common} isFirst=${at === first} />`)}`;
  });
}

// A fixed number of hooks, whatever is chosen.
function useTexts(chosen) {
  const paths = Array.from({ length: MOST }, (_, at) => (chosen[at] ? rolloutPath(chosen[at].rollout_id, "/text", { run: chosen[at].run }) : null));
  const texts = [useAnswer(paths[0]), useAnswer(paths[1]), useAnswer(paths[2]), useAnswer(paths[3])];
  return texts.slice(0, chosen.length);
}

export function Compare({ id, query, set }) {
  const { answer, error } = useAnswer(withQuery("/v1/rollouts", { group_id: id, run: query.run, limit: 500 }));
  const group = useAnswer(withQuery("/v1/groups", { group_id: id, run: query.run }));
  const rows = answer ? answer.rollouts : [];
  const chosen = chosenOf(rows, query);
  const texts = useTexts(chosen);
  if (!answer) return html`<${Waiting} error=${error} />`;
  if (rows.length === 0) return html`<p class="problem">No group ${id} is listed.</p>`;
  const toggle = (row) => {
    const others = chosen.filter((one) => one.index !== row.index).map((one) => one.index);
    const next = others.length < chosen.length ? others : [...others, row.index].slice(-MOST);
    set({ ...query, of: next.sort((a, b) => a - b).join(",") });
  };
  const areThere = texts.every((one) => one.answer) && texts.length > 0;
  return html`<section><h1>${id} ${group.answer?.groups[0] && html`<${Outcome} outcome=${group.answer.groups[0].outcome} />`}</h1>
    <p class="soft">Task <b>${rows[0].task_id}</b>, agent <b>${rows[0].agent}</b>. Choose up to ${MOST} rollouts:</p>
    <p class="choices">${rows.map((row) => html`<label class=${row.has_content ? "" : "soft"}><input type="checkbox" checked=${chosen.includes(row)} disabled=${!row.has_content} onChange=${() => toggle(row)} />
      ${row.index} <${Reward} reward=${row.reward} /></label>`)}</p>
    <${Notice} text=${answer.notice} />
    <div class="scroll"><div class="compare" style=${{ gridTemplateColumns: `repeat(${Math.max(1, chosen.length)}, minmax(260px, 1fr))` }}>
      ${chosen.map((row, at) => html`<${Column} row=${row} text=${texts[at].answer} error=${texts[at].error} />`)}
      ${areThere && html`<${Turns} columns=${texts.map((one) => one.answer.turns)} />`}
    </div></div>
    <p><a href=${address("rollouts", { group_id: id, run: query.run })}>as a list</a></p></section>`;
}
