// The tokens of a rollout, segment by segment: what was sampled and is trained on, how likely it
// was, and by which policy version.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { get, rolloutPath } from "./api.js";
import { address, count, Notice, Problem, rolloutAddress } from "./ui.js";
import { plain } from "./text.js";

const SLICE = 2048;
const COLUMNS = ["ids", "texts", "logprobs", "mask", "versions"];

// Slices of one segment, as they are asked for.
function useTokens(id, query, segment) {
  const [state, setState] = useState({ slices: [], error: null, isBusy: false });
  const current = useRef(null);
  useEffect(() => {
    current.current = new AbortController();
    setState({ slices: [], error: null, isBusy: false });
    return () => current.current.abort();
  }, [id, query.run, segment]);
  const more = async () => {
    const { signal } = current.current;
    const start = state.slices.reduce((sum, one) => sum + one.ids.length, 0);
    setState((old) => ({ ...old, isBusy: true }));
    try {
      const next = await get(rolloutPath(id, "/tokens", { run: query.run, segment, start, n: SLICE }), signal);
      if (!signal.aborted) setState((old) => ({ slices: [...old.slices, next], error: null, isBusy: false }));
    } catch (error) {
      if (!signal.aborted) setState((old) => ({ ...old, error, isBusy: true }));
    }
  };
  return { ...state, more };
}

// Calls `more` when the end of the page comes into view.
function End({ more, isBusy }) {
  const place = useRef(null);
  useEffect(() => {
    if (isBusy) return undefined;
    const seen = new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && more(), { rootMargin: "400px" });
    seen.observe(place.current);
    return () => seen.disconnect();
  });
  return html`<p ref=${place} class="soft">${isBusy ? "loading …" : ""}</p>`;
}

const likely = (logprob) => ({ backgroundColor: `rgb(var(--heat) / ${Math.min(0.85, -logprob / 4).toFixed(3)})` });

function Token({ slice, at, firstVersion }) {
  const [id, text, logprob, mask, version] = COLUMNS.map((name) => slice[name][at]);
  const place = `token ${slice.start + at}, id ${id}`;
  const isPrompt = slice.start + at < slice.prompt_tokens;
  const kind = mask ? `sampled version-${(version - firstVersion) % 4}` : isPrompt ? "prompt" : "context";
  const title = mask ? `${place}\nprobability ${Math.exp(logprob).toFixed(4)}, logprob ${logprob}\npolicy version ${version}`
    : `${place}\n${isPrompt ? "prompt" : "context"}: not sampled, not trained on`;
  const shown = text === "" ? `⟨${id}⟩` : text;
  return html`<span class=${kind} title=${title} style=${mask ? likely(logprob) : null}>${shown.split(/(\n)/).map((part) => (part === "\n" ? html`<i>↵</i>${"\n"}` : plain(part)))}</span>`;
}

function Slice({ slice, firstVersion }) {
  return html`<pre class="tokens">${slice.ids.map((_, at) => html`<${Token} slice=${slice} at=${at} firstVersion=${firstVersion} />`)}</pre>`;
}

function Legend({ versions }) {
  return html`<p class="legend"><span class="soft">sampled, by probability:</span>
    ${[1, 0.5, 0.1, 0.02].map((p) => html`<span class="sampled" style=${likely(Math.log(p))}> ${p} </span>`)}
    <span class="context">context of tools</span> <span class="prompt">prompt</span>
    ${versions.length > 1 && html`<span class="soft">underlined by policy version:</span> ${versions.map((one) => html`<span class="sampled version-${(one - versions[0]) % 4}"> ${one} </span>`)}`}</p>`;
}

export function Tokens({ id, query, set }) {
  const segment = Number(query.segment ?? 0);
  const { slices, error, isBusy, more } = useTokens(id, query, segment);
  const last = slices.at(-1);
  const loaded = slices.reduce((sum, one) => sum + one.ids.length, 0);
  const versions = [...new Set(slices.flatMap((one) => one.versions))].filter((one) => one !== null).sort((a, b) => a - b);
  return html`<section><h1>Tokens of <a href=${rolloutAddress({ rollout_id: id, run: query.run })}>${id}</a></h1>
    ${last && html`<p>${Array.from({ length: last.segments }, (_, at) => html`<button type="button" class=${at === segment ? "current" : ""} onClick=${() => set({ ...query, segment: at })}>segment ${at + 1}</button>`)}
      <span class="soft"> ${count(last.prompt_tokens)} prompt + ${count(last.length - last.prompt_tokens)} response tokens; ${loaded} loaded, ${slices.reduce((sum, one) => sum + one.mask.filter(Boolean).length, 0)} of these sampled. Point at a token for its numbers.</span></p>
      <${Legend} versions=${versions} /><${Notice} text=${last.notice} />`}
    <${Problem} error=${error} />
    ${slices.map((slice) => html`<${Slice} key=${slice.start} slice=${slice} firstVersion=${versions[0] ?? 0} />`)}
    ${!error && (!last || loaded < last.length) && html`<${End} key=${`${id} ${segment}`} more=${more} isBusy=${isBusy} />`}
    <p><a href=${address(`rollout/${encodeURIComponent(id)}`, { run: query.run })}>as a conversation</a></p></section>`;
}
