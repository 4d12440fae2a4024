// All sessions: search and filters stand in the address.
import { html, useEffect, useState } from "../vendor/preact.js";
import { get, may, part } from "../api.js";
import { changed } from "../state/inbox.js";
import { now } from "../state/clock.js";
import { address } from "../state/place.js";
import { Ago, Failed, Icon, Key, Loading } from "../parts/basics.js";
import { Filters, SINCE, asked, matches, useRowKeys } from "../parts/list.js";
import { State } from "./session.js";
import { Agent, folder, number } from "../parts/text.js";

const PAGE = 200;
const STATES = {
  waiting: (each) => (each.pendingPermissions?.length ?? 0) + (each.pendingQuestions?.length ?? 0) > 0,
  working: (each) => each.busy,
  wrong: (each) => each.failed || each.cut,
  idle: (each) => !each.busy && each.status !== "closed",
  ended: (each) => each.status === "closed",
};

export function Sessions() {
  const [sessions, setSessions] = useState(null);
  const [next, setNext] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = () =>
    get(`v1/sessions?limit=${PAGE}`).then((told) => {
      setSessions(told.sessions);
      setNext(told.next ?? null);
      setProblem(null);
    }, setProblem);
  const more = () => get(`v1/sessions?limit=${PAGE}&cursor=${part(next)}`).then((told) => {
    setSessions([...sessions, ...told.sessions]);
    setNext(told.next ?? null);
  }, setProblem);
  useEffect(() => void load(), [changed.value]);
  const [agent, status, since] = ["agent", "status", "since"].map(asked);
  const found = (sessions ?? []).filter(
    (each) =>
      matches(`${each.title ?? ""} ${each.sessionId} ${each.directory ?? ""}`) &&
      (!agent || each.agent === agent) &&
      (!STATES[status] || STATES[status](each)) &&
      (!SINCE[since] || each.updatedAt > now.value - SINCE[since]),
  );
  useRowKeys(".session-row");
  if (problem && !sessions) return html`<main>
    <${Failed} what="the sessions" problem=${problem} again=${load} still="Sessions that are under way go on." /></main>`;
  const agents = [...new Set((sessions ?? []).map((each) => each.agent))].sort();
  return html`<main class="page"><header class="page-head"><h1>Sessions <small>${sessions && number(sessions.length)}${next ? "+"
    : ""}</small></h1>${may("operate") && html`<a class="button filled" href=${address("sessions/new")}>
    <${Icon} name="plus" /> New session <${Key}>n<//></a>`}</header>
    <${Filters} label="Search titles, ids, folders" selects=${[["status", "State", Object.keys(STATES)], ["agent", "Agent", agents], ["since", "Since", Object.keys(SINCE)]]} />
    ${/* The search field is there before the list is: who presses / and types at once gives no commands by it. */
      !sessions ? html`<${Loading} what="the sessions" />` : sessions.length === 0 ? html`<div class="state quiet-state"><h2>No session yet.</h2><p>
      <a class="button filled" href=${address("start")}>Begin with a rehearsal</a></p></div>` : html`<div class="panel">
      <table class="table sessions"><thead><tr><th>State</th><th>Session</th><th>Agent</th><th class="right">Events</th>
      <th class="right">Last</th></tr></thead><tbody>
      ${found.map((each) => html`<tr key=${each.sessionId} class="session-row"><td>
        <${State} info=${each} asks=${STATES.waiting(each) ? [1] : []} /></td><td>
        <a href=${address(`sessions/${part(each.sessionId)}`)}>
        <${Agent} mono=${false} text=${each.title ?? each.sessionId} /></a><small>
        <code>${folder(each.directory)}</code></small></td><td>${each.agent}</td>
        <td class="right">${number(each.eventCount)}</td><td class="right">
        <${Ago} at=${each.updatedAt} suffix="" /></td></tr>`)}
      </tbody></table><footer class="pad muted">${number(found.length)} of ${number(sessions.length)}${next
        ? html` · <button type="button" class="link" onClick=${more}>Load more</button>` : ""}
        <span class="grow" />Search and filters stand in the address.</footer></div>`}
  </main>`;
}
