// An agent's prose as markdown: made safe, with nothing in it that loads or runs.
//
// marked makes the markup, DOMPurify takes out what is not on a short list, and we then make chips of what was a picture
// from elsewhere or an address of another kind than the web's.
import { html, signal, useLayoutEffect, useRef } from "../vendor/preact.js";
import { shown, strip } from "./text.js";

const TAGS = ["p", "br", "hr", "em", "strong", "del", "code", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "a", "img", "input"];
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;
const LONGEST = 200_000; // characters that are read as markdown; more is text
const tools = signal(null);
let asked = false;

// Raw HTML is the agent's text, not markup.
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function load() {
  if (asked) return;
  asked = true;
  import("../vendor/markdown.js").then(({ Marked, DOMPurify }) => (tools.value = { marked: new Marked({ gfm: true, async: false, renderer: { html: ({ raw }) => escaped(raw) } }), purify: DOMPurify }), () => {});
}

export function render(text) {
  const { marked, purify } = tools.value;
  const raw = marked.parse(text);
  const made = purify.sanitize(raw, { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["href", "src", "alt", "type", "checked", "disabled", "start", "align"], ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|data:image\/)/i, ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true, ADD_URI_SAFE_ATTR: ["src"] });
  for (const link of made.querySelectorAll("a")) {
    const to = link.getAttribute("href");
    if (!to || !/^(https?:|mailto:)/i.test(to)) {
      link.replaceWith(chip(`${link.textContent} · not a web address, not made a link`));
      continue;
    }
    Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
    const host = hostOf(to);
    if (host && !link.textContent.includes(host)) link.after(chip(host));
  }
  for (const image of made.querySelectorAll("img")) {
    if (PICTURE.test(image.getAttribute("src") ?? "")) continue;
    image.replaceWith(address(image.getAttribute("src"), image.getAttribute("alt") || "picture", "not loaded"));
  }
  for (const input of made.querySelectorAll("input")) if (input.type !== "checkbox") input.remove();
  mark(made);
  return made;
}

function hostOf(to) {
  try {
    return new URL(to).host; // punycode, where letters are of other scripts
  } catch {
    return "";
  }
}

function chip(text) {
  const made = document.createElement("span");
  made.className = "chip";
  made.textContent = strip(text).clean;
  return made;
}

function address(to, alt, words) {
  const host = /^https?:/i.test(to ?? "") ? hostOf(to) : "";
  const made = chip(`${host || "a picture"} · ${alt} · ${words}`);
  if (host) {
    const link = Object.assign(document.createElement("a"), { href: to, target: "_blank", rel: "noopener noreferrer", textContent: " Open" });
    made.append(link);
  }
  return made;
}

// Invisible characters become marks here, too.
function mark(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  for (const node of nodes) {
    const parts = shown(node.data);
    if (parts.length === 1) {
      if (parts[0] !== node.data) node.data = parts[0];
      continue;
    }
    node.replaceWith(...parts.map((part) => (typeof part === "string" ? part : Object.assign(document.createElement("span"), { className: "mark", textContent: part.props.children }))));
  }
}

export function Markdown({ text }) {
  load();
  const place = useRef(null);
  const ready = tools.value !== null && text.length <= LONGEST;
  useLayoutEffect(() => {
    if (ready) place.current.replaceChildren(render(text));
  }, [text, ready]);
  return ready ? html`<div key="made" class="markdown" dir="auto" ref=${place} />`
    : html`<div key="plain" class="markdown plain" dir="auto">${shown(text)}</div>`;
}
