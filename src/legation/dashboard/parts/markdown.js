// An agent's prose as markdown: made safe, with nothing in it that loads or runs.
//
// marked reads it, and what it found becomes elements of a short list here: no markup is ever made of an agent's words, so there is none
// to clean. Raw HTML is text; a picture from elsewhere and an address of another kind than the web's are chips.
import { html, signal, useMemo } from "../vendor/preact.js";
import { Agent, shown } from "./text.js";

const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;
const ENTITY = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi;
// What an agent writes may take marked minutes, or more cells than there is memory: beyond each of these it is text.
const LONGEST = 200_000; // characters of all
const LONGEST_BLOCK = 8_000; // characters of one paragraph
const DEEPEST = 40; // quotes and lists within each other
const MOST_CELLS = 5_000; // of a table: a row of one letter has as many as the head
const READ_MS = 250; // in all
const Reader = signal(null);
let asked = false;

function load() {
  if (asked) return;
  asked = true;
  import("../vendor/markdown.js").then((module) => (Reader.value = bounded(module.Lexer)), () => {});
}

const bounded = (Lexer) => class extends Lexer {
  deep = 0;
  until = performance.now() + READ_MS;

  constructor() {
    super({ gfm: true });
    const { tokenizer } = this;
    const table = tokenizer.table.bind(tokenizer);
    tokenizer.table = (text) => {
      const [, , head, rows] = tokenizer.rules.block.table.exec(text) ?? [];
      return head?.split("|").length * (rows?.split("\n").length ?? 1) > MOST_CELLS ? undefined : table(text);
    };
  }

  asText = (text, tokens) => (tokens.push({ type: "text", raw: text, text }), tokens);

  blockTokens(text, tokens = [], ...rest) {
    if (this.deep >= DEEPEST || performance.now() > this.until) return this.asText(text, tokens);
    this.deep++;
    try {
      return super.blockTokens(text, tokens, ...rest);
    } finally {
      this.deep--;
    }
  }

  inlineTokens(text, tokens = []) {
    const most = performance.now() > this.until ? 0 : LONGEST_BLOCK;
    return text.length > most ? this.asText(text, tokens) : super.inlineTokens(text, tokens);
  }
};

const letters = new Map(); // by entity
function letter(entity) {
  if (!letters.has(entity)) letters.set(entity, new DOMParser().parseFromString(entity, "text/html").body.textContent);
  return letters.get(entity);
}
const decoded = (text) => text.replace(ENTITY, letter);
const words = (token) => shown(decoded(token.text));
const all = (tokens, deep) => (deep > DEEPEST ? shown(tokens.map((token) => token.raw).join("")) : tokens.map((token) => MADE[token.type]?.(token, deep + 1) ?? shown(token.raw)));
const inside = (tag) => (token, deep) => html`<${tag}>${all(token.tokens, deep)}<//>`;
const outside = (to, text) => html`<a href=${to} target="_blank" rel="noopener noreferrer">${text}</a>`;

const MADE = {
  space: () => "",
  def: () => "",
  hr: () => html`<hr />`,
  br: () => html`<br />`,
  paragraph: inside("p"),
  blockquote: inside("blockquote"),
  strong: inside("strong"),
  em: inside("em"),
  del: inside("del"),
  heading: (token, deep) => html`<${`h${token.depth}`}>${all(token.tokens, deep)}<//>`,
  text: (token, deep) => (token.tokens ? all(token.tokens, deep) : words(token)),
  escape: words,
  html: (token) => (token.block ? html`<p>${shown(token.raw)}</p>` : shown(token.raw)),
  code: (token) => html`<pre><code>${shown(token.text)}</code></pre>`,
  codespan: (token) => html`<code>${shown(token.text)}</code>`,
  checkbox: (token) => html`<input type="checkbox" disabled checked=${token.checked} aria-label=${token.checked ? "done" : "to do"} /> `,
  list: (token, deep) => html`<${token.ordered ? "ol" : "ul"} start=${token.ordered && token.start !== 1 ? token.start : undefined}>${token.items.map((item) => html`<li>${all(item.tokens, deep)}</li>`)}<//>`,
  table: (token, deep) => {
    const row = (cells, tag) => html`<tr>${cells.map((cell) => html`<${tag} align=${cell.align}>${all(cell.tokens, deep)}<//>`)}</tr>`;
    return html`<table><thead>${row(token.header, "th")}</thead><tbody>${token.rows.map((cells) => row(cells, "td"))}</tbody></table>`;
  },
  link: (token, deep) => {
    const to = urlOf(decoded(token.href));
    if (!to) return html`<span class="chip">${all(token.tokens, deep)} · not a web address, not made a link</span>`;
    const real = to.host || to.pathname;
    return html`${outside(to.href, all(token.tokens, deep))}${!names(token.text, to, real) && html`<span class="chip">${shown(real)}</span>`}`;
  },
  image: (token) => {
    if (PICTURE.test(token.href)) return html`<img src=${token.href} alt=${token.text} />`;
    const to = urlOf(decoded(token.href));
    return html`<span class="chip">${to?.host || "a picture"} · <${Agent} mono=${false} text=${token.text || "picture"} /> · not loaded${to?.host && outside(to.href, " Open")}</span>`;
  },
};

// Whole, so that it leads to the same place from wherever it stands.
function urlOf(text) {
  try {
    const url = new URL(text);
    return /^(https?|mailto):$/.test(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

// Whether the words say where it leads: that a host is somewhere among them is not enough, nor that it looks like it (`real` is punycode).
function names(words, to, real) {
  if (!to.host) return words === real;
  const said = urlOf(/^https?:/i.test(words) ? words : `https://${words}`);
  return said?.host === real && words.includes(real) && !to.username && !said.username;
}

function read(text) {
  try {
    return all(new Reader.value().lex(text), 0);
  } catch {
    return null; // bold within bold without an end: it is text
  }
}

export function Markdown({ text }) {
  load();
  const ready = Reader.value !== null && text.length <= LONGEST;
  const made = useMemo(() => (ready ? read(text) : null), [text, ready]);
  return html`<div class=${made ? "markdown" : "markdown plain"} dir="auto">${made ?? shown(text)}</div>`;
}
