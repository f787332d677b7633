// One rollout as a conversation: what it was asked, what it did turn by turn, the verdict and why.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { download, isSaved, rolloutPath, useAnswer, withQuery } from "./api.js";
import { address, clock, count, Fact, hasEnded, Notice, number, Reward, rewardKind, rolloutAddress, seconds, State, useKeys, Waiting, waits } from "./ui.js";
import { Markdown } from "./markdown.js";
import { marked, plain, Text } from "./text.js";

const EVERY_S = 2;

// A call's only text as it is, a command of a shell after its prompt.
const COMMANDS = ["command", "cmd"];
export const commandOf = (given) => {
  const [[name, value] = [], ...others] = Object.entries(given);
  if (typeof value !== "string" || others.length) return JSON.stringify(given, null, 2);
  return COMMANDS.includes(name) ? `$ ${value}` : value;
};

function Card({ kind, title, note = "", id, children }) {
  return html`<section class="card ${kind}" id=${id}><header><h3>${title}</h3><span class="soft">${note}</span></header>${children}</section>`;
}

// The first call without output is the one that runs, while the rollout waits for a tool.
function callNote(call, runs, rollout) {
  if (call.output !== null) return seconds(call.duration_s);
  if (hasEnded(rollout.state)) return "not made: the rollout had ended";
  return runs ? `running for ${seconds(rollout.activity.waits_s)}` : "not made yet";
}

const Pictures = ({ files = [] }) => files.map((one) => html`<img class="picture" alt="a picture that the policy saw" src="data:image/png;base64,${one}" />`);

function Call({ call, runs, rollout }) {
  const note = callNote(call, runs, rollout);
  return html`<${Card} kind=${call.is_error ? "tool error" : "tool"} title="Tool: ${call.name}" note=${note}>
    <${Text} text=${commandOf(call.arguments)} kind="command" />
    ${call.output !== null && (call.output || !call.pictures) && html`<${Text} text=${call.output || "(no output)"} />`}
    <${Pictures} files=${call.pictures} />
  <//>`;
}

// Folded text stays text: a part of it might be half of a block of code.
const MOST_MARKDOWN = 20_000;
const Said = ({ text, shown }) => (shown.markdown && text.length <= MOST_MARKDOWN ? html`<${Markdown} text=${text} />` : html`<${Text} text=${text} />`);

function TurnBar({ turn, longest }) {
  const width = (value) => ({ width: `${(100 * value) / longest}%` });
  return html`<div class="turn-bar" title="model ${seconds(turn.model_s)}, tools ${seconds(turn.tool_s)}">
    <i class="model" style=${width(turn.model_s)}></i><i class="tools" style=${width(turn.tool_s)}></i></div>`;
}

const engineTimes = (times) =>
  times ? ` (engine: queue ${seconds(times.queue_s)}, prefill ${seconds(times.prefill_s)}, decode ${seconds(times.decode_s)})` : "";

function notes(turn) {
  const version = turn.oldest_policy_version === turn.newest_policy_version
    ? `version ${turn.newest_policy_version ?? "–"}` : `versions ${turn.oldest_policy_version} to ${turn.newest_policy_version}`;
  if (turn.is_replayed) return `${turn.sampled_tokens} tokens after ${turn.prompt_tokens}`;
  return [`${turn.sampled_tokens} tokens sampled after ${turn.prompt_tokens}`, turn.cached_tokens ? `${turn.cached_tokens} cached` : "",
    `model ${seconds(turn.model_s)}${engineTimes(turn.times)}`, turn.tool_calls.length ? `tools ${seconds(turn.tool_s)}` : "", version,
    turn.stop_reason === "stop" ? "" : `stopped: ${turn.stop_reason}`].filter(Boolean).join(" · ");
}

function turnNote(turn, shown) {
  const reward = turn.reward === undefined ? "" : ` · reward ${number(turn.reward)}`;
  return (shown.details ? notes(turn) : `model ${seconds(turn.model_s)}`) + reward;
}

function Resumed({ text, turns }) {
  return text.resumed.filter((one) => one.turn === turns).map((one) => html`<p class="segment">resumed at another start of the service, ${seconds(one.away_s)} later</p>`);
}

// Where a turn is not the rollout's own, and how to begin another rollout before it.
function Replayed({ turn }) {
  return turn.is_replayed && html`<p class="segment">replayed${turn.results_differ && ": its calls had other results this time"}</p>`;
}

function Branch({ at, rollout }) {
  const command = `prorl try --from ${rollout.rollout_id} --turns ${at}`;
  return at > 0 && !isSaved && html`<button type="button" class="soft" title=${command} onClick=${() => navigator.clipboard.writeText(command)}>branch here</button>`;
}

function TurnCards({ turn, at, shown, longest, isNewSegment, rollout }) {
  const running = rollout.activity?.waits_for === "tool" ? turn.tool_calls.findIndex((call) => call.output === null) : -1;
  return html`<div class="turn" id="turn-${at + 1}">
    ${isNewSegment && html`<p class="segment">segment ${turn.segment + 1} begins: the context was rewritten</p>`}
    ${turn.given !== null && html`<${Card} kind="given" title="Given" note="as in the model's prompt"><${Text} text=${turn.given} /><//>`}
    <${Replayed} turn=${turn} />
    <${Card} kind="model" title="Turn ${at + 1}" note=${turnNote(turn, shown)}>
      ${shown.details && html`<${Branch} at=${at} rollout=${rollout} />`}
      <${TurnBar} turn=${turn} longest=${longest} />
      ${turn.reasoning && html`<details class="reasoning" open=${shown.reasoning}><summary>reasoning</summary><${Text} text=${turn.reasoning} /></details>`}
      ${turn.text.trim() && html`<${Said} text=${turn.text} shown=${shown} />`}
      ${!turn.text.trim() && !turn.reasoning && turn.tool_calls.length === 0 && html`<${Text} text=${turn.raw || "(nothing)"} />`}
    <//>
    ${turn.format_error && html`<${Card} kind="tool error" title="Format error"><${Text} text=${turn.format_error} /><//>`}
    ${turn.tool_calls.length > 0 && html`<details class="calls" open=${shown.tools}><summary>${turn.tool_calls.map((call) => call.name).join(", ")}</summary>
      ${turn.tool_calls.map((call, number) => html`<${Call} call=${call} runs=${number === running} rollout=${rollout} />`)}</details>`}
  </div>`;
}

function Verdict({ text }) {
  const { rollout, report } = text;
  const { error } = rollout;
  return html`
    ${error && html`<${Card} kind="error" title="${error.kind}, blame: ${error.blame}" note=${error.stage ? `in ${error.stage.toUpperCase()}` : ""}>
      <${Text} text=${error.message} />${error.hint && html`<p class="hint"><b>What to do:</b> ${plain(error.hint)}</p>`}
      ${error.retryable && html`<p class="soft">The same rollout may succeed when it is tried again.</p>`}<//>`}
    ${hasEnded(rollout.state) && html`<${Card} kind="verdict ${rewardKind(rollout.reward)}" title=${rollout.reward === null ? "No reward" : `Verdict: reward ${number(rollout.reward)}`} note=${rollout.finish_reason ?? ""}>
      <div class="facts">${Object.entries(rollout.reward_components).map(([name, value]) => html`<${Fact} name=${plain(name)}>${number(value)}<//>`)}</div>
      ${report !== null && html`<${Text} text=${JSON.stringify(report, null, 2)} />`}
    <//>`}`;
}

function Siblings({ text }) {
  const { rollout } = text;
  return html`<nav class="siblings" aria-label="Siblings"><span class="soft">siblings</span>
    ${text.siblings.map((one) => html`<a class="dot ${one.state === "done" ? rewardKind(one.reward) : hasEnded(one.state) ? one.state ?? "lost" : "open"} ${one.index === rollout.index ? "current" : ""}"
      title="${one.index}: ${one.state ?? "did not end"}, reward ${number(one.reward)}" href=${rolloutAddress({ ...one, run: rollout.run })}>${one.index}</a>`)}
    <a href=${address(`compare/${encodeURIComponent(rollout.group_id)}`, { run: rollout.run })}>compare</a></nav>`;
}

function Doing({ activity }) {
  const stage = activity.stage.toUpperCase();
  const budget = activity.budget_s === null ? "" : `, ${seconds(activity.worked_s)} of ${seconds(activity.budget_s)} allowed`;
  return html`<${Fact} name="now">${activity.is_queued ? `queued for ${stage}` : stage} for ${seconds(activity.took_s)}${budget}<//>
    <${Fact} name="waits for">${plain(waits(activity))}, for ${seconds(activity.waits_s)}<//>`;
}

// Seconds of all visits to a stage, the one that lasts included; none if it was not reached.
function Stage({ name, rollout, children }) {
  const key = name.toLowerCase();
  const { activity } = rollout;
  const current = activity?.stage === key && !activity.is_queued ? activity.took_s : 0;
  const took = rollout.timings[`${key}_s`] + current;
  return html`<${Fact} name=${name}>${took > 0 ? seconds(took) : "–"}${took > 0 && children}<//>`;
}

function Header({ text }) {
  const { rollout } = text;
  const { timings } = rollout;
  return html`<header class="of-rollout">
    <h1>${rollout.rollout_id} <${State} state=${rollout.state} blame=${rollout.state === "failed" ? rollout.error?.blame : null} /></h1>
    <div class="facts">
      <${Fact} name="task">${rollout.task_id}<//><${Fact} name="agent">${rollout.agent}<//>
      ${rollout.client && html`<${Fact} name="by">${plain(rollout.client)}<//>`}
      <${Fact} name="reward"><${Reward} reward=${rollout.reward} /><//>
      <${Fact} name="turns">${rollout.turns ?? "–"}<//><${Fact} name="sampled">${count(rollout.sampled_tokens)}<//>
      ${text.replay && html`<${Fact} name="began with">${count(text.replay.turns)} turns of ${plain(text.replay.rollout_id ?? "a given trajectory")}<//>`}
      <${Fact} name="version">${rollout.policy_version ?? "–"}<//><${Fact} name="attempt">${rollout.attempt}<//>
      ${rollout.activity && html`<${Doing} activity=${rollout.activity} />`}
      <${Fact} name="queued">${seconds(timings.queue_s)}<//><${Stage} name="INIT" rollout=${rollout} />
      <${Stage} name="RUN" rollout=${rollout}> (model ${seconds(rollout.model_s)}, tools ${seconds(rollout.tool_s)})<//>
      <${Stage} name="EVAL" rollout=${rollout} />
      ${rollout.ended_at && html`<${Fact} name="ended">${clock(rollout.ended_at)}<//>`}
    </div>
    <${Siblings} text=${text} />
  </header>`;
}

function Actions({ rollout, shown, toggle }) {
  const curl = `curl -H "Authorization: Bearer $(prorl token)" '${new URL(rolloutPath(rollout.rollout_id, "").slice(1), location.href)}'`;
  const save = () => download(withQuery("/v1/page", { group_id: rollout.group_id, run: rollout.run }), `${rollout.group_id}.html`);
  return html`<p class="actions">
    ${[["reasoning", 1], ["tools", 2], ["details", 3], ["markdown", 4]].map(([name, key]) => html`<label><input type="checkbox" checked=${shown[name]} onChange=${() => toggle(name)} /> ${name} <kbd>${key}</kbd></label>`)}
    <a href=${rolloutAddress(rollout, "tokens")}>tokens <kbd>t</kbd></a>
    ${!isSaved && html`<button type="button" onClick=${save} title="this rollout and its siblings, as a file that opens anywhere">save as HTML</button>
      <button type="button" onClick=${() => navigator.clipboard.writeText(curl)} title=${curl}>copy as curl</button>`}
    <span class="soft"><kbd>j</kbd> <kbd>k</kbd> turns <kbd>h</kbd> <kbd>l</kbd> siblings</span></p>`;
}

function go(turns, step) {
  const tops = turns.map((_, at) => document.getElementById(`turn-${at + 1}`).getBoundingClientRect().top);
  const current = tops.findLastIndex((top) => top < 80);
  const next = Math.max(0, Math.min(turns.length - 1, current + step));
  document.getElementById(`turn-${next + 1}`)?.scrollIntoView();
}

export function Rollout({ id, query }) {
  const [isOpen, setOpen] = useState(true);
  const [shown, setShown] = useState({ reasoning: Boolean(query.text), tools: true, details: false, markdown: false });
  const { answer: text, error } = useAnswer(rolloutPath(id, "/text", { run: query.run }), isSaved || !isOpen ? 0 : EVERY_S);
  useEffect(() => { marked(); }, [text, shown]);
  const isThere = text !== null;
  useEffect(() => { marked()?.startContainer.parentElement.scrollIntoView({ block: "center" }); }, [isThere, query.text]);
  useEffect(() => setOpen(text === null || !hasEnded(text.rollout.state)), [text]);
  const toggle = (name) => setShown((old) => ({ ...old, [name]: !old[name] }));
  const sibling = (step) => {
    const next = text?.siblings[text.rollout.index + step];
    if (next) location.hash = rolloutAddress({ ...next, run: text.rollout.run });
  };
  useKeys({
    j: () => go(text?.turns ?? [], 1), k: () => go(text?.turns ?? [], -1), h: () => sibling(-1), l: () => sibling(1),
    1: () => toggle("reasoning"), 2: () => toggle("tools"), 3: () => toggle("details"), 4: () => toggle("markdown"),
    t: () => { location.hash = rolloutAddress({ rollout_id: id, run: query.run }, "tokens"); },
    c: () => { if (text) location.hash = address(`compare/${encodeURIComponent(text.rollout.group_id)}`, { run: text.rollout.run }); },
  });
  if (!text) return html`<${Waiting} error=${error} />`;
  const longest = Math.max(1e-9, ...text.turns.map((turn) => turn.model_s + turn.tool_s));
  return html`<article key=${id}>
    <${Header} text=${text} /><${Actions} rollout=${text.rollout} shown=${shown} toggle=${toggle} />
    <${Notice} text=${text.notice} />
    <${Verdict} text=${text} />
    ${text.prompt.map((message) => html`<${Card} kind="prompt" title=${message.role}><${Pictures} files=${message.pictures?.map((one) => one.data)} />
      <${Said} text=${message.content} shown=${shown} /><//>`)}
    ${text.turns.map((turn, at) => html`<${Resumed} text=${text} turns=${at} /><${TurnCards} turn=${turn} at=${at} shown=${shown} longest=${longest} rollout=${text.rollout}
      isNewSegment=${at > 0 && turn.segment !== text.turns[at - 1].segment} />`)}
    <${Resumed} text=${text} turns=${text.turns.length} />
    ${text.rollout.activity && html`<p class="soft">… ${text.rollout.state}, waits for ${plain(waits(text.rollout.activity))}, for ${seconds(text.rollout.activity.waits_s)}</p>`}
    <details><summary>task data, tools, sampling, limits</summary>
      <${Text} text=${JSON.stringify({ image: text.task.image, data: text.task.data, tools: text.tools, sampling: text.sampling, limits: text.limits }, null, 2)} /></details>
  </article>`;
}
