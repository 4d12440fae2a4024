// An agent's words, made harmless: always text nodes, without control sequences, with what is invisible made visible.
import { html } from "../vendor/preact.js";

// CSI, OSC and other escape sequences, then the control characters that are left.
const SEQUENCES = /\u001b\[[0-?]*[ -/]*[@-~]|\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[@-_]?|\u009b[0-?]*[ -/]*[@-~]/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const INVISIBLE =
  /[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\u{e0000}-\u{e0fff}]/gu;
const HIDDEN = new RegExp(`${INVISIBLE.source}| {9,}|\\t{9,}`, "gu");

export function strip(text) {
  let count = 0;
  const drop = () => (count++, "");
  const clean = String(text ?? "").replace(/\r\n/g, "\n").replace(SEQUENCES, drop).replace(CONTROLS, drop);
  return { clean, count };
}

export const invisible = (text) => (String(text ?? "").match(INVISIBLE) ?? []).length;

function mark(found) {
  if (/^[ \t]/.test(found)) return `${found.length} blanks`;
  return `U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

// The parts of a text, with a chip in place of each invisible character.
export function shown(text) {
  const { clean } = strip(text);
  const parts = [];
  let from = 0;
  for (const found of clean.matchAll(HIDDEN)) {
    if (found.index > from) parts.push(clean.slice(from, found.index));
    parts.push(html`<span class="mark">${mark(found[0])}</span>`);
    from = found.index + found[0].length;
  }
  parts.push(clean.slice(from));
  return parts;
}

export const Agent = ({ text, mono = true }) => html`<bdi class=${mono ? "mono" : ""}>${shown(text)}</bdi>`;

export const CUT_AT = 2048; // characters of one line in a transcript

// Lines of output, each cut where it is long: the whole is a press away.
export function cutLines(text) {
  let cut = 0;
  const lines = text.split("\n").map((line) => {
    if (line.length <= CUT_AT) return line;
    cut += line.length - CUT_AT;
    return `${line.slice(0, CUT_AT)}…`;
  });
  return { text: lines.join("\n"), cut };
}

export function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${(count / 1e3).toFixed(count < 1e4 ? 1 : 0)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

export const megabytes = (count) => (count / 1e6).toFixed(count < 1e7 ? 1 : 0);
export const number = (value) => Number(value).toLocaleString("en");
export const short = (digest) => (digest ? `${digest.slice(0, 4)}…${digest.slice(-4)}` : "");

// A folder as its owner says it, and one of a session's own by its end. The server tells no home: the usual ones are known.
export const folder = (path) =>
  String(path ?? "").replace(/^.*\/legation\/work\//, "…/work/").replace(/^(\/home\/[^/]+|\/root)(?=\/|$)/, "~");
export const within = (path, root) => (root && path.startsWith(`${root}/`) ? path.slice(root.length + 1) : folder(path));
