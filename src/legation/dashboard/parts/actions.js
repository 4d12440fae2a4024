// The bar at the foot of an approval: one filled button, what silence means, and then the outcome in its place.
//
// An answer takes id and digest from what is painted. Nothing is said to be done before the server has said so.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { may, me, part, post } from "../api.js";
import { where } from "../state/inbox.js";
import { connection } from "../state/stream.js";
import { clock, ms, now, span } from "../state/clock.js";
import { address, askedAt, go } from "../state/place.js";
import { ARMED_AFTER_MS, DIALOG, ITEM, clickCounts, useKeys } from "../state/keys.js";
import { Icon, Key } from "./basics.js";
import { Agent, folder } from "./text.js";

const SECOND_MS = 5000; // in which the second press counts
const drafts = new Map(); // what was typed, by approval: in memory alone, kept while somebody signs in again
export const KIND = { edit: "Edits", delete: "Deletions", move: "Moves", execute: "Commands", read: "Reads", fetch: "Fetches", search: "Searches" };

export function Actions({ detail, members, next, split, seen, paintedAt, reload }) {
  const [mode, setMode] = useState(drafts.has(detail.id) ? "deny" : null); // deny, second, edit, grant
  const [sending, setSending] = useState(false);
  const [note, setNote] = useState(null);
  const [second, setSecond] = useState(null); // when I answered as the second
  const all = members.length > 1;
  const outside = (detail.paths ?? []).some((path) => path.inside === false) || (detail.parts ?? []).some((part) => part.outside);
  const risky = detail.injection_risk || outside || Boolean(detail.unreadable); // what nobody can read to its end may do anything
  const withSupervisor = detail.needs === "supervisor";
  const pending = detail.status === "pending";
  const over = ms(detail.expires_at) <= now.value;
  const offline = connection.value.state !== "live";
  const can = pending && !over && may("approve") && me.value.level === 2;

  useEffect(() => {
    if (mode !== "second") return undefined;
    const timer = setTimeout(() => setMode(null), SECOND_MS);
    return () => clearTimeout(timer);
  }, [mode]);
  useEffect(() => setNote(null), [detail.status]);

  const armed = () => can && !sending && !offline && paintedAt.current !== null && performance.now() - paintedAt.current >= ARMED_AFTER_MS;
  const press = (run) => () => armed() && clickCounts() && run();

  const send = async (word, body = {}) => {
    setSending(true);
    setNote(null);
    const pressed = Date.now();
    try {
      if (all && !body.params) await post(`approvals/groups/${part(detail.group)}/${word}`, { ...body, digest: detail.digest, ids: members.map((item) => item.id) });
      else await post(`approvals/${part(detail.id)}/${word}`, word === "escalate" ? body : { ...body, digest: detail.digest });
      drafts.delete(detail.id);
      setMode(null);
      await reload();
      return true;
    } catch (failed) {
      if (failed.status === 409 && failed.data.reason === "digest") setNote("It changed while you looked: read it again. Nothing was done.");
      else if (failed.status === 409 && failed.data.status) setSecond(pressed);
      else if (failed.status !== 401) setNote(failed.message);
      if (failed.status === 409) {
        setMode(null);
        await reload();
      }
      return false;
    } finally {
      setSending(false);
    }
  };
  const approve = () => {
    if (mode !== "second" && (risky || !seen)) setMode("second");
    else send("approve");
  };
  const escalate = () => send("escalate");
  const editable = detail.editable && !all && detail.params !== null;
  const grantable = !detail.injection_risk && !(detail.reviewers ?? []).length;

  useKeys(
    ITEM,
    can && (mode === null || mode === "second")
      ? {
          a: { run: approve, decides: armed },
          d: { run: () => setMode("deny"), decides: armed },
          ...(withSupervisor ? { e: { run: escalate, decides: armed } } : {}),
          ...(editable ? { w: { run: () => setMode("edit"), decides: armed } } : {}),
          ...(grantable ? { t: { run: () => setMode("grant"), decides: armed } } : {}),
        }
      : {},
  );
  useKeys(DIALOG, mode ? { Escape: () => setMode(null) } : {});

  if (!pending) return html`<footer class="bar"><${Outcome} detail=${detail} second=${second} />
    ${detail.status === "expired" && detail.session_id && may("operate") && html`<${AskAgain} detail=${detail} off=${offline} />`}<${Next} next=${next} /></footer>`;
  if (over) return html`<footer class="bar"><div class="outcome" role="status">
    <b>Its time is over.</b> It did not happen.</div><${Next} next=${next} /></footer>`;
  if (!can) return html`<footer class="bar"><p>You may look. Answering takes the role approver.</p></footer>`;
  const silence = html`<p class="silence" title=${clock(detail.expires_at)}>${offline
    ? "Answers need the server." : `No answer by ${clock(detail.expires_at)} is a no.`}</p>`;
  const failed = note && html`<p class="note bad" role="alert">${note}</p>`;
  if (mode === "deny") return html`<${Deny} id=${detail.id} all=${all ? members.length : 0} sending=${sending || offline} back=${() => setMode(null)} deny=${(reasoning) => send("deny", reasoning ? { reasoning, message: reasoning } : {})} failed=${failed} />`;
  if (mode === "edit") return html`<${Edit} detail=${detail} sending=${sending || offline} back=${() => setMode(null)} approve=${(params) => send("approve", { params })} failed=${failed} />`;
  if (mode === "grant") return html`<${Grant} detail=${detail} sending=${sending || offline} back=${() => setMode(null)} send=${send} failed=${failed} setNote=${setNote} />`;
  if (mode === "second") {
    return html`<footer class="bar open" role="group" aria-label="Approve anyway"><div>
      <b>${risky ? (detail.injection_risk ? "Approve it with signs of injection?"
      : outside ? "Approve it, outside the workspace?" : "Approve it, though nobody can know all that it runs?") : "Approve it, without having seen its end?"}</b>
      <p class="muted">Press again within 5 s. Your answer is in the trace.</p>${failed}</div>
      <div class="buttons"><button type="button" class="filled" onClick=${() => setMode(null)}>Back <${Key}>Esc<//></button>
        <button type="button" class="danger" disabled=${offline || sending} onClick=${press(approve)}>Yes, approve it <${Key}>a<//></button></div></footer>`;
  }
  const off = sending || offline;
  const count = all ? ` all ${members.length}` : "";
  const yes = html`<button type="button" class=${risky ? "danger" : withSupervisor ? ""
    : "filled"} disabled=${off} onClick=${press(approve)}>${risky
    ? "Approve anyway…" : `Approve${count}`} <${Key}>a<//>${risky && html`<${Key}>a<//>`}</button>`;
  const no = html`<button type="button" class=${risky ? "filled"
    : ""} disabled=${off} onClick=${press(() => setMode("deny"))}>Deny${count} <${Key}>d<//></button>`;
  const others = html`${withSupervisor &&
    html`<button type="button" class="quiet" disabled=${off} onClick=${press(escalate)}>Escalate <${Key}>e<//></button>`}
    ${all && html`<button type="button" class="quiet" onClick=${split}>One by one</button>`}
    ${editable && html`<button type="button" class="quiet" disabled=${off} onClick=${press(() => setMode("edit"))}>Edit first <${Key}>w<//></button>`}
    ${grantable && html`<button type="button" class="quiet" disabled=${off} onClick=${press(() => setMode("grant"))}>Allow for 15 min <${Key}>t<//></button>`}`;
  return html`<footer class="bar" aria-label="Answer">${failed}
    <div class="buttons main">${risky ? [no, yes] : [yes, no]}<span class="wide">${others}</span>
      <details class="narrow"><summary aria-label="More answers"><${Icon} name="more" /></summary>
      <div>${others}</div></details></div>
    ${silence}</footer>`;
}

function Deny({ id, all, sending, back, deny, failed }) {
  const field = useRef(null);
  const [text, setText] = useState(drafts.get(id) ?? "");
  useLayoutEffect(() => field.current?.focus(), []); // with the field itself: not one letter of a quick typist goes elsewhere
  const type = (event) => {
    setText(event.target.value);
    if (event.target.value) drafts.set(id, event.target.value);
    else drafts.delete(id);
  };
  const leave = () => {
    drafts.delete(id);
    back();
  };
  const submit = (event) => {
    event.preventDefault();
    if (!sending) deny(text.trim());
  };
  const key = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    if (event.key === "Escape") {
      event.preventDefault(); // the innermost thing is closed: what is around it stays
      leave();
    }
  };
  return html`<form class="bar open" onSubmit=${submit} aria-label="Deny, and tell it why">
    <label>Tell the agent why <small>optional</small>
      <textarea ref=${field} rows="2" maxlength="4000" value=${text} onInput=${type} onKeyDown=${key} /></label>
    <div class="quick">${["Not needed", "Too much at once", "Ask me first"].map((words) => html`<button type="button" class="small" onClick=${() => { setText(words); drafts.set(id, words); field.current?.focus(); }}>${words}</button>`)}</div>${failed}
    <div class="buttons"><button type="submit" class="filled" disabled=${sending}>Deny${all ? ` all ${all}`
      : ""} <${Key}>↵<//></button>
      <button type="button" class="quiet" onClick=${leave}>Back <${Key}>Esc<//></button></div></form>`;
}

function Edit({ detail, sending, back, approve, failed }) {
  const names = Object.keys(detail.params);
  const only = names.length === 1 && typeof detail.params[names[0]] === "string" ? names[0] : null;
  const before = only ? detail.params[only] : JSON.stringify(detail.params, null, 2);
  const [text, setText] = useState(before);
  const [wrong, setWrong] = useState(null);
  const field = useRef(null);
  useLayoutEffect(() => field.current?.focus(), []); // with the field itself: not one letter of a quick typist goes elsewhere
  const submit = (event) => {
    event?.preventDefault();
    try {
      if (!sending) approve(only ? { ...detail.params, [only]: text } : JSON.parse(text));
    } catch {
      setWrong("This is no JSON that can be read.");
    }
  };
  useKeys(DIALOG, { Escape: back, "Ctrl Enter": submit });
  return html`<form class="bar open" onSubmit=${submit} aria-label="Other arguments">
    <label>${only ?? "Arguments"} <small>other arguments are another approval; it names the one that it replaces</small>
      <textarea ref=${field} class="mono" rows=${Math.min(12, before.split("\n").length + 1)} value=${text} spellcheck=${false} onInput=${(event) => (setText(event.target.value), setWrong(null))} /></label>
    ${wrong && html`<p class="note bad" role="alert">${wrong}</p>`}${failed}
    <div class="buttons"><button type="submit" class="filled" disabled=${sending || text === before}>Approve this instead <${Key}>Ctrl ↵<//></button>
      <button type="button" class="quiet" onClick=${back}>Back <${Key}>Esc<//></button></div></form>`;
}

function Grant({ detail, sending, back, send, failed, setNote }) {
  const place = detail.workspace ?? detail.cwd;
  const here = detail.session_id && place;
  const [scope, setScope] = useState(here ? "here" : "everywhere");
  const [duration, setDuration] = useState("15m");
  const what = KIND[detail.kind] ?? detail.tool;
  const tools = detail.kind === "edit" ? "*" : detail.tool;
  const submit = async (event) => {
    event?.preventDefault();
    if (sending || !(await send("approve"))) return;
    const grant = { agent: detail.agent_id, tools, duration, reason: "from the inbox", ...(KIND[detail.kind] ? { kinds: [detail.kind] } : {}) };
    const bound = scope === "here" ? { session_id: detail.session_id, folder: place } : scope === "session" ? { session_id: detail.session_id } : {};
    await post("grants", { ...grant, ...bound }).catch((told) => setNote(`Approved, but not allowed for longer: ${told.message}`));
  };
  useKeys(DIALOG, { Escape: back, "Ctrl Enter": submit });
  const option = (value, words) => html`<label class=${`option ${scope === value ? "on" : ""}`}>
    <input type="radio" name="scope" value=${value} checked=${scope === value} onChange=${() => setScope(value)} /> ${words}</label>`;
  return html`<form class="bar open" onSubmit=${submit} aria-label="Allow for a while"><fieldset>
    <legend>Allow for a while</legend>
      ${here && option("here", html`${what} of this session, in <code>${folder(place)}</code>`)}
      ${!here && detail.session_id && option("session", html`${what} of this session`)}
      ${option("everywhere", html`${what} by ${detail.agent_id}, in every folder`)}</fieldset>
    <p class="muted">Still denied: all that a rule denies. Still asked: what a rule leaves to its reviewers.</p>${failed}
    <div class="buttons"><button type="submit" class="filled" disabled=${sending}>Approve, and allow <${Key}>Ctrl ↵<//></button>
      <label class="inline">for <select value=${duration} onChange=${(event) => setDuration(event.target.value)}>
        <option value="15m">15 min</option><option value="1h">1 h</option>
        <option value="4h">4 h</option></select></label>
      <button type="button" class="quiet" onClick=${back}>Back <${Key}>Esc<//></button></div></form>`;
}

const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);

function Outcome({ detail, second }) {
  const mine = detail.resolved_by === `${me.value.kind}:${me.value.id}`;
  const who = mine ? "you" : (detail.resolved_by_name ?? detail.asked?.supervisor.by_name ?? detail.resolved_by ?? "policy");
  const at = detail.resolved_at;
  const waited = at ? span(ms(at) - ms(detail.created_at)) : "";
  const text = {
    approved: [`Approved by ${who}${at ? `, ${clock(at)}` : ""}.`, `It waited ${waited}.`],
    denied: [`Denied by ${who}${at ? `, ${clock(at)}` : ""}.`, `It waited ${waited}. The agent was told so.`],
    expired: [`Nobody answered in ${span(ms(detail.expires_at) - ms(detail.created_at))}, so it did not happen.`, "The agent was told that it expired, not that somebody refused."],
    superseded: detail.replaced_by
      ? ["Approved with other arguments.", html`They are <a href=${address(`inbox/${part(detail.replaced_by)}`)}>an approval of their own</a>; this one was not used.`]
      : ["Nobody waits for this any more.", `${sentence(detail.why ?? "Whoever asked is gone")}. Nothing was run.`],
    cancelled: ["It was taken back.", `${sentence(detail.why ?? "Whoever asked has gone")}. Nothing was run.`],
  }[detail.status] ?? [detail.status, ""];
  if (second !== null && !mine && at) {
    text[0] = `${who} ${detail.status} this ${span(Math.max(0, second - ms(at)))} before you.`;
    text[1] = "The first answer stands; yours was not used.";
  }
  return html`<div class=${`outcome ${detail.status}`} role="status" aria-live="polite">
    <${Icon} name=${{ approved: "good", denied: "denied", expired: "clock" }[detail.status] ?? "call"} /><div>
    <b>${text[0]}</b> <span class="muted">${text[1]}</span></div></div>`;
}

function AskAgain({ detail, off }) {
  const [note, setNote] = useState(null);
  const place = askedAt(detail.session_id);
  const what = detail.command ?? detail.paths?.[0]?.path ?? detail.tool;
  const words = `Nobody answered in time when you asked for ${what}, so it did not happen; nobody refused it. Ask again if it is still needed.`;
  const send = () => post(`v1/${place}/messages`, place.startsWith("runs/") ? { prompt: words } : { message: words }).then(() => setNote("It was asked to."), (failed) => setNote(failed.message));
  return html`<div class="buttons">${note ? html`<p role="status">${note}</p>` : html`<button type="button" class="filled" disabled=${off} onClick=${send}>Ask it to try again</button>`}
    <a class="button quiet" href=${address(place)}>Open where it was asked</a></div>`;
}

export function Next({ next }) {
  if (!next) return null;
  return html`<div class="buttons">
    <button type="button" onClick=${() => go(where(next.item))}>Next: ${next.item.verb} <${Agent} text=${next.item.object.slice(0, 40)} /> <${Key}>j<//></button>
    <p class="muted wide">Nothing moves until you do.</p></div>`;
}
