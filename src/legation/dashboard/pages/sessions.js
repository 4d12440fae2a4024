// All sessions: search and filters stand in the address.
import { html } from "../vendor/preact.js";
import { may, part } from "../api.js";
import { address } from "../state/place.js";
import { Ago, Failed, Icon, Key, Loading } from "../parts/basics.js";
import { Filters, SINCE, asked, usePages, useRowKeys } from "../parts/list.js";
import { State } from "./session.js";
import { Agent, folder, number } from "../parts/text.js";

const PAGE = 200;
const STATES = ["waiting", "working", "wrong", "idle", "ended"];
const waits = (each) => [...(each.pendingPermissions ?? []), ...(each.pendingQuestions ?? [])];

export function Sessions() {
  const [search, agent, status, since] = ["q", "agent", "status", "since"].map(asked);
  const filtered = search || agent || status || since;
  const url = `v1/sessions?limit=${PAGE}${search ? `&search=${part(search)}` : ""}${agent ? `&agent=${part(agent)}` : ""}${STATES.includes(status) ? `&state=${status}` : ""}`;
  const { rows: sessions, next, problem, agents, load, more } = usePages(url, { of: "sessions", key: "sessionId", cursor: "cursor", since });
  useRowKeys(".session-row");
  if (problem && !sessions) return html`<main>
    <${Failed} what="the sessions" problem=${problem} again=${load} still="Sessions that are under way go on." /></main>`;
  return html`<main class="page"><header class="page-head"><h1>Sessions <small>${sessions && number(sessions.length)}${next ? "+"
    : ""}</small></h1>${may("operate") && html`<a class="button filled" href=${address("sessions/new")}>
    <${Icon} name="plus" /> New session <${Key}>n<//></a>`}</header>
    <${Filters} problem=${problem} label="Search titles, ids, folders" selects=${[["status", "State", STATES], ["agent", "Agent", agents], ["since", "Since", Object.keys(SINCE)]]} />
    ${/* The search field is there before the list is: who presses / and types at once gives no commands by it. */
      !sessions ? html`<${Loading} what="the sessions" />` : sessions.length === 0 && !filtered ? html`<div class="state quiet-state"><h2>No session yet.</h2><p>
      <a class="button filled" href=${address("start")}>Begin with a rehearsal</a></p></div>` : html`<div class="panel">
      <table class="table sessions"><thead><tr><th>State</th><th>Session</th><th>Agent</th><th class="right">Events</th>
      <th class="right">Last</th></tr></thead><tbody>
      ${sessions.map((each) => html`<tr key=${each.sessionId} class="session-row"><td>
        <${State} info=${each} asks=${waits(each)} /></td><td>
        <a href=${address(`sessions/${part(each.sessionId)}`)}>
        <${Agent} mono=${false} text=${each.title ?? each.sessionId} /></a><small>
        <code>${folder(each.directory)}</code></small></td><td>${each.agent}</td>
        <td class="right">${number(each.eventCount)}</td><td class="right">
        <${Ago} at=${each.updatedAt} suffix="" /></td></tr>`)}
      </tbody></table>${!sessions.length && html`<p class="pad muted">${next ? "None so far is such a session." : "There is no such session."}</p>`}
      <footer class="pad muted">${number(sessions.length)}${next
        ? html` · <button type="button" class="link" onClick=${more}>${filtered ? "Look further" : "Load more"}</button>` : ""}
        <span class="grow" />Search and filters stand in the address.</footer></div>`}
  </main>`;
}
