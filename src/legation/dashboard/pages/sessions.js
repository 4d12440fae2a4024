// All sessions: search and filters stand in the address.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, may, part } from "../api.js";
import { changed } from "../state/inbox.js";
import { address } from "../state/place.js";
import { Ago, Failed, Icon, Key, Loading } from "../parts/basics.js";
import { Filters, SINCE, asked, useRowKeys } from "../parts/list.js";
import { State } from "./session.js";
import { Agent, folder, number } from "../parts/text.js";

const PAGE = 200;
const TYPED_MS = 150; // between two letters
const STATES = ["waiting", "working", "wrong", "idle", "ended"];
const waits = (each) => [...(each.pendingPermissions ?? []), ...(each.pendingQuestions ?? [])];

export function Sessions() {
  const [sessions, setSessions] = useState(null);
  const [next, setNext] = useState(null);
  const [problem, setProblem] = useState(null);
  const [agents, setAgents] = useState([]);
  const [search, agent, status, since] = ["q", "agent", "status", "since"].map(asked);
  const filtered = search || agent || status || since;
  const url = `v1/sessions?limit=${PAGE}${search ? `&search=${part(search)}` : ""}${agent ? `&agent=${part(agent)}` : ""}${STATES.includes(status) ? `&state=${status}` : ""}`;
  const latest = useRef(url); // an answer to what was typed before is none any more
  latest.current = url + since;
  const read = (behind, shown) => {
    const mine = latest.current;
    const from = SINCE[since] ? `&since=${Date.now() - SINCE[since]}` : "";
    return get(`${url}${from}${behind ? `&cursor=${part(behind)}` : ""}`).then((told) => {
      if (mine !== latest.current) return;
      setSessions([...shown, ...told.sessions]);
      setNext(told.next ?? null);
      setProblem(null);
      setAgents((before) => [...new Set([...before, ...told.sessions.map((each) => each.agent), ...(agent ? [agent] : [])])].sort());
    }, setProblem);
  };
  const load = () => read(null, []);
  useEffect(() => {
    const due = setTimeout(load, sessions ? TYPED_MS : 0);
    return () => clearTimeout(due);
  }, [changed.value, url, since]);
  useRowKeys(".session-row");
  if (problem && !sessions) return html`<main>
    <${Failed} what="the sessions" problem=${problem} again=${load} still="Sessions that are under way go on." /></main>`;
  return html`<main class="page"><header class="page-head"><h1>Sessions <small>${sessions && number(sessions.length)}${next ? "+"
    : ""}</small></h1>${may("operate") && html`<a class="button filled" href=${address("sessions/new")}>
    <${Icon} name="plus" /> New session <${Key}>n<//></a>`}</header>
    <${Filters} label="Search titles, ids, folders" selects=${[["status", "State", STATES], ["agent", "Agent", agents], ["since", "Since", Object.keys(SINCE)]]} />
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
      </tbody></table>${!sessions.length && html`<p class="pad muted">${next ? "None of the newest 2,000 is such a session." : "There is no such session."}</p>`}
      <footer class="pad muted">${number(sessions.length)}${next
        ? html` · <button type="button" class="link" onClick=${() => read(next, sessions)}>${filtered ? "Look further" : "Load more"}</button>` : ""}
        <span class="grow" />Search and filters stand in the address.</footer></div>`}
  </main>`;
}
