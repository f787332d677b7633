// Answers of the service, or those saved with this page. Knows no view.
import { useEffect, useState } from "./vendor/htm-preact.js";

const savedText = document.getElementById("saved")?.textContent;
const saved = savedText ? JSON.parse(savedText) : null;

export const isSaved = saved !== null;
export const savedTitle = saved?.title ?? "";

const TOKEN = "prorl-token";

export class ServiceError extends Error {
  constructor(status, { message, hint }) {
    super(message);
    this.status = status;
    this.hint = hint ?? "";
  }
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

export function setToken(token) {
  sessionStorage.setItem(TOKEN, token.trim());
}

// A link of `prorl open` has the token in its fragment, which browsers send to nobody.
const given = isSaved ? null : /^#token=([^&]+)$/.exec(location.hash);
if (given) {
  setToken(decodeURIComponent(given[1]));
  history.replaceState(null, "", `${location.pathname}#/`);
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function request(path, options = {}) {
  let response;
  try {
    // Relative, so that the page works behind a proxy that adds a prefix.
    response = await fetch(path.slice(1), { ...options, headers: headers(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, { message: "the service does not answer", hint: "is it running?" });
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ServiceError(response.status, body.error ?? { message: response.statusText });
}

export async function get(path, signal) {
  if (isSaved) return savedAnswer(path);
  return (await request(path, { signal })).json();
}

export const download = async (path, name) => save(await (await request(path)).blob(), name);

export function save(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// A path with its query: values that are empty are left out, lists are repeated.
export function withQuery(path, query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "") parameters.append(name, one);
    }
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

export const rolloutPath = (id, what, query = {}) => withQuery(`/v1/rollouts/${encodeURIComponent(id)}${what}`, query);

// The answer of a path: again when the path changes, and each `every` seconds while it is positive.
export function useAnswer(path, every = 0) {
  const [state, setState] = useState({ answer: null, error: null });
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    let timer = null;
    const ask = async () => {
      try {
        const answer = await get(path, abort.signal);
        if (!abort.signal.aborted) setState({ answer, error: null, path });
      } catch (error) {
        if (abort.signal.aborted) return;
        setState((old) => ({ answer: old.path === path ? old.answer : null, error, path }));
      }
      if (every > 0 && !abort.signal.aborted) timer = setTimeout(ask, every * 1000);
    };
    ask();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, every]);
  // What was asked before for another path is not shown for this one.
  return state.path === path ? state : { answer: null, error: null };
}

// --- events -------------------------------------------------------------------------------------

const RETRY_MS = 2000;

// Calls `onEvent` with each event, over lost connections, until `signal` aborts.
export async function listen(onEvent, signal) {
  let last = null;
  while (!signal.aborted) {
    try {
      const response = await request("/v1/events", { signal, headers: last ? { "Last-Event-ID": last } : {} });
      for await (const event of parsed(response.body)) {
        last = event.id ?? last;
        onEvent(event);
      }
    } catch {
      // The next attempt resumes after the last event.
    }
    if (!signal.aborted) await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

async function* parsed(body) {
  let rest = "";
  for await (const text of readable(body.pipeThrough(new TextDecoderStream()))) {
    const blocks = (rest + text.replaceAll("\r\n", "\n")).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { id: null, kind: "", data: {} };
      for (const line of block.split("\n")) {
        if (line.startsWith("id: ")) event.id = line.slice(4);
        if (line.startsWith("event: ")) event.kind = line.slice(7);
        if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
      }
      if (event.kind) yield event;
    }
  }
}

// Not every browser can iterate over a stream.
async function* readable(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// --- saved pages --------------------------------------------------------------------------------

function savedAnswer(path) {
  const url = new URL(path, "http://saved/");
  const answer = saved.answers[path] ?? saved.answers[url.pathname];
  if (answer === undefined) {
    throw new ServiceError(404, { message: "this is not in the saved page", hint: "open it on the service" });
  }
  if (url.pathname.endsWith("/tokens")) return savedTokens(answer, url.searchParams);
  const rows = answer.groups ?? answer.rollouts;
  return rows ? { ...answer, [answer.groups ? "groups" : "rollouts"]: rows.filter((row) => meets(row, url.searchParams)) } : answer;
}

// All segments are saved whole; what is asked for is a part of one.
function savedTokens(segments, query) {
  const all = segments[Number(query.get("segment") ?? 0)];
  const start = Number(query.get("start") ?? 0);
  const stop = start + Number(query.get("n") ?? 1024);
  const part = { ...all, start };
  for (const name of ["ids", "texts", "logprobs", "mask", "versions"]) part[name] = all[name].slice(start, stop);
  part.partial = all.partial.filter((at) => at >= start && at < stop).map((at) => at - start);
  return part;
}

function meets(row, query) {
  const reward = row.mean_reward === undefined ? row.reward : row.mean_reward;
  const states = row.states ?? [row.state];
  const blames = row.blames ? Object.keys(row.blames) : [row.error?.blame];
  const versions = row.policy_versions ?? [row.policy_version];
  const one = (name, values) => !query.has(name) || query.getAll(name).some((wanted) => values.map(String).includes(wanted));
  return one("state", states) && one("blame", blames) && one("policy_version", versions)
    && one("agent", [row.agent]) && one("outcome", [row.outcome]) && one("task_id", [row.task_id])
    && one("group_id", [row.group_id]) && one("finish_reason", [row.finish_reason])
    && (!query.has("reward_min") || (reward !== null && reward >= Number(query.get("reward_min"))))
    && (!query.has("reward_max") || (reward !== null && reward <= Number(query.get("reward_max"))));
}
