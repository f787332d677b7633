"use strict";
// Everything shown was written by a model or a tool: it only ever becomes text nodes, never markup.
const { entries, vocabulary } = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const seconds = (s) => (s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(1)} s`);
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children.filter((child) => child !== null));
  return node;
}

const outcome = ({ reward }) => (reward === null ? "failed" : reward >= 1 ? "full" : "part");
const colour = { full: "good", part: "part", failed: "bad" };
const shownReward = ({ reward }) => (reward === null ? "–" : String(+reward.toFixed(3)));
const moment = ({ label, step }) => [label, step === null ? null : `step ${step}`].filter(Boolean).join(" · ");

for (const entry of entries) {
  const calls = entry.turns.flatMap((turn) => turn.tool_calls);
  entry.haystack = [entry.task_id, ...entry.messages.map((m) => m.content), ...entry.turns.map((t) => t.text),
    ...calls.map((call) => JSON.stringify(call.arguments) + call.output)].join("\n").toLowerCase();
}

// --- one token -----------------------------------------------------------------------------------

function tokenNode(segment, index) {
  const id = segment.response_ids[index];
  if (!segment.loss_mask[index]) return contextNode(id);
  const logprob = segment.logprobs[index];
  const node = element("span", { title: `id ${id}\nprobability ${Math.exp(logprob).toFixed(4)}\n` +
    `logprob ${logprob}\npolicy version ${segment.policy_versions[index]}` }, ...visible(id));
  node.style.backgroundColor = `rgba(var(--heat), ${Math.min(0.85, -logprob / 4).toFixed(3)})`;
  return node;
}

function contextNode(id) {
  return element("span", { className: "context", title: `id ${id}\nnot sampled, not trained on` }, ...visible(id));
}

function visible(id) {
  const text = vocabulary[id] || `⟨${id}⟩`;
  return text.split(/(\n)/).flatMap((part) => (part === "\n" ? [element("i", {}, "↵"), "\n"] : [part]));
}

function range(start, stop) {
  return Array.from({ length: stop - start }, (_, offset) => start + offset);
}

// --- one rollout ---------------------------------------------------------------------------------

function card(kind, title, note, ...body) {
  const head = element("div", { className: "head" }, element("h3", {}, title), element("span", { className: "soft" }, note));
  return element("section", { className: kind }, head, ...body);
}

function pre(text, className = "") {
  return element("pre", { className }, ...[text].flat());
}

function turnCards(entry, turn, number) {
  const segment = entry.segments[turn.segment];
  const indices = range(turn.start, turn.stop);
  const surprise = indices.length ? `mean logprob ${mean(indices.map((i) => segment.logprobs[i])).toFixed(3)}` : "";
  const note = [`${indices.length} tokens`, surprise, seconds(turn.model_s), turn.finish_reason === "stop" ? "" : turn.finish_reason,
    turn.cached_tokens ? `${turn.cached_tokens} cached` : ""].filter(Boolean).join(" · ");
  // A character whose bytes are spread over tokens can only be read in the text of the whole turn.
  const isCut = indices.some((i) => vocabulary[segment.response_ids[i]].includes("\ufffd"));
  return [
    card("model", `Turn ${number} · model`, note, pre(indices.map((i) => tokenNode(segment, i)), "tokens"),
      isCut ? pre(turn.text) : null),
    turn.format_error ? card("tool error", "Format error", "", pre(turn.format_error)) : null,
    ...turn.tool_calls.map((call) =>
      card(call.is_error ? "tool error" : "tool", `Tool · ${call.name}`, seconds(call.duration_s),
        pre(commandOf(call)), pre(call.output || "(no output)"))),
  ];
}

function commandOf({ arguments: given }) {
  const values = Object.values(given);
  return values.length === 1 && typeof values[0] === "string" ? `$ ${values[0]}` : JSON.stringify(given, null, 2);
}

function chain(segment, number) {
  const tokens = [...segment.prompt_ids.map(contextNode), ...segment.response_ids.map((_, i) => tokenNode(segment, i))];
  const sampled = segment.loss_mask.filter((mask) => mask).length;
  const note = `${segment.prompt_ids.length} prompt + ${segment.response_ids.length} response tokens, ${sampled} sampled`;
  return card("", `Token chain ${number}`, note, pre(tokens, "tokens"));
}

function facts(entry) {
  const times = ["queue", "init", "run", "eval"].map((stage) => [stage, seconds(entry.timings[`${stage}_s`])]);
  const components = Object.entries(entry.reward_components).map(([name, value]) => [name, +value.toFixed(3)]);
  const shown = [["reward", shownReward(entry)], ...components, ["state", entry.state],
    ["finish", entry.finish_reason ?? "–"], ["turns", entry.turns.length], ...times];
  return element("div", { className: "facts" },
    ...shown.map(([name, value]) => element("span", {}, `${name} `, element("b", {}, String(value)))));
}

function legend() {
  const steps = [1, 0.5, 0.1, 0.02].map((p) => {
    const sample = element("span", {}, ` p = ${p} `);
    sample.style.backgroundColor = `rgba(var(--heat), ${Math.min(0.85, -Math.log(p) / 4)})`;
    return sample;
  });
  return element("div", { className: "legend soft tokens" }, "Sampled tokens, by probability:", ...steps,
    "· ", element("span", { className: "context" }, "context"), "(point at a token for its numbers)");
}

function show(entry) {
  const detail = byId("detail");
  const { error } = entry;
  detail.replaceChildren(...[
    element("h2", {}, `${entry.task_id} `, element("span", { className: "soft" }, moment(entry))),
    facts(entry),
    error && card("error", `${error.kind} · blame: ${error.blame}`, error.stage ?? "", pre(`${error.message}\n${error.hint}`.trim())),
    ...entry.messages.map((message) => card("", message.role, "", pre(message.content))),
    ...entry.turns.flatMap((turn, index) => turnCards(entry, turn, index + 1)),
    legend(),
    ...entry.segments.map((segment, index) => chain(segment, index + 1)),
    element("details", {}, element("summary", {}, "Task data and ids"),
      pre(JSON.stringify({ rollout_id: entry.rollout_id, agent: entry.agent, data: entry.data }, null, 2))),
  ].filter(Boolean));
  detail.scrollTop = 0;
  for (const [id, button] of buttons) button.setAttribute("aria-current", id === entry.rollout_id);
  buttons.get(entry.rollout_id)?.scrollIntoView({ block: "nearest" });
  history.replaceState(null, "", `#${entry.rollout_id}`);
}

// --- the list ------------------------------------------------------------------------------------

let matching = entries;
let buttons = new Map();

function listButton(entry) {
  const last = entry.turns.at(-1);
  return element("button", { type: "button", onclick: () => show(entry) },
    element("b", { className: colour[outcome(entry)] }, shownReward(entry)),
    element("span", { className: "name" }, entry.task_id), element("small", {}, entry.finish_reason ?? entry.state),
    element("small", { className: "name" }, last ? last.text : ""), element("small", {}, moment(entry)));
}

function refresh() {
  const needle = byId("search").value.toLowerCase();
  const label = byId("label").value;
  const wanted = byId("outcome").value;
  matching = entries.filter((entry) => entry.haystack.includes(needle) &&
    (!label || entry.label === label) && (!wanted || outcome(entry) === wanted));
  buttons = new Map(matching.map((entry) => [entry.rollout_id, listButton(entry)]));
  byId("list").replaceChildren(...buttons.values());
  const rewards = matching.flatMap(({ reward }) => (reward === null ? [] : [reward]));
  byId("summary").textContent = `${matching.length} of ${entries.length} rollouts` +
    (rewards.length ? `, mean reward ${mean(rewards).toFixed(2)}` : "");
  const named = decodeURIComponent(location.hash.slice(1));
  const chosen = matching.find((entry) => entry.rollout_id === named) ?? matching[0];
  if (chosen) show(chosen);
  else byId("detail").replaceChildren("No rollout matches.");
}

document.addEventListener("keydown", (event) => {
  const move = { j: 1, k: -1 }[event.key];
  if (!move || event.ctrlKey || event.metaKey || event.target.matches("input, select")) return;
  const current = matching.findIndex((entry) => buttons.get(entry.rollout_id).getAttribute("aria-current") === "true");
  const next = matching[current + move];
  if (next) show(next);
});

byId("label").append(element("option", { value: "" }, "all rollouts"),
  ...[...new Set(entries.map(({ label }) => label))].map((label) => element("option", { value: label }, label)));
for (const id of ["search", "label", "outcome"]) byId(id).addEventListener("input", refresh);
refresh();
