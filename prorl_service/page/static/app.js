// The page: which view is shown, whether the service is alive, the token it asks for.
import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/htm-preact.js";
import { hasToken, isSaved, savedTitle, setToken, useAnswer } from "./api.js";
import { Compare } from "./compare.js";
import { Groups, Rollouts } from "./lists.js";
import { Now } from "./now.js";
import { Rollout } from "./rollout.js";
import { Tasks } from "./tasks.js";
import { Timeline } from "./timeline.js";
import { Tokens } from "./tokens.js";
import { Training } from "./training.js";
import { address, Problem } from "./ui.js";
import { plain } from "./text.js";

const STATUS_S = 2;
const VIEWS = { now: Now, groups: Groups, rollouts: Rollouts, tasks: Tasks, timeline: Timeline, training: Training };
const OF_ONE = { rollout: Rollout, compare: Compare, tokens: Tokens };
const TABS = isSaved ? ["groups", "rollouts"] : Object.keys(VIEWS);

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...id] = path.split("/");
  return { view: view || TABS[0], id: decodeURIComponent(id.join("/")), query: Object.fromEntries(new URLSearchParams(query)) };
}

function usePlace() {
  const [current, setCurrent] = useState(place);
  useEffect(() => {
    const onChange = () => setCurrent(place());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return current;
}

function TokenForm() {
  const enter = (event) => {
    event.preventDefault();
    setToken(new FormData(event.target).get("token"));
    location.reload();
  };
  return html`<form class="token" onSubmit=${enter}><h1>ProRL rollout service</h1>
    <p>This service asks for its token.</p>
    <p>Where the service runs, <code>prorl open</code> opens this page, and <code>prorl token</code> prints the token. It stays in this tab.</p>
    <p><label>Token <input name="token" type="password" autocomplete="off" autofocus /></label> <button>open</button></p>
    ${hasToken() && html`<p class="problem" role="alert">That is not this service's token.</p>`}</form>`;
}

function Shown({ current, status, error }) {
  const [broken] = useErrorBoundary((problem) => console.error(problem));
  const { view, id, query } = current;
  const set = (next) => { location.hash = address(id ? `${view}/${encodeURIComponent(id)}` : view, next); };
  if (broken) return html`<p class="problem">This view cannot be shown: ${plain(String(broken.message))}. Please report it.</p>`;
  const View = (id ? OF_ONE : VIEWS)[view];
  if (!View) return html`<p class="problem">There is no view ${plain(view)}.</p>`;
  return html`<${View} id=${id} query=${query} set=${set} status=${status} error=${error} />`;
}

function Life({ status, error }) {
  if (isSaved) return html`<span class="life soft">saved</span>`;
  if (error) return html`<span class="life down" title=${error.hint}>${plain(error.message)}</span>`;
  if (!status) return null;
  const trouble = status.failure ?? (status.is_stopping ? "stopping" : null);
  return html`<span class="life ${trouble ? "down" : "up"}">${trouble ? plain(trouble) : "alive"} <span class="soft">policy version ${status.policy_version}</span></span>`;
}

function App() {
  const current = usePlace();
  const { answer: status, error } = useAnswer(isSaved ? null : "/v1/status", STATUS_S);
  useEffect(() => { document.title = [current.id || current.view, status?.run ?? (savedTitle || "ProRL")].join(" – "); }, [current, status?.run]);
  if (error?.status === 401) return html`<${TokenForm} />`;
  return html`<nav class="top"><b>${savedTitle || status?.run || "ProRL"}</b>
      ${TABS.map((name) => html`<a class=${name === current.view ? "current" : ""} href=${address(name)}>${name}</a>`)}
      <${Life} status=${status} error=${error} />${!isSaved && html`<a class="soft" href="docs">API</a>`}</nav>
    <main class=${error ? "stale" : ""}><${Shown} key=${`${current.view}/${current.id}`} current=${current} status=${status} error=${error} /></main>`;
}

render(html`<${App} />`, document.getElementById("app"));
