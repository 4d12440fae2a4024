// Output of a program: colours as our own tokens, every other control sequence left out and counted.
import { html, signal, useState } from "../vendor/preact.js";
import { Copy } from "./basics.js";
import { CUT_AT, bytes, cutLines, shown, strip } from "./text.js";

const ansi = signal(null);
let asked = false;
const COLOURS = { "ansi-red": "bad", "ansi-bright-red": "bad", "ansi-green": "good", "ansi-bright-green": "good", "ansi-yellow": "wait", "ansi-bright-yellow": "wait", "ansi-blue": "work", "ansi-bright-blue": "work", "ansi-magenta": "work", "ansi-bright-magenta": "work", "ansi-cyan": "work", "ansi-bright-cyan": "work" };
const LONGEST = 60_000; // characters that are coloured and shown at once

function load() {
  if (asked) return;
  asked = true;
  import("../vendor/ansi.js").then((module) => (ansi.value = module.default), () => {});
}

export function Output({ text, status }) {
  load();
  const [more, setMore] = useState(1);
  const raw = String(text ?? "");
  const { count } = strip(raw);
  const colours = (raw.match(/\u001b\[[0-9;]*m/g) ?? []).length;
  const limited = raw.slice(0, LONGEST * more);
  const { text: lines, cut } = cutLines(limited);
  const parts = ansi.value && colours ? ansi.value.ansiToJson(lines, { use_classes: true, remove_empty: true }) : null;
  const rest = raw.length - limited.length + cut;
  const url = () => URL.createObjectURL(new Blob([raw], { type: "text/plain" }));
  return html`<div class="output panel">
    <pre>${parts ? parts.map((part, at) => html`<span key=${at} class=${`${COLOURS[part.fg] ?? ""} ${part.decorations?.includes("bold")
    ? "bold" : ""}`}>${shown(part.content)}</span>`) : shown(lines)}</pre>
    <footer>${status && html`<span class=${status === "failed" ? "bad" : "good"}>${status}</span>`}
      ${rest > 0 && html`<span class="muted">${bytes(raw.length)}, lines cut at ${bytes(CUT_AT)}</span> ${raw.length > limited.length &&
        html`<button type="button" class="link" onClick=${() => setMore(more + 1)}>${bytes(LONGEST)} more</button>`} <a href="#" download="output.txt" onClick=${(event) => (event.currentTarget.href = url())}>Download</a>`}
      <span class="grow" />${count - colours > 0 &&
        html`<span class="muted">${count - colours} control sequences left out</span>`}
        <${Copy} text=${strip(raw).clean} /></footer></div>`;
}
