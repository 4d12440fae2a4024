// One session: its transcript as it happens, what it waits for, what it changed, and a word to it.
import { html, useEffect, useState } from "../vendor/preact.js";
import { call, get, may, part, post, root } from "../api.js";
import { changed } from "../state/inbox.js";
import { useRecord } from "../state/record.js";
import { now, span } from "../state/clock.js";
import { address, go, query, setQuery } from "../state/place.js";
import { ITEM, useKeys } from "../state/keys.js";
import { Ago, Chip, Copy, Failed, Icon, Loading } from "../parts/basics.js";
import { Composer } from "../parts/composer.js";
import { Counts, compare } from "../parts/diff.js";
import { Changes, Decisions, Levels, Plan, Raw, Rows, askPlace, waits } from "../parts/record.js";
import { Agent, folder, number, within } from "../parts/text.js";

export function Session({ id }) {
  const [info, setInfo] = useState(null);
  const [deleted, setDeleted] = useState(false);
  const [failed, setFailed] = useState(null);
  const [opened, setOpened] = useState({});
  const view = query.value.get("view") ?? "transcript";
  const read = () => get(`v1/sessions/${part(id)}`).then((session) => (setInfo(session), session));
  const begin = () => Promise.all([get(`v1/sessions/${part(id)}/snapshot`), read()]).then(([snapshot]) => snapshot);
  const { told, raw, problem } = useRecord(id, begin, () => setDeleted(true));
  useEffect(() => {
    if (info && told) read().catch(() => {});
  }, [changed.value, told?.state, told?.status]);

  const asks = waits(told);
  const turning = told && (told.state === "running" || told.state === "requires-action" || told.state === "accepted");
  const cancel = () => post(`v1/sessions/${part(id)}/cancel`).catch(setFailed);
  useKeys(ITEM, asks.length ? { Enter: () => go(askPlace(asks[0], id)) } : {});

  if (deleted || (problem && (!info || problem.status === 404))) {
    if (deleted || problem.status === 404) return html`<main class="state"><h1>There is no such session here.</h1>
      <p>It was deleted, or it is another workspace's.</p><p>
      <a class="button" href=${address("sessions")}>All sessions</a></p></main>`;
    return html`<main><${Failed} what="the session" problem=${problem} again=${() => location.reload()} still="Its agent goes on." /></main>`;
  }
  if (!info || !told) return html`<${Loading} what="the session" />`;
  const title = info.title ?? told.title ?? id;
  const tab = (name, label, count) => html`<button type="button" aria-pressed=${view === name} onClick=${() => setQuery({ view: name === "transcript"
    ? "" : name })}>${label}${count === undefined ? "" : html` <span>${number(count)}</span>`}</button>`;
  return html`<main class="session">
    <header class="head"><p class="crumbs">
      <a href=${address("sessions")}>Sessions</a> › <${Icon} name="agents" /> ${info.agent} <span class="where">
      <${Icon} name="folder" /> <code>${folder(info.directory)}</code></span>${info.model &&
      html`<span>${info.model}</span>`}
      <span>${{ default: "asks as the policy says", bypass: "asks nobody", acceptEdits: "edits without asking here", plan: "plans" }[info.permissionMode] ?? info.permissionMode}</span></p>
      <h1><${Agent} mono=${false} text=${title} /> <${State} info=${info} told=${told} asks=${asks} /></h1>
      <div class="tabs" role="group" aria-label="View">${tab("transcript", "Transcript")}${tab("changes", "Changes", told.files.size)}${tab("decisions", "Decisions", told.decisions.length)}${tab("raw", "Raw", told.seq)}<span class="narrow-only">${tab("facts", "Facts")}</span>
        ${turning && may("operate") && html`<button type="button" class="button" onClick=${cancel}>
          <${Icon} name="stop" /> Cancel turn</button>`}
        <${Copy} label="Copy as curl" text=${() => `curl -N -H "Authorization: Bearer $LEGATION_TOKEN" '${location.origin}${root}v1/streams/${part(id)}/sse?after=0'`} /></div></header>
    <div class="columns"><div class="main">
      ${view === "transcript" &&
        html`<${Rows} told=${told} place=${info} opened=${opened} setOpened=${setOpened} />`}
      ${view === "changes" && html`<${Changes} files=${[...told.files.values()]} root=${info.directory} />`}
      ${view === "facts" && html`<${Facts} info=${info} told=${told} asks=${asks} />`}
      ${view === "decisions" && html`<${Decisions} told=${told} />`}
      ${view === "raw" && html`<${Raw} events=${raw} />`}
      ${view === "transcript" && html`<${Composer} id=${id} asks=${asks} turning=${turning} failed=${failed} send=${(word, message) => post(`v1/sessions/${part(id)}/${word}`, { message })} over=${(info.ended || info.status === "closed") && html`<p class="muted">This session has ended. <a href=${address(`sessions/new?agent=${part(info.agent)}&directory=${part(info.directory ?? "")}`)}>Begin another in its folder</a></p>`} />`}
    </div><${Facts} info=${info} told=${told} asks=${asks} /></div>
  </main>`;
}

export function State({ info, told, asks = [] }) {
  const since = told?.since ? ` · ${span(now.value - told.since)}` : "";
  if (asks.length) return html`<${Chip} tone="wait">Waiting on you${since}<//>`;
  if (info.status === "closed") return html`<${Chip}>Ended<//>`;
  if (info.failed) return html`<${Chip} tone="bad" icon="wrong">Failed<//>`;
  if (info.cut) return html`<${Chip} tone="bad" icon="wrong">Cut off<//>`;
  if (info.status === "away") return html`<${Chip} tone="bad">Its server is away<//>`;
  if (told ? told.state === "running" : info.busy) return html`<${Chip} tone="work">Working${since}<//>`;
  if (info.status === "disconnected") return html`<${Chip}>Idle · its agent is stopped<//>`;
  return html`<${Chip}>Idle${info.queued ? ` · ${info.queued} queued` : ""}<//>`;
}

function Facts({ info, told, asks }) {
  const files = [...told.files.values()];
  const waits = new Set(asks.flatMap((row) => (row.call?.content ?? []).map((each) => each?.path)));
  return html`<aside class="facts-column" aria-label="Facts">
    <${Plan} told=${told} />
    <section><h2>Changed files <small>${files.length}</small></h2>${files.length
      ? html`<ul class="files">${files.slice(0, 20).map((file) => html`<${FileLine} key=${file.path} file=${file} root=${info.directory} waits=${waits.has(file.path)} />`)}</ul>${files.length > 20
      ? html`<p class="muted">and ${files.length - 20} more</p>` : ""}`
      : html`<p class="muted">None yet.</p>`}</section>
    <${Levels} told=${told} />
    <section><h2>Usage</h2><dl><div><dt>Cost</dt>
      <dd>${told.usage?.cost ? `${told.usage.cost.currency === "USD" || !told.usage.cost.currency
      ? "$" : `${told.usage.cost.currency} `}${Number(told.usage.cost.amount).toFixed(2)} so far`
      : "not told by this agent"}</dd></div><div><dt>Tokens</dt>
      <dd>${told.tokens.told ? `${number(told.tokens.in)} in · ${number(told.tokens.out)} out`
      : "not told by this agent"}</dd></div>${told.usage?.size ? html`<div><dt>Context</dt>
      <dd>${number(told.usage.used)} of ${number(told.usage.size)}</dd></div>` : ""}</dl>${told.usage?.size
      ? html`<progress aria-label="Context" max=${told.usage.size} value=${told.usage.used} />` : ""}</section>
    ${told.diagnostics.size > 0 && html`<section>
      <h2>Diagnostics <small>${told.diagnostics.size}</small></h2>${[...told.diagnostics].map(([code, each]) => html`<p key=${code}>
      <code>${code}</code> <span class="muted">${each.count > 1 ? `${each.count} times, the last: ` : ""}
      <${Agent} mono=${false} text=${each.message} /></span></p>`)}</section>`}
    <section><h2>Session</h2><dl><div><dt>Id</dt><dd><code>${info.sessionId}</code></dd></div><div><dt>Begun</dt><dd>
      <${Ago} at=${info.createdAt} /></dd></div><div><dt>Agent</dt><dd>${info.agent}</dd></div><div><dt>Events</dt>
      <dd>${number(told.seq)}</dd></div></dl>
      ${may("operate") && info.status !== "closed" && html`<p><${End} info=${info} /></p>`}</section>
  </aside>`;
}

function FileLine({ file, root: folderRoot, waits }) {
  const counts = file.newText && file.newText.length < 50_000 ? compare(file.oldText, file.newText) : null;
  return html`<li><${Agent} text=${within(file.path, folderRoot)} /> ${waits
    ? html`<span class="wait-word">waits for you</span>` : counts && html`<${Counts} ...${counts} />`}</li>`;
}

function End({ info }) {
  const [sure, setSure] = useState(false);
  const end = () => call("POST", `v1/sessions/${part(info.sessionId)}/terminate`).catch(() => {});
  return sure ? html`<button type="button" class="danger small" onClick=${end}>Yes, end it</button> <button type="button" class="quiet small" onClick=${() => setSure(false)}>Back</button>`
    : html`<button type="button" class="quiet small" onClick=${() => setSure(true)}>End the session</button>`;
}
