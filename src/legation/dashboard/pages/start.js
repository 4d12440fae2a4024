// The guided start: one press to a rehearsal with a real approval and a real diff.
import { html, useState } from "../vendor/preact.js";
import { may, part, post } from "../api.js";
import { address, go } from "../state/place.js";
import { ITEM, useKeys } from "../state/keys.js";
import { Icon, Key, Level } from "../parts/basics.js";

// Played by the built-in agent word for word: it needs no key, no network and no folder of yours.
const SCRIPT = `#!rehearse
title A rehearsal
plan Look at the task; Write the file; Say what was done
think The owner wants to see how asking works. A small file will do.
say I will write a small Python file, and **ask you** before I do.
plan-done 1
ask write hello.py def greet(name: str) -> str:\\n    return f"Hello, {name}!"\\n\\n\\nprint(greet("world"))\\n
plan-done 2
ask edit hello.py "Hello, => "Good morning,
say Done: \`hello.py\` greets. Each step stands above, with who decided it and why.
plan-done 3`;
const STEPS = [
  ["policy", "good", "It plans and speaks.", "You see it as it happens."],
  ["person", "wait", "It asks you to write a file.", "You see the text, why you are asked and how long you have."],
  ["person", "wait", "It asks you to change a line.", "You see the diff. A no with a reason reaches it, too."],
  ["policy", "good", "It ends.", "What changed, who decided, and what it cost."],
];

export function Start({ title = "See it once from end to end." }) {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const start = async () => {
    if (busy) return;
    setBusy(true);
    const id = `rehearsal-${Date.now().toString(36)}`;
    try {
      await post(`v1/sessions/${part(id)}`, { agent: "rehearsal", title: "A rehearsal" });
      await post(`v1/sessions/${part(id)}/messages`, { message: SCRIPT });
      go(`sessions/${part(id)}`);
    } catch (failed) {
      setProblem(failed);
      setBusy(false);
    }
  };
  useKeys(ITEM, { Enter: start });
  return html`<div class="start"><h1>${title}</h1>
    <p class="lead">A scripted agent writes a small file and asks you before each change. No key, no network, one minute.</p>
    ${may("operate") ? html`<p class="buttons"><button type="button" class="filled" disabled=${busy} onClick=${start}>
      <${Icon} name="runs" /> Start the rehearsal <${Key}>↵<//></button>
      <a class="button quiet" href=${address("sessions/new?agent=claude")}>Start with claude instead</a></p>`
      : html`<p>You may look. Beginning a session takes the role operator.</p>`}
    ${problem && html`<p class="note bad" role="alert">${problem.message}</p>`}
    <ul class="panel steps">${STEPS.map(([level, tone, what, more], at) => html`<li key=${at}>
      <${Level} level=${level} tone=${tone} /><b>${what}</b> <span class="muted">${more}</span></li>`)}</ul>
    <p class="muted legend">
      <${Level} level="policy" /> a rule decides <${Level} level="supervisor" /> a supervisor decides <${Level} level="person" /> a person decides</p></div>`;
}
