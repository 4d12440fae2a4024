// A question of the agent: its words as prose, the fields that it asks for as a form.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { may, part, post } from "../api.js";
import { outcomes } from "../state/inbox.js";
import { connection } from "../state/stream.js";
import { clock } from "../state/clock.js";
import { address, go } from "../state/place.js";
import { ITEM, clickCounts, useKeys } from "../state/keys.js";
import { Icon, Key, Left } from "./basics.js";
import { Markdown } from "./markdown.js";
import { Next } from "./actions.js";
import { Agent, folder } from "./text.js";

const CARDS_UPTO = 5; // options as cards; more are a list to choose from

export function Question({ id, session, row, next }) {
  const kept = useRef(null);
  if (row) kept.current = row.item;
  const item = kept.current;
  const heading = useRef(null);
  const [values, setValues] = useState({});
  const [invalid, setInvalid] = useState({});
  const [outcome, setOutcome] = useState(null);
  const [note, setNote] = useState(null);
  const [sending, setSending] = useState(false);
  useEffect(() => heading.current?.focus({ preventScroll: true }), [id, item !== null]);
  const offline = connection.value.state !== "live";
  const fields = item?.question?.fields ?? [];
  const send = async (word, body) => {
    setSending(true);
    setNote(null);
    try {
      await post(`v1/sessions/${part(session)}/questions/${part(id)}/${word}`, body);
      outcomes.value = new Map(outcomes.value).set(id, word === "reply" ? "answered" : "declined");
      setOutcome(word === "reply" ? "Answered by you." : "Declined by you. The agent goes on by itself.");
    } catch (failed) {
      if (failed.status === 404) setOutcome("Nobody waits for this any more: it was answered, or its turn is over.");
      else setNote(failed.message);
    } finally {
      setSending(false);
    }
  };
  const answer = (event) => {
    event?.preventDefault();
    if (!item || sending || offline || outcome || !clickCounts()) return;
    const wrong = {};
    for (const field of fields) {
      const given = values[field.name];
      const empty = given === undefined || given === "" || (Array.isArray(given) && !given.length);
      if (field.required && empty && field.type !== "boolean") wrong[field.name] = "This is needed.";
      else if (!empty && ["integer", "number"].includes(field.type) && !Number.isFinite(Number(given))) wrong[field.name] = "This is no number.";
    }
    setInvalid(wrong);
    if (Object.keys(wrong).length) return;
    send("reply", { answers: fields.map((field) => list(values[field.name], field)) });
  };
  useKeys(ITEM, { "Ctrl Enter": answer, o: () => go(`sessions/${part(session)}`) });
  if (!item) return html`<div class="state"><h2>Nobody waits for this any more.</h2>
    <p>It was answered, or its turn is over.</p><p>
    <a class="button" href=${address(`sessions/${part(session)}`)}>Open the session</a></p></div>`;
  const { question } = item;
  const over = outcome ?? (row ? null : "Nobody waits for this any more: it was answered, or its turn is over.");
  return html`<header class="head"><p class="crumbs">
    <a class="back" href=${address("inbox")} aria-label="Back to the list"><${Icon} name="back" /></a>
    <${Icon} name="agents" /> ${item.agent} › <${Agent} mono=${false} text=${item.sessionTitle ?? session} />${item.folder &&
    html` <span class="where"><${Icon} name="folder" /> <code>${folder(item.folder)}</code></span>`}
    <span class="grow" />
    <a class="asked" href=${address(`sessions/${part(session)}`)}>Open where it was asked <kbd>o</kbd></a></p>
      <h1 tabindex="-1" ref=${heading}>A question of the agent</h1><p class="facts"><span class="pill">
        <${Left} since=${item.since} until=${item.expiresAt} words="left" /></span></p></header>
    <form class="body question" onSubmit=${answer} id="question"><div class="content">
      <div class="prose"><${Markdown} text=${question?.message ?? item.object} /></div>
      ${question?.mode === "url" && html`<p class="panel pad">It wants you to visit a page: <code>
        <${Agent} text=${question.url} /></code><br />${/^https?:\/\//.test(question.url ?? "")
        ? html`<a href=${question.url} target="_blank" rel="noopener noreferrer">Open it outside</a>`
        : html`<span class="muted">This is no web address, so it is no link.</span>`}</p>`}
      ${fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]} wrong=${invalid[field.name]} set=${(value) => setValues({ ...values, [field.name]: value })} />`)}
      <p class="muted">Its turn stands still since ${clock(item.since)}. Nothing is lost if you answer later.</p>
    </div></form>
    <footer class="bar">${note && html`<p class="note bad" role="alert">${note}</p>`}
      ${over ? html`<div class="outcome" role="status"><${Icon} name="good" /><div><b>${over}</b></div></div>
        <${Next} next=${next} />` : !may("operate") ? html`<p>You may look. Answering takes the role operator.</p>`
        : html`<div class="buttons main">
        <button type="submit" form="question" class="filled" disabled=${sending || offline}>Answer <${Key}>Ctrl ↵<//></button>
        <button type="button" disabled=${sending || offline} onClick=${() => send("reject")}>Decline</button></div>
        <p class="silence">${offline ? "Answers need the server."
        : "Declining tells it to go on by itself."}</p>`}</footer>`;
}

function list(value, field) {
  if (field.type === "boolean") return [String(value ?? false)];
  if (value === undefined || value === "") return [];
  return Array.isArray(value) ? value : [String(value)];
}

function Field({ field, value, wrong, set }) {
  const name = `field-${field.name}`;
  const label = html`<${Agent} mono=${false} text=${field.title || field.name} />${!field.required &&
    html` <small>optional</small>`}`;
  const below = html`${field.description && html`<p class="muted">
    <${Agent} mono=${false} text=${field.description} /></p>`}${wrong &&
    html`<p class="note bad" id=${`${name}-wrong`}>${wrong}</p>`}`;
  const choices = field.choices ?? [];
  if (field.type === "boolean") return html`<label class="check">
    <input type="checkbox" checked=${value ?? false} onChange=${(event) => set(event.target.checked)} /> ${label}${below}</label>`;
  if (choices.length && choices.length <= CARDS_UPTO) {
    const picked = field.many ? (value ?? []) : [value];
    const toggle = (each) => (field.many ? set(picked.includes(each) ? picked.filter((one) => one !== each) : [...picked, each]) : set(each));
    return html`<fieldset><legend>${label}</legend>${choices.map((choice) => html`<label key=${choice.value} class=${`option ${picked.includes(choice.value)
      ? "on" : ""}`}><input type=${field.many ? "checkbox"
      : "radio"} name=${name} checked=${picked.includes(choice.value)} onChange=${() => toggle(choice.value)} /> <${Agent} mono=${false} text=${choice.label ?? choice.value} /></label>`)}${below}</fieldset>`;
  }
  if (choices.length) return html`<label class="field">${label}
    <select multiple=${field.many} onChange=${(event) => set(field.many ? [...event.target.selectedOptions].map((each) => each.value) : event.target.value)}>${!field.many &&
    html`<option value="">Choose</option>`}${choices.map((choice) => html`<option key=${choice.value} value=${choice.value}>${choice.label ?? choice.value}</option>`)}</select>${below}</label>`;
  return html`<label class="field">${label}<input type="text" inputmode=${["integer", "number"].includes(field.type)
    ? "decimal" : "text"} value=${value ?? ""} aria-invalid=${wrong
    ? "true" : undefined} aria-describedby=${wrong ? `${name}-wrong` : undefined} onInput=${(event) => set(event.target.value)} />${below}</label>`;
}
