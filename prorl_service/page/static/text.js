// Text of models, tools and agents. It is hostile: it becomes text nodes only, never markup; colours
// of terminals are kept, characters that hide or reorder others are shown by their numbers.
import { html, useState } from "./vendor/htm-preact.js";
import { AnsiUp } from "./vendor/ansi_up.js";

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/u;
const HIDDEN_EACH = new RegExp(`(${HIDDEN.source})`, "u");
const FOLD_LINES = 40;
const FOLD_CHARACTERS = 8000;
const BLOCK_CHARACTERS = 50_000;

// ansi_up parses; instead of its markup, the pieces themselves are taken.
class Pieces extends AnsiUp {
  taken = [];

  transform_to_html(piece) {
    this.taken.push(piece);
    return "";
  }

  process_hyperlink(packet) {
    this.taken.push({ text: packet.text, fg: null, bg: null });
    return "";
  }
}

function pieces(text) {
  const parser = new Pieces();
  parser.ansi_to_html(text.replaceAll("\r\n", "\n"));
  // What follows an escape sequence that never ends is still shown.
  const rest = parser._buffer ? [{ text: parser._buffer, fg: null, bg: null }] : [];
  return [...parser.taken, ...rest];
}

const colour = (rgb) => `rgb(${rgb.join(",")})`;

function piece(one) {
  const content = plain(one.text);
  const isPlain = !one.fg && !one.bg && !one.bold && !one.faint && !one.italic && !one.underline;
  if (isPlain) return content;
  const style = {};
  // Terminals choose colours for one background; a part of the text's own is legible on each.
  if (one.fg) style.color = `color-mix(in srgb, ${colour(one.fg.rgb)} 70%, var(--text))`;
  if (one.bg) style.backgroundColor = colour(one.bg.rgb);
  const names = ["bold", "faint", "italic", "underline"].filter((name) => one[name]);
  return html`<span class=${names.join(" ")} style=${style}>${content}</span>`;
}

function named(character) {
  const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return html`<span class="hidden-character" title="a character that is not shown">U+${code}</span>`;
}

// Text without escape sequences.
export function plain(text) {
  if (!HIDDEN.test(text)) return text;
  return text.split(HIDDEN_EACH).map((part, at) => (at % 2 ? named(part) : part));
}

// Large text is laid out block by block, for those that are seen.
function blocks(text) {
  const parts = [];
  for (let at = 0; at < text.length;) {
    let stop = Math.min(text.length, at + BLOCK_CHARACTERS);
    const newline = text.indexOf("\n", stop);
    if (stop < text.length) stop = newline >= 0 && newline - stop < BLOCK_CHARACTERS ? newline + 1 : stop;
    parts.push(text.slice(at, stop));
    at = stop;
  }
  return parts;
}

function cut(text) {
  let at = -1;
  for (let line = 0; line < FOLD_LINES; line += 1) {
    at = text.indexOf("\n", at + 1);
    if (at < 0 || at > FOLD_CHARACTERS) break;
  }
  const stop = at < 0 || at > FOLD_CHARACTERS ? FOLD_CHARACTERS : at;
  return stop < text.length ? text.slice(0, stop) : text;
}

// --- what is sought -----------------------------------------------------------------------------

const MOST_MARKS = 2000;

// The words that the address asks for, as the service finds them; null if it asks for none.
export function sought() {
  const words = new URLSearchParams(location.hash.split("?")[1]).get("text")?.match(/[\p{L}\p{N}]+/gu);
  return words ? new RegExp(`(?<![\\p{L}\\p{N}])${words.join("[^\\p{L}\\p{N}]+")}`, "giu") : null;
}

// All places within an element where `pattern` is found: they may span elements, such as coloured ones.
function ranges(element, pattern) {
  const nodes = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let length = 0;
  while (walker.nextNode()) {
    nodes.push([length, walker.currentNode]);
    length += walker.currentNode.length;
  }
  return [...element.textContent.matchAll(pattern)].map(({ 0: match, index }) => {
    const range = new Range();
    for (const [edge, at] of [["setStart", index], ["setEnd", index + match.length]]) {
      const [from, node] = nodes.findLast(([start]) => start < at || start === 0);
      range[edge](node, at - from);
    }
    return range;
  });
}

// Marks what is sought, and returns the first place; null if there is none.
export function marked() {
  const pattern = sought();
  const found = pattern ? [...document.querySelectorAll("article :is(.text, .markdown)")].flatMap((one) => ranges(one, pattern)).slice(0, MOST_MARKS) : [];
  CSS.highlights?.set("sought", new Highlight(...found));
  return found[0] ?? null;
}

export function size(text) {
  if (text.length < 10_000) return `${text.length} characters`;
  return text.length < 1e6 ? `${Math.round(text.length / 1e3)} kB` : `${(text.length / 1e6).toFixed(1)} MB`;
}

// Text in a box; beyond `FOLD_LINES` lines it is folded, and whole on demand.
export function Text({ text, kind = "" }) {
  const short = cut(text);
  const isLong = short.length < text.length;
  const [isWhole, setWhole] = useState(() => isLong && sought()?.test(text) && !sought().test(short));
  const shown = isLong && !isWhole ? [short] : blocks(text);
  return html`<div class="text ${kind}">
    ${shown.map((block) => html`<pre>${pieces(block).map(piece)}</pre>`)}
    ${isLong && html`<button type="button" class="fold" onClick=${() => setWhole(!isWhole)}>
      ${isWhole ? "fold" : `show all (${size(text)}, ${text.split("\n").length} lines)`}</button>`}
  </div>`;
}
