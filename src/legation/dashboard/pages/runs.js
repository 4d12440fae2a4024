// All runs: state by progress, search and filters in the address.
import { html } from "../vendor/preact.js";
import { may, part } from "../api.js";
import { inbox } from "../state/inbox.js";
import { clock, now } from "../state/clock.js";
import { address } from "../state/place.js";
import { Ago, Failed, Icon, Key, Loading } from "../parts/basics.js";
import { Filters, SINCE, asked, matches, usePages, useRowKeys } from "../parts/list.js";
import { RunState, evidence, money } from "./run.js";
import { Agent, number } from "../parts/text.js";

const PAGE = 100;
const STATES = ["queued", "preparing", "running", "waiting", "paused", "suspended", "cleaning", "succeeded", "failed", "timed_out", "cancelled"];

// What a run waits for, as the inbox says it.
function waiting(run) {
  const item = inbox.value?.items.find((each) => each.runId === run.id && each.kind === "approval");
  return item && html`${item.verb} <${Agent} text=${item.object} /> · a no at ${clock(item.expiresAt)}`;
}

export function Runs() {
  const [state, agent, since] = ["state", "agent", "since"].map(asked);
  const url = `v1/runs?details=true&limit=${PAGE}${STATES.includes(state) ? `&state=${state}` : ""}${agent ? `&agent=${part(agent)}` : ""}`;
  const { rows: runs, next, problem, agents, load, more } = usePages(url, { of: "items", key: "id", cursor: "after" });
  useRowKeys(".run-row");
  if (problem && !runs) return html`<main>
    <${Failed} what="the runs" problem=${problem} again=${load} still="Runs that are under way go on." /></main>`;
  const found = (runs ?? []).filter((each) => matches(`${each.title ?? ""} ${each.id} ${each.templateHash ?? ""}`) && (!SINCE[since] || each.createdAt > now.value - SINCE[since]));
  const filtered = asked("q") || state || agent || since;
  return html`<main class="page"><header class="page-head"><h1>Runs <small>${runs && number(runs.length)}${next ? "+" : ""}</small></h1>${may("operate") &&
    html`<a class="button filled" href=${address("runs/new")}><${Icon} name="plus" /> New run <${Key}>n<//></a>`}</header>
    <${Filters} problem=${problem} label="Search titles, ids" selects=${[["state", "State", STATES], ["agent", "Agent", agents], ["since", "Since", Object.keys(SINCE)]]} />
    ${!runs ? html`<${Loading} what="the runs" />` : !runs.length && !filtered ? html`<div class="state quiet-state"><h2>No run yet.</h2>
      <p>A run is work that outlives whoever submitted it. A session is a conversation.</p>${may("operate") && html`<p><a class="button" href=${address("runs/new?agent=rehearsal")}>Rehearse one</a></p>`}</div>`
      : html`<div class="panel"><table class="table runs"><thead><tr><th>State, by progress</th><th>Run</th><th>Agent</th><th class="right">Cost</th><th class="right">Since</th></tr></thead><tbody>
      ${found.map((each) => html`<tr key=${each.id} class="run-row"><td><${RunState} run=${each} /></td><td><a href=${address(`runs/${part(each.id)}`)}><${Agent} mono=${false} text=${each.title ?? each.id} /></a>
        <small>${waiting(each) ?? (evidence(each) ? html`<${Agent} mono=${false} text=${evidence(each)} />` : html`<code>${each.id}</code>`)}</small></td><td>${each.agent}</td>
        <td class="right">${each.costUsd === null ? "" : money(each.costUsd)}</td><td class="right"><${Ago} at=${each.endedAt ?? each.startedAt ?? each.createdAt} suffix="" /></td></tr>`)}
      </tbody></table>${!found.length && html`<p class="pad muted">None of these is such a run.</p>`}<footer class="pad muted">${number(found.length)} of the ${number(runs.length)} loaded${next
        ? html` · <button type="button" class="link" onClick=${more}>Load more</button>` : ""}
        <span class="grow" />Search and filters stand in the address.</footer></div>`}
  </main>`;
}
