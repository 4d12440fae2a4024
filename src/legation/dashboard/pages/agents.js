// Agents: which are here, in which version, signed in or not, and the one next step of each.
import { html, signal, useEffect, useState } from "../vendor/preact.js";
import { Problem, get, may, open, part, read } from "../api.js";
import { readEvents } from "../state/stream.js";
import { address } from "../state/place.js";
import { Chip, Copy, Failed, Icon, Loading } from "../parts/basics.js";
import { megabytes } from "../parts/text.js";

// What this tab installs, by agent: {done, total} in bytes, as far as they are known. It goes on while somebody looks at other pages.
const installs = signal({});
const ended = signal(0); // how many: then the list is another
const say = (name, told) => (installs.value = { ...installs.value, [name]: told });

async function install(name) {
  const path = `v1/agents/${part(name)}/install/stream`;
  const stop = new AbortController();
  const tell = (told) => say(name, { ...told, cancel: () => stop.abort() });
  let last = null;
  tell({});
  try {
    const answer = await open("POST", path, {}, stop.signal);
    if (!answer.ok) await read(answer, path);
    await readEvents(answer.body, (kind, told) => (kind === "progress" ? tell(told) : (last = { kind, told })));
    if (last?.kind !== "installed") throw new Problem(last?.told.status ?? 0, last?.told ?? {});
    say(name, null);
  } catch (failed) {
    say(name, stop.signal.aborted ? null : { failed: failed instanceof Problem ? failed : new Problem(0, {}) });
  }
  ended.value++;
}

export function Agents() {
  const [agents, setAgents] = useState(null);
  const [problem, setProblem] = useState(null);
  const load = (again) => get(`v1/agents${again ? "?no_cache=true" : ""}`).then((told) => { setAgents(told.agents); setProblem(null); }, setProblem);
  useEffect(() => void load(ended.value > 0), [ended.value]);
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
  const told = installs.value[agent.id];
  const installing = told?.cancel ? told : null;
  const problem = told?.failed;
  const builtIn = agent.id === "rehearsal";
  const broken = agent.installed && agent.problem;
  const missing = !agent.installed && !agent.wantedVersion; // of no lock of ours: its own people install it
  const here = installing ? html`<${Installing} ...${installing} />` : broken
    ? html`<${Chip} tone="bad" icon="wrong">Does not start<//>` : builtIn
    ? html`<${Chip} tone="good" icon="check">Built in<//>` : agent.installed
    ? html`<${Chip} tone="good" icon="check">Installed<//>` : html`<${Chip}>Not installed<//>`;
  const command = `legation agents login ${agent.id}`;
  const signedOut = agent.signIn === "signed out" && !agent.credentialsAvailable;
  return html`<tr><td><b>${agent.id}</b><small>${builtIn
    ? "built in, scripted, needs no key" : agent.title}</small></td><td>${here}</td><td>
    <code>${agent.version ?? agent.wantedVersion ?? "unknown"}</code>${agent.installed && agent.version === agent.wantedVersion && html` <span class="muted">as locked</span>`}</td>
    <td>${builtIn || agent.signIn === "not needed" ? "not needed" : agent.credentialsAvailable
      ? html`<span class="good">A credential is here</span>` : signedOut && agent.installed
      ? html`<span class="wait-word">Signed out</span> <code>${command}</code> <${Copy} text=${command} />` : agent.signIn || "asked for when it starts"}${broken ? html`<p class="note bad">${agent.problem}</p>` : missing && html`<p class="note">${agent.problem}</p>`}${problem &&
      html`<p class="note bad" role="alert">${problem.message}</p>`}</td>
    <td class="right">${!may("operate") ? null : installing
      ? html`<button type="button" class="quiet" onClick=${installing.cancel}>Cancel</button>` : broken
      ? html`<button type="button" onClick=${() => reload(true)}>Try again</button>` : agent.installed || builtIn
      ? html`<a class="button" href=${address(`sessions/new?agent=${part(agent.id)}`)}>New session</a>`
      : missing ? null : html`<button type="button" onClick=${() => install(agent.id)}>Install</button>`}</td></tr>`;
}

// By bytes; when all have come they are unpacked, and each file is compared with the lock.
function Installing({ done = 0, total = 0 }) {
  const words = !total ? "asking the registry" : done < total ? `${megabytes(done)} of ${megabytes(total)} MB` : "checking hashes";
  return html`<div class="installing" role="status"><span class="work">Installing</span> <span class="muted">${words}</span>
    <progress aria-label="Installing" max=${total || 1} value=${done} /></div>`;
}
