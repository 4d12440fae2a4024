// A new run or session: one form with a switch, which shows the same as a command line and as Python. Every field but a key may be given
// in the address.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, may, part, post } from "../api.js";
import { address, go, query } from "../state/place.js";
import { ITEM, useKeys } from "../state/keys.js";
import { Copy, Icon, Key } from "../parts/basics.js";
import { highlighted, useHighlight } from "../parts/code.js";
import { KeyField, secretsOf } from "../parts/key.js";

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const random = () => crypto.getRandomValues(new Uint32Array(1))[0].toString(36);
const newId = () => `ses-${Date.now().toString(36)}-${random()}`;
const TASK = "What should be done";
const HOURS = { "": "24 h, or as the server says", 900: "15 min", 3600: "1 h", 14400: "4 h", 86400: "24 h" };
const isAddress = (place) => /^[a-z+]+:\/\/|^[^/@]+@[^/:]+:/.test(place);
export const workspaceOf = (place) => (!place ? { type: "empty" } : isAddress(place) ? { type: "git", url: place } : { type: "folder", path: place });

export function commandLine(form, keys, isRun) {
  const { prompt, agent, directory, model, mode, timeout } = form;
  const flags = isRun
    ? [`--agent ${agent}`, directory && `--repo ${quote(directory)}`, model && `--model ${quote(model)}`, timeout && `--timeout ${timeout}`, keys.length && "--key-file ~/.keys/model"]
    : [directory && `--directory ${quote(directory)}`, model && `--model ${quote(model)}`, mode !== "default" && `--permission-mode ${mode}`];
  return [`legation ${isRun ? "run" : `sessions new ${agent}`} ${quote(prompt || TASK)}`, ...flags.filter(Boolean)].join(" \\\n  ");
}

export function python(form, keys, isRun) {
  const { prompt, agent, directory, model, mode, timeout } = form;
  const text = JSON.stringify;
  const member = ([name, value]) => `        ${name}=${value},\n`;
  if (!isRun) {
    const named = [["directory", directory], ["model", model], ["permission_mode", mode === "default" ? "" : mode]].filter(([, value]) => value).map(([name, value]) => [name, text(value)]);
    return `from legation.client import Legation\n\nwith Legation.find() as legation:\n    session = legation.sessions.create(\n        ${text(agent)},\n${named.map(member).join("")}    )\n    for event in session.turn(${text(prompt || TASK)}):\n        print(event.type)`;
  }
  const place = workspaceOf(directory);
  const kind = { folder: `FolderPlace(path=${text(directory)})`, git: `GitPlace(url=${text(directory)})` }[place.type];
  const named = [kind && ["workspace", kind], model && ["model", text(model)], timeout && ["timeouts", `RunTimeouts(run=${timeout})`], keys.length && ["keys", `{${text(keys[0])}: key_from_your_vault}`]].filter(Boolean);
  const shapes = [kind && kind.split("(")[0], timeout && "RunTimeouts"].filter(Boolean);
  return `from legation.client import Legation\n${shapes.length ? `from legation.wire.api.runs import ${shapes.join(", ")}\n` : ""}\nwith Legation.find() as legation:\n    run = legation.run(\n        ${text(agent)},\n        ${text(prompt || TASK)},\n${named.map(member).join("")}    )\n    print(run.wait().state)`;
}

export function New({ kind }) {
  useHighlight();
  const isRun = kind === "runs";
  const given = (name, otherwise = "") => query.value.get(name) ?? otherwise;
  const [form, setForm] = useState({ prompt: given("prompt"), agent: given("agent", "rehearsal"), directory: given("directory"), model: given("model"), title: given("title"), policy: given("policy"), timeout: given("timeout"), mode: "default" });
  const [key, setKey] = useState("");
  const [agents, setAgents] = useState([]);
  const [policies, setPolicies] = useState([]);
  const [problem, setProblem] = useState(null);
  const [sending, setSending] = useState(false);
  const once = useRef(`page-${Date.now().toString(36)}-${random()}`); // a press whose answer was lost makes no second run
  useEffect(() => void get("v1/agents").then((told) => setAgents(told.agents), setProblem), []);
  useEffect(() => void get("v1/policy").then((told) => setPolicies(told.policies.map((each) => each.name)), () => {}), []);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const chosen = agents.find((each) => each.id === form.agent);
  const keys = chosen?.keyProviders ?? [];
  const missing = [!form.prompt.trim() && "what should be done", isRun && keys.length > 0 && !key && "the key"].filter(Boolean);
  const submit = async () => {
    const body = { agent: form.agent, prompt: form.prompt, workspace: workspaceOf(form.directory), idempotencyKey: once.current, secrets: secretsOf(keys, key) };
    if (form.model) body.model = form.model;
    if (form.policy) body.policy = form.policy;
    if (form.timeout) body.timeouts = { run: Number(form.timeout) };
    const run = await post("v1/runs", body);
    go(`runs/${part(run.id)}`);
  };
  const begin = async () => {
    const id = newId();
    const made = { agent: form.agent, permissionMode: form.mode, title: form.title || form.prompt.split("\n")[0].slice(0, 80) };
    if (form.directory) made.directory = form.directory;
    if (form.model) made.model = form.model;
    const told = await post(`v1/sessions/${part(id)}`, made);
    if (!told.healthy) throw new Error(told.error?.message ?? "The agent did not start.");
    await post(`v1/sessions/${part(id)}/messages`, { message: form.prompt });
    go(`sessions/${part(id)}`);
  };
  const start = async (event) => {
    event?.preventDefault();
    if (sending || missing.length) return;
    setSending(true);
    setProblem(null);
    try {
      await (isRun ? submit() : begin());
    } catch (failed) {
      if (failed.status >= 400) once.current = `page-${Date.now().toString(36)}-${random()}`; // it was refused: another try is another run
      setProblem(failed);
      setSending(false);
    }
  };
  useKeys(ITEM, { "Ctrl Enter": start });
  const noun = isRun ? "run" : "session";
  if (!may("operate")) return html`<main class="page"><h1>New ${noun}</h1>
    <p>You may look. Beginning a ${noun} takes the role operator.</p></main>`;
  const shown = (icon, label, text, name) => html`<section class="panel same"><header><${Icon} name=${icon} /> ${label}
    <span class="grow" /><${Copy} text=${text} label=${`Copy: ${label}`} /></header>
    <pre class="pad" tabindex="0">${highlighted(text, name)}</pre></section>`;
  const way = (name, words) => html`<a class="button" aria-current=${kind === name ? "true" : undefined} href=${address(`${name}/new?agent=${part(form.agent)}&prompt=${part(form.prompt.slice(0, 2000))}&directory=${part(form.directory)}`)}>${words}</a>`;
  return html`<main class="page"><p class="crumbs"><a href=${address(kind)}>${isRun ? "Runs" : "Sessions"}</a> › New</p>
    <header class="page-head"><h1>New ${noun}</h1><nav class="switch" aria-label="Kind">${way("runs", "Run, unattended")}${way("sessions", "Session, to talk")}</nav></header>
    <form class="two" onSubmit=${start}><div>
      <label class="field">What should be done<textarea rows="5" required value=${form.prompt} onInput=${set("prompt")} /></label>
      <div class="pair"><label class="field">Agent<select value=${form.agent} onChange=${set("agent")}>${agents.map((each) => html`<option key=${each.id} value=${each.id}>${each.id}${each.version ? ` ${each.version}`
        : ""}${each.installed ? "" : each.wantedVersion ? " (installed first)" : " (not here)"}</option>`)}</select></label>
        <label class="field">Model <small>optional</small>
          <input type="text" value=${form.model} onInput=${set("model")} spellcheck=${false} /></label></div>
      ${chosen?.problem && (chosen.installed || !chosen.wantedVersion) && html`<p class="note wait-word">${chosen.problem}</p>`}
      <label class="field">Where <small>optional</small>
        <input type="text" class="mono" placeholder=${isRun ? "a folder of the server, or a repository's address" : "a folder of its own"} value=${form.directory} onInput=${set("directory")} spellcheck=${false} /></label>
      <p class="muted">${isRun && isAddress(form.directory) ? "It is cloned for this run alone." : "The agent works in this very folder. Without one it gets a folder of its own."}</p>
      ${isRun ? html`<div class="pair"><label class="field">Rules<select value=${form.policy} onChange=${set("policy")}><option value="">as the policies say</option>${policies.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
        <label class="field">Stop after<select value=${form.timeout} onChange=${set("timeout")}>${Object.entries(HOURS).sort(([one], [other]) => one - other).map(([seconds, words]) => html`<option key=${seconds} value=${seconds}>${words}</option>`)}</select></label></div>
        <${KeyField} providers=${keys} agent=${form.agent} value=${key} set=${setKey} />`
        : html`<label class="field">Title <small>optional</small><input type="text" maxlength="512" value=${form.title} onInput=${set("title")} /></label>
      <label class="field">Rules<select value=${form.mode} onChange=${set("mode")}>
        <option value="default">as the policy says</option><option value="plan">plan only</option>${may("approve") &&
        html`<option value="acceptEdits">edits in its folder without asking</option>`}</select></label>`}
    </div><div><h2>The same from elsewhere</h2>${shown("execute", "Command line", commandLine(form, keys, isRun), "bash")}${shown("file", "Python", python(form, keys, isRun), "python")}
      ${isRun && keys.length > 0 && html`<p class="muted">Neither ever shows the key that you typed.</p>`}</div>
    <footer class="form-bar">${problem && html`<p class="note bad" role="alert">${problem.message}</p>`}
      <button type="submit" class="filled" disabled=${sending || missing.length > 0}>Start the ${noun} <${Key}>Ctrl ↵<//></button>
      <span class="muted">${missing.length ? `${missing.length === 1 ? "One thing is" : "Two things are"} missing: ${missing.join(", and ")}.` : ""}</span>
      <span class="grow" /><span class="muted">Nothing is sent before you press.</span></footer></form></main>`;
}
