// One row of a transcript: a prompt, prose, a thought, a call with its decision and result, a question.
import { html, useState } from "../vendor/preact.js";
import { part } from "../api.js";
import { exact, minute, span } from "../state/clock.js";
import { address, path } from "../state/place.js";
import { Copy, Icon, KindIcon, Level, levelOf, verb } from "./basics.js";
import { Counts, Diff, compare } from "./diff.js";
import { Markdown } from "./markdown.js";
import { Output } from "./terminal.js";
import { Agent, bytes, cutLines, number, shown, within } from "./text.js";

const FILES_AT_ONCE = 5; // of one call in the transcript; all are among the changes
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export function Row({ row, session, opened, toggle, marked }) {
  const here = `${address(path.value.map(part).join("/"))}${location.search}#e${row.seq}`;
  return html`<article class=${`turn ${row.kind} ${marked ? "marked" : ""}`} id=${`e${row.seq}`}><span class="at">${row.at &&
    html`<a href=${here} title=${exact(row.at)} aria-label=${`Event ${row.seq}, ${minute(row.at)}`}><time>${minute(row.at)}</time></a>`}
    <${Copy} label="Copy a link to this" text=${() => location.origin + here} /></span>
    <div class="said">${SAID[row.kind]?.({ row, session, opened, toggle }) ?? null}</div></article>`;
}

// Words as they are, each line cut where it is very long: the rest is a press away.
function Plain({ text }) {
  const [all, setAll] = useState(false);
  const { text: lines, cut } = cutLines(text);
  return html`<div class="prose">${shown(all ? text : lines)}</div>
    ${cut > 0 && html`<button type="button" class="link" onClick=${() => setAll(!all)}>${all ? "Less" : `${bytes(cut)} more`}</button>`}`;
}

const SAID = {
  prompt: ({ row }) => html`<div class="prompt-box"><small class="muted">You, or whoever prompted</small>
    <${Plain} text=${row.text} /></div>`,
  user: ({ row }) => html`<div class="prompt-box"><small class="muted">As the agent tells it</small>
    <${Plain} text=${row.text} /></div>`,
  message: ({ row }) => html`<div class="prose">${row.text &&
    html`<${Markdown} text=${row.text} />`}${row.blocks?.map((block, at) => html`<${Block} key=${at} block=${block} />`)}${row.cut &&
    html`<p class="muted">Its beginning is in the raw events.</p>`}</div>`,
  thought: ({ row, opened, toggle }) => {
    const words = row.text.split(/\s+/).filter(Boolean).length;
    return html`<button type="button" class="fold quiet" aria-expanded=${opened} onClick=${toggle}>
      <${Icon} name="think" /> Thought${row.end > row.at ? ` for ${span(row.end - row.at)}`
      : ""} · ${words} words <${Icon} name=${opened ? "down" : "open"} /></button>${opened &&
      html`<div class="thought-text"><${Plain} text=${row.text} /></div>`}`;
  },
  call: ({ row, session, opened, toggle }) => html`<${Call} row=${row} session=${session} opened=${opened} toggle=${toggle} />`,
  looks: ({ row, session, opened, toggle }) => html`<${Looks} row=${row} session=${session} opened=${opened} toggle=${toggle} />`,
  question: ({ row, session }) => html`<div class=${`ask ${row.answer ? "" : "waits"}`}><p>
    <${Icon} name="question" /> <${Agent} mono=${false} text=${row.told.message} /></p>${row.answer
    ? html`<p class="muted">${row.answer.outcome}${row.answer.content
    ? html`: <${Agent} text=${JSON.stringify(row.answer.content)} />` : ""}</p>` : html`<p>
    <a class="button" href=${address(`inbox/${part(session.sessionId)}/q/${part(row.told.id)}`)}>Answer it</a></p>`}</div>`,
  unasked: ({ row }) => html`<div class="denial">
    <b class="bad">Done without asking.</b> <${Agent} text=${row.told.title} />${row.told.rule &&
    html` · <code>${row.told.rule}</code>`}${row.told.endsTurn && " · the turn was ended"}</div>`,
  failure: ({ row }) => html`<div class="denial">
    <b class="bad">The turn failed.</b> <${Agent} mono=${false} text=${row.text} /></div>`,
  line: ({ row }) => html`<p class="line muted"><${Agent} mono=${false} text=${row.text} /></p>`,
  unknown: ({ row, opened, toggle }) => html`<p class="line muted">
    <${Icon} name="question" /> An update of a kind that this version does not know: <${Agent} text=${row.name} /> <button type="button" class="link" aria-expanded=${opened} onClick=${toggle}>${opened
    ? "Hide it" : "Show it raw"}</button></p>${opened &&
    html`<${Output} text=${JSON.stringify(row.told, null, 2)} />`}`,
};

export function Decision({ ask, answer }) {
  if (!answer) return html`<a class="decision waits" href=${address(`inbox/${part(ask.id)}`)}><${Level} level="person" /> waits for an answer</a>`;
  const level = levelOf(answer.by, answer.byName);
  const good = answer.outcome === "approved";
  const who = answer.byName ?? (answer.by === "policy" ? "policy" : answer.by);
  const word = good && level === "policy" ? "allowed" : answer.outcome;
  return html`<span class=${`decision ${good ? "" : "bad"}`}><${Level} level=${level} tone=${good ? "good"
    : "bad"} /> ${word}${level === "policy" && who === "policy"
    ? "" : ` by ${who}`}${level === "person" ? ` in ${span(answer.at - ask.askedAt)}` : ""} ${answer.reason &&
    html`<code><${Agent} text=${answer.reason} /></code>`}</span>`;
}

function Looks({ row: { looks, call, ask, answer, at, end }, session, opened = false, toggle }) {
  const names = looks.map((each) => each.call.locations?.[0]?.path?.split("/").at(-1) ?? each.call.title).join(", ");
  return html`<div class="call"><p class="call-line"><button type="button" class="fold quiet" aria-expanded=${opened} onClick=${() => toggle(!opened)}>
    <${KindIcon} kind=${call.kind} /> <span class="muted">${call.kind === "read" ? `Read ${looks.length} files` : `Search ${looks.length} times`}</span> <${Agent} text=${names.slice(0, 200)} /></button>
    <span class="grow" />${ask ? html`<${Decision} ask=${ask} answer=${answer} />` : html`<span class="muted">${call.status}</span>`}<span class="took">${took(at, end)}</span></p>
    ${opened && looks.map((each) => html`<${Look} key=${each.seq} row=${each} session=${session} />`)}</div>`;
}

function Look({ row, session }) {
  const [open, setOpen] = useState(false);
  return html`<${Call} row=${row} session=${session} opened=${open} toggle=${setOpen} />`;
}

const took = (at, end) => (end >= at ? `${((end - at) / 1000).toFixed(1)} s` : "");

function Call({ row, session, opened, toggle }) {
  const { call, ask, answer } = row;
  const place = call.locations?.[0]?.path;
  const command = call.kind === "execute" ? (ask?.action?.command ?? call.rawInput?.command ?? call.title) : null;
  const object = command ?? (place ? within(place, session.directory) : call.title);
  const diffs = (call.content ?? []).filter((each) => each?.type === "diff");
  const rest = (call.content ?? []).filter((each) => each?.type !== "diff");
  const denied = answer && answer.outcome !== "approved";
  const open = opened ?? ((!ask || answer) && (diffs.length > 0 || call.kind === "execute"));
  const over = call.status === "completed" || call.status === "failed";
  return html`<div class=${`call ${ask && !answer ? "waits" : ""}`}>
    <p class="call-line"><button type="button" class="fold quiet" aria-expanded=${open} onClick=${() => toggle(!open)}>
      <${KindIcon} kind=${call.kind} /> <span class="muted">${verb(call.kind)}</span> <${Agent} text=${object.slice(0, 500)} />${!open && diffs.length === 1 && diffs[0].newText?.length < 50_000 &&
      html` <${Counts} ...${compare(diffs[0].oldText, diffs[0].newText)} />`}</button>
      <span class="grow" />${ask ? html`<${Decision} ask=${ask} answer=${answer} />`
      : html`<span class="muted">${call.status ?? ""}</span>`}
      <span class="took">${over && took(row.at, row.end)}</span></p>
    ${denied && html`<div class="denial">
      <b class="bad">${answer.outcome} by ${answer.byName ?? answer.by}.</b>${answer.message &&
      html` The agent was told: <${Agent} mono=${false} text=${answer.message} />`}</div>`}
    ${open &&
    diffs.slice(0, FILES_AT_ONCE).map(
      (diff, at) =>
        html`<${Diff} key=${at} path=${within(diff.path, session.directory)} oldText=${diff.oldText} newText=${diff.newText} isNew=${diff.oldText === null} />`,
    )}
    ${open &&
    diffs.length > FILES_AT_ONCE &&
    html`<p class="line"><a href=${address(`${session.at ?? `sessions/${part(session.sessionId)}`}?view=changes`)}>${number(diffs.length - FILES_AT_ONCE)} more files</a></p>`}
    ${open && rest.map((each, at) => html`<${Result} key=${at} each=${each} status=${call.status} />`)}
    ${open && !diffs.length && call.rawInput !== undefined && html`<details><summary>Input</summary>
      <${Output} text=${typeof call.rawInput === "string" ? call.rawInput : JSON.stringify(call.rawInput, null, 2)} /></details>`}
    ${open && !rest.length && call.rawOutput !== undefined && call.rawOutput !== null &&
      html`<${Output} text=${typeof call.rawOutput === "string" ? call.rawOutput : JSON.stringify(call.rawOutput, null, 2)} status=${call.status} />`}
  </div>`;
}

function Result({ each, status }) {
  if (each?.type === "content" && each.content?.type === "text") return html`<${Output} text=${each.content.text} status=${status} />`;
  if (each?.type === "content") return html`<${Block} block=${each.content} />`;
  if (each?.type === "terminal") return html`<p class="muted line">Output of the terminal <${Agent} text=${each.terminalId} /> is in the raw events.</p>`;
  return html`<${Output} text=${JSON.stringify(each, null, 2)} status=${status} />`;
}

// Content that is no text. An SVG is a program, so it is a file; a picture from elsewhere is an address.
function Block({ block }) {
  if (block?.type === "image" && PICTURES.includes(block.mimeType) && block.data) return html`<img class="picture" alt="a picture of the agent" src=${`data:${block.mimeType};base64,${String(block.data).replace(/[^A-Za-z0-9+/=]/g, "")}`} />`;
  if (block?.type === "image") return html`<p><span class="chip">
    <${Icon} name="file" /> a picture (<${Agent} text=${block.mimeType ?? "unknown"} />${block.data ? `, ${bytes(Math.round((block.data.length * 3) / 4))}`
    : ""}), not shown</span></p>`;
  if (block?.type === "resource_link") return html`<p><span class="chip">
    <${Icon} name="file" /> <${Agent} text=${block.name ?? block.uri} /></span></p>`;
  return html`<${Output} text=${JSON.stringify(block, null, 2)} />`;
}
