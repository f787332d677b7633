// A model's Markdown as elements: headings, lists, code, bold, italic. The text is hostile: all of it becomes text
// nodes, links are not followed and stay as they are written, and what is not known here stays as it is.
import { html } from "./vendor/htm-preact.js";
import { plain } from "./text.js";

const BLOCK = /^(`{3,}|~{3,})|^(#{1,6})\s+(.*)$|^\s*(?:[-*+]|\d+[.)])\s+(.*)$/;
const INLINE = /(`{1,3})([^`]+)\1|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*/g;

function inline(text) {
  const parts = [];
  let at = 0;
  for (const { 0: all, 2: code, 3: bold, 4: italic, index } of text.matchAll(INLINE)) {
    parts.push(plain(text.slice(at, index)));
    parts.push(code ? html`<code>${plain(code)}</code>` : bold ? html`<b>${plain(bold)}</b>` : html`<i>${plain(italic)}</i>`);
    at = index + all.length;
  }
  return [...parts, plain(text.slice(at))];
}

// Lines up to the fence that ends a block of code, and how many there are.
function code(lines, at, fence) {
  const end = lines.findIndex((line, number) => number > at && line.trim().startsWith(fence));
  const stop = end < 0 ? lines.length : end;
  return [html`<pre class="code">${plain(lines.slice(at + 1, stop).join("\n"))}</pre>`, stop + 1];
}

function blocks(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const parts = [];
  let at = 0;
  while (at < lines.length) {
    const [, fence, hashes, heading, item] = BLOCK.exec(lines[at]) ?? [];
    if (fence) {
      const [part, next] = code(lines, at, fence);
      parts.push(part);
      at = next;
      continue;
    }
    if (hashes) parts.push(html`<p class="heading">${inline(heading)}</p>`);
    else if (item !== undefined) parts.push(html`<div class="item">${inline(lines[at].trim())}</div>`);
    else parts.push(lines[at].trim() ? html`<div>${inline(lines[at])}</div>` : html`<div class="gap"></div>`);
    at += 1;
  }
  return parts;
}

export const Markdown = ({ text }) => html`<div class="markdown">${blocks(text)}</div>`;
