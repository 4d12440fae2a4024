// An agent's prose as markdown: made safe, with nothing in it that loads or runs.
//
// marked reads it, and what it found becomes elements of a short list here: no markup is ever made of an agent's words, so there is none
// to clean. Raw HTML is text; a picture from elsewhere and an address of another kind than the web's are chips.
import { html, signal, useMemo } from "../vendor/preact.js";
import { Agent, shown } from "./text.js";

const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;
const ENTITY = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,31});/gi;
const LONGEST = 200_000; // characters that are read as markdown; more is text
const DEEPEST = 40; // quotes and lists within each other; what is deeper is text
const Lexer = signal(null);
let asked = false;

function load() {
  if (asked) return;
  asked = true;
  import("../vendor/markdown.js").then((module) => (Lexer.value = module.Lexer), () => {});
}

const decoded = (text) => text.replace(ENTITY, (found) => new DOMParser().parseFromString(found, "text/html").body.textContent);
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
    const to = decoded(token.href);
    if (!/^(https?:|mailto:)/i.test(to)) return html`<span class="chip">${all(token.tokens, deep)} · not a web address, not made a link</span>`;
    const host = hostOf(to);
    return html`${outside(to, all(token.tokens, deep))}${host && !token.text.includes(host) && html`<span class="chip">${host}</span>`}`;
  },
  image: (token) => {
    if (PICTURE.test(token.href)) return html`<img src=${token.href} alt=${token.text} />`;
    const host = /^https?:/i.test(token.href) ? hostOf(token.href) : "";
    return html`<span class="chip">${host || "a picture"} · <${Agent} mono=${false} text=${token.text || "picture"} /> · not loaded${host && outside(token.href, " Open")}</span>`;
  },
};

function hostOf(to) {
  try {
    return new URL(to).host; // punycode, where letters are of other scripts
  } catch {
    return "";
  }
}

function read(text) {
  try {
    return new Lexer.value({ gfm: true }).lex(text);
  } catch {
    return null; // quotes within quotes without an end: it is text
  }
}

export function Markdown({ text }) {
  load();
  const ready = Lexer.value !== null && text.length <= LONGEST;
  const made = useMemo(() => {
    const tokens = ready ? read(text) : null;
    return tokens && all(tokens, 0);
  }, [text, ready]);
  return html`<div class=${made ? "markdown" : "markdown plain"} dir="auto">${made ?? shown(text)}</div>`;
}
