// Agents: which are here, in which version, signed in or not, and the one next step of each.
import { html, useEffect, useState } from "../vendor/preact.js";
import { get, may, part, post } from "../api.js";
import { address } from "../state/place.js";
import { Chip, Copy, Failed, Icon, Loading } from "../parts/basics.js";

export function Agents() {
  const [agents, setAgents] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = (again) => get(`v1/agents${again ? "?no_cache=true" : ""}`).then((told) => { setAgents(told.agents); setProblem(null); }, setProblem);
  useEffect(() => void load(), []);
  if (problem && !agents) return html`<main>
    <${Failed} what="the agents" problem=${problem} again=${load} still="Sessions go on." /></main>`;
  if (!agents) return html`<${Loading} what="the agents" />`;
  return html`<main class="page"><header class="page-head"><h1>Agents</h1>
    <button type="button" onClick=${() => load(true)}><${Icon} name="again" /> Look again</button></header>
    <p class="muted">Installed once, pinned by hash, never fetched while a prompt waits.</p>
    <div class="panel"><table class="table"><thead><tr><th>Agent</th><th>Here</th><th>Version</th><th>Credentials</th>
      <th><span class="hidden">Next</span></th></tr></thead>
      <tbody>${agents.map((agent) => html`<${Line} key=${agent.id} agent=${agent} reload=${load} />`)}</tbody></table></div>
    <p class="muted">A sign-in happens in a terminal, in a home that Legation keeps for the agent: nothing that you type there passes through this page.</p></main>`;
}

function Line({ agent, reload }) {
  const [installing, setInstalling] = useState(false);
  const [problem, setProblem] = useState(null);
  const install = async () => {
    setInstalling(true);
    setProblem(null);
    await post(`v1/agents/${part(agent.id)}/install`, {}).then(() => reload(true), setProblem);
    setInstalling(false);
  };
  const builtIn = agent.id === "rehearsal";
  const here = installing ? html`<${Chip} tone="work">Installing, checking hashes<//>` : builtIn
    ? html`<${Chip} tone="good" icon="check">Built in<//>` : agent.installed
    ? html`<${Chip} tone="good" icon="check">Installed<//>` : html`<${Chip}>Not installed<//>`;
  const command = `legation agents login ${agent.id}`;
  const signedOut = agent.signIn === "signed out" && !agent.credentialsAvailable;
  return html`<tr><td><b>${agent.id}</b><small>${builtIn
    ? "built in, scripted, needs no key" : agent.title}</small></td><td>${here}</td><td>
    <code>${agent.version ?? agent.wantedVersion ?? "unknown"}</code></td>
    <td>${builtIn ? "not needed" : agent.credentialsAvailable
      ? html`<span class="good">A credential is here</span>` : signedOut && agent.installed
      ? html`<span class="wait-word">Signed out</span> <code>${command}</code> <${Copy} text=${command} />` : agent.signIn || "asked for when it starts"}${agent.installed && agent.problem &&
      html`<p class="note bad">${agent.problem}</p>`}${problem &&
      html`<p class="note bad" role="alert">${problem.message}</p>`}</td>
    <td class="right">${!may("operate") ? null : agent.installed || builtIn
      ? html`<a class="button" href=${address(`sessions/new?agent=${part(agent.id)}`)}>New session</a>`
      : html`<button type="button" disabled=${installing} onClick=${install}>${installing ? "Installing"
      : "Install"}</button>`}</td></tr>`;
}
