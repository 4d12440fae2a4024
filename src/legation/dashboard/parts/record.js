// Views of a record that sessions and runs share: its rows, what changed, what was decided, the events as they came.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { part } from "../api.js";
import { clock } from "../state/clock.js";
import { address, event as wanted } from "../state/place.js";
import { LIST, useKeys } from "../state/keys.js";
import { Ago, Icon, Level, levelOf } from "./basics.js";
import { Counts, Diff } from "./diff.js";
import { Decision, Row } from "./row.js";
import { VirtualRows } from "./virtual.js";
import { Agent, number, within } from "./text.js";

export const waits = (told) => (told?.rows ?? []).filter((row) => (row.ask || row.kind === "question") && !row.answer);
export const askPlace = (row, id) => (row.kind === "question" ? `inbox/${part(id)}/q/${part(row.told.id)}` : `inbox/${part(row.ask.id)}`);

// Where the event is that the address names, once the whole record is there: in the row that it is part of.
function useEvent(rows, ready) {
  return useMemo(() => {
    const index = ready && wanted.value ? rows.findLastIndex((row) => row.seq <= wanted.value) : -1;
    return index < 0 ? null : { index };
  }, [wanted.value, ready]);
}

// A look that went well and took nobody's word: neighbours of one kind are one line, which opens.
const isLook = ({ kind, call, ask, answer }) =>
  kind === "call" && (call.kind === "read" || call.kind === "search") && call.status === "completed" && (!ask || (answer?.outcome === "approved" && levelOf(answer.by, answer.byName) === "policy"));

function folded(all) {
  const rows = [];
  for (const row of all) {
    const last = rows.at(-1);
    if (!last || last.call?.kind !== row.call?.kind || !isLook(row) || !(last.looks || isLook(last))) rows.push(row);
    else if (last.looks) last.end = (last.looks.push(row), row.end);
    else rows[rows.length - 1] = { ...last, kind: "looks", looks: [last, row], end: row.end };
  }
  return rows;
}

// `place`: folder and address of what the rows are of.
export function Rows({ told, place, opened, setOpened }) {
  const rows = useMemo(() => folded(told.rows), [told, told.seq]);
  const toggle = (row) => (open) => setOpened((before) => ({ ...before, [row.seq]: typeof open === "boolean" ? open : !before[row.seq] }));
  // The browser finds only rows in view.
  const [finding, setFinding] = useState(false);
  const [at, setAt] = useState(null);
  const [note, setNote] = useState("");
  const asked = useEvent(rows, !told.partial);
  useEffect(() => void (asked && setAt(asked)), [asked]);
  const field = useRef(null);
  useLayoutEffect(() => field.current?.focus(), [finding]);
  const open = () => (setFinding(true), field.current?.focus());
  useKeys(LIST, { "/": open, "Ctrl f": open });
  const find = (event) => {
    event.preventDefault();
    const words = event.target.elements[0].value.toLowerCase();
    const has = (row) => `${row.text ?? ""}${(row.looks ?? [row]).map(({ call }) => (call ? JSON.stringify(call) : "")).join()}`.toLowerCase().includes(words);
    const from = (at?.index ?? -1) + 1;
    const index = [...rows.slice(from), ...rows.slice(0, from)].findIndex(has);
    setNote(index < 0 ? "Not found." : "");
    if (index >= 0) setAt({ index: (from + index) % rows.length });
  };
  return html`${finding && html`<form class="find" role="search" onSubmit=${find}><label class="search"><${Icon} name="search" />
    <input type="search" aria-label="Find in the transcript" placeholder="Find, then Enter" ref=${field} /></label> <span role="status">${note}</span>
    <button type="button" class="quiet" onClick=${() => setFinding(false)}>Close</button></form>`}
  <${VirtualRows} at=${at} rows=${rows} keyOf=${(row) => row.seq} label="Transcript" follow render=${(row) => html`<${Row} row=${row} session=${place} marked=${at && row.seq === rows[at.index]?.seq} opened=${opened[row.seq]} toggle=${toggle(row)} />`} />`;
}

export const Raw = ({ events }) => html`<${VirtualRows} at=${useEvent(events, events.length > 0)} rows=${events} keyOf=${(event) => event.seq} label="Raw events" size=${24} follow render=${(event) => html`<details class=${`raw-event ${event.seq === wanted.value ? "marked" : ""}`}>
  <summary><code>${event.seq}</code> <time>${clock(event.at)}</time> <code>${event.type}</code></summary><pre>
  <${Agent} text=${JSON.stringify(event.raw, null, 2).slice(0, 100_000)} /></pre></details>`} />`;

// Files of a session have their texts; those of a run their part of the patch.
export function Changes({ files, root: folderRoot, none = "What commands change is not counted here." }) {
  const [find, setFind] = useState("");
  const [open, setOpen] = useState(new Set(files.length <= 5 ? files.map((file) => file.path) : []));
  if (!files.length) return html`<div class="state quiet-state"><h2>No file was changed.</h2>
    <p>${none}</p></div>`;
  const found = files.filter((file) => file.path.includes(find));
  const flip = (path) => setOpen((before) => new Set(before.has(path) ? [...before].filter((each) => each !== path) : [...before, path]));
  return html`<div class="changes"><p class="tools"><b>${number(files.length)} ${files.length === 1 ? "file" : "files"}</b> <label class="search">
    <${Icon} name="search" />
    <input type="search" placeholder="Find a file" aria-label="Find a file" value=${find} onInput=${(event) => setFind(event.target.value)} /></label></p>
    <${VirtualRows} rows=${found} keyOf=${(file) => file.path} label="Changed files" size=${36} render=${(file) => (open.has(file.path)
      ? html`<div><button type="button" class="fold quiet" aria-expanded="true" onClick=${() => flip(file.path)}>
      <${Icon} name="down" /> Fold</button>
      <${Diff} path=${within(file.path, folderRoot)} patch=${file.text} oldText=${file.oldText} newText=${file.newText} isNew=${file.isNew ?? file.oldText === null} cut=${file.binary ? "Binary: of such a file the patch has nothing." : false} /></div>`
      : html`<button type="button" class="fold file" aria-expanded="false" onClick=${() => flip(file.path)}>
      <${Icon} name="open" /> <${Agent} text=${within(file.path, folderRoot)} />${file.text !== undefined &&
      html` <${Counts} added=${file.added} removed=${file.removed} />`}${file.isDeleted && html` <span class="muted">deleted</span>`}</button>`)} /></div>`;
}

export function Decisions({ told }) {
  const rows = told.rows.filter((row) => row.ask);
  if (!rows.length) return html`<div class="state quiet-state"><h2>Nothing was decided.</h2>
    <p>The agent has asked for nothing yet.</p></div>`;
  return html`<div class="scroll pad"><table class="table decided"><thead><tr><th>Action</th><th>Decision</th>
    <th>When</th></tr></thead><tbody>${rows.map((row) => html`<tr key=${row.ask.id}><td>
    <a href=${address(`inbox/${part(row.ask.id)}`)}><${Agent} text=${row.ask.title} /></a></td><td>
    <${Decision} ask=${row.ask} answer=${row.answer} /></td><td>
    <${Ago} at=${row.ask.askedAt} /></td></tr>`)}</tbody></table></div>`;
}


const DONE = { completed: ["good", "good"], in_progress: ["clock", "wait"], pending: ["todo", "faint"] };

export function Plan({ told }) {
  const done = told.plan.filter((entry) => entry.status === "completed").length;
  return html`<section><h2>Plan ${told.plan.length > 0 &&
    html`<small>${done} of ${told.plan.length}</small>`}</h2>${told.plan.length
    ? html`<ul class="plan">${told.plan.map((entry, at) => html`<li key=${at} class=${entry.status}>
    <${Icon} name=${DONE[entry.status]?.[0] ?? "todo"} label=${entry.status} /> <${Agent} mono=${false} text=${entry.content} /></li>`)}</ul>`
    : html`<p class="muted">The agent has made none.</p>`}</section>`;
}

export function Levels({ told }) {
  const levels = { policy: [0, 0], supervisor: [0, 0], person: [0, 0] };
  for (const each of told.decisions) levels[levelOf(each.by, each.byName)][each.outcome === "approved" ? 0 : 1]++;
  return html`<section><h2>Decisions <small>${told.decisions.length}</small></h2>${told.decisions.length
    ? html`<ul class="levels-list">${Object.entries(levels).filter(([, [yes, no]]) => yes + no).map(([level, [yes, no]]) => html`<li key=${level}>
    <${Level} level=${level} tone=${no ? "bad" : "good"} /> ${yes + no} by ${level === "policy"
    ? "policy" : level === "supervisor" ? "the supervisor" : "people"}${no ? `, ${no} no` : ""}</li>`)}</ul>`
    : html`<p class="muted">None yet.</p>`}</section>`;
}
