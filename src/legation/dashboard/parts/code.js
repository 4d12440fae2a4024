// Colours of code: loaded when code is first shown, and never a reason to wait for it.
import { html, signal } from "../vendor/preact.js";
import { invisible, shown } from "./text.js";

const hljs = signal(null);
let asked = false;
const LONGEST = 2000; // characters of a line that are coloured
const NAMES = { py: "python", pyi: "python", js: "typescript", mjs: "typescript", jsx: "typescript", ts: "typescript", tsx: "typescript", json: "json", sh: "bash", bash: "bash", go: "go", rs: "rust", html: "xml", xml: "xml", svg: "xml", yml: "yaml", yaml: "yaml" };

export function useHighlight() {
  if (!asked) {
    asked = true;
    import("../vendor/highlight.js").then((module) => (hljs.value = module.default), () => {});
  }
  return hljs.value;
}

export const language = (path) => NAMES[String(path).split(".").pop().toLowerCase()] ?? null;

// Vnodes, not markup: highlight.js gives HTML, of which only spans with a class of its own are taken over.
export function highlighted(text, name) {
  if (!hljs.value || !name || text.length > LONGEST || invisible(text) || / {9,}\S/.test(text.trimStart())) return shown(text);
  const made = new DOMParser().parseFromString(
    `<pre>.${hljs.value.highlight(text, { language: name, ignoreIllegals: true }).value}`, // the dot keeps leading blanks
    "text/html",
  );
  const [first, ...others] = made.body.firstChild.childNodes;
  return [first.data.slice(1), ...others.map(vnode)];
}

function vnode(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data;
  return html`<span class=${node.className}>${[...node.childNodes].map(vnode)}</span>`;
}
