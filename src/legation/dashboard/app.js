// The shell: navigation, sign-in, title and badge, the keys that hold everywhere, and the page that the address names.
import { effect, html, render, useEffect, useState } from "./vendor/preact.js";
import { get, may, me, post, signedOut } from "./api.js";
import { connection } from "./state/stream.js";
import { address, go, path } from "./state/place.js";
import { DIALOG, SHELL, useKeys } from "./state/keys.js";
import { followInbox, needing as waiting } from "./state/inbox.js";
import { ConnectionLine, Failed, Icon, Key, Loading } from "./parts/basics.js";
import { Inbox } from "./pages/inbox.js";
import { Session } from "./pages/session.js";
import { Sessions } from "./pages/sessions.js";
import { Runs } from "./pages/runs.js";
import { Run } from "./pages/run.js";
import { New } from "./pages/new.js";
import { Agents } from "./pages/agents.js";
import { Start } from "./pages/start.js";
import { SignIn } from "./pages/sign_in.js";

const PLACES = [
  ["inbox", "Inbox", "inbox"],
  ["sessions", "Sessions", "sessions"],
  ["runs", "Runs", "runs"],
  ["agents", "Agents", "agents"],
];
const KEYS = [
  ["j k", "next, previous"],
  ["a", "approve (a group: all)"],
  ["d", "deny: opens the reason"],
  ["e", "escalate, where it is with the supervisor"],
  ["w", "other arguments, then approve"],
  ["t", "allow for a time"],
  ["o", "open where it was asked"],
  ["x", "looked at: away with it"],
  ["Ctrl Enter", "submit from a long field"],
  ["Esc", "close the innermost thing, decide nothing"],
  ["/, Ctrl F", "search; find in a transcript"],
  ["n", "new session, or run"],
  ["g i, g s, g r, g a", "go to inbox, sessions, runs, agents"],
];

effect(() => {
  const count = waiting();
  document.title = count ? `(${count}) Legation` : "Legation";
  const icon = document.querySelector("link[rel=icon]"); // a dot while something waits
  icon.href = icon.href.replace(/icon(-dot)?\.svg$/, count ? "icon-dot.svg" : "icon.svg");
});

function Rail({ here }) {
  const live = connection.value.state === "live";
  return html`<nav class="rail" aria-label="Legation">
    <a class="logo" href=${address("inbox")} aria-label="Legation, inbox"><svg viewBox="0 0 24 24" aria-hidden="true">
      <path d="M6 4v16h13" /><circle cx="16" cy="8" r="3.5" /></svg></a>
    ${PLACES.map(
      ([name, label, icon]) => html`<a class="place" href=${address(name)} aria-current=${here === name
        ? "page" : undefined}>
        <${Icon} name=${icon} /><span>${label}</span>
        ${name === "inbox" && waiting() > 0 &&
          html`<b class="badge" aria-label=${`${waiting()} need you`}>${waiting()}</b>`}</a>`,
    )}
    <span class=${`live ${live ? "" : "off"}`}><i />${live ? "Live" : "Away"}</span>
    <${Person} />
  </nav>`;
}

function Person() {
  const [open, setOpen] = useState(false);
  useKeys(DIALOG, open ? { Escape: () => setOpen(false) } : {});
  const out = async () => {
    await post("v1/sign-out").catch(() => {});
    signedOut.value = true;
  };
  return html`<div class="person">
    <button type="button" aria-expanded=${open} aria-label="You" onClick=${() => setOpen(!open)}>
      <${Icon} name="person" /></button>
    ${open &&
    html`<div class="menu" role="group" aria-label="You">
      <p>${me.value.workspace} · you may ${me.value.scopes.join(", ")}</p>
      <a href=${`${address("").replace(/ui\/$/, "")}docs`} target="_blank">API reference</a>
      <button type="button" class="quiet" onClick=${out}>Sign out</button>
    </div>`}
  </div>`;
}

function AllKeys({ close }) {
  useKeys(DIALOG, { Escape: close, "?": close });
  return html`<div class="sheet" role="dialog" aria-label="All keys"><h2>Keys</h2>
    <dl>${KEYS.map(([key, does]) => html`<div><dt><${Key}>${key}<//></dt><dd>${does}</dd></div>`)}</dl>
    <button type="button" onClick=${close}>Close <${Key}>Esc<//></button></div>`;
}

function page([first, second, third, fourth]) {
  if (first === undefined || first === "inbox") {
    return html`<${Inbox} id=${third === "q" ? fourth : second} session=${third === "q" ? second : null} />`;
  }
  if ((first === "sessions" || first === "runs") && second === "new") return html`<${New} key=${first} kind=${first} />`;
  if (first === "runs" && second) return html`<${Run} key=${second} id=${second} />`;
  if (first === "runs") return html`<${Runs} />`;
  if (first === "sessions" && second) return html`<${Session} key=${second} id=${second} />`;
  if (first === "sessions") return html`<${Sessions} />`;
  if (first === "agents") return html`<${Agents} />`;
  if (first === "start") return html`<${Start} />`;
  return html`<main class="state"><h1>Nothing is here.</h1><p>The address names no page of Legation.</p><p>
    <a href=${address("inbox")}>To the inbox</a></p></main>`;
}

function App() {
  const [problem, setProblem] = useState(null);
  const [keys, setKeys] = useState(false);
  const here = path.value;
  const load = () => {
    setProblem(null);
    get("v1/me").then((told) => {
      me.value = told;
      signedOut.value = false;
    }, (failed) => failed.status !== 401 && setProblem(failed));
  };
  useEffect(() => {
    if (here[0] !== "sign-in") load();
  }, []);
  useEffect(() => (me.value && !signedOut.value && may("read") ? followInbox() : undefined), [me.value, signedOut.value]);
  useKeys(SHELL, {
    "?": () => setKeys(!keys),
    "g i": () => go("inbox"),
    "g s": () => go("sessions"),
    "g r": () => go("runs"),
    "g a": () => go("agents"),
    n: () => may("operate") && go(`${here[0] === "runs" ? "runs" : "sessions"}/new`),
  });
  if (signedOut.value || here[0] === "sign-in") return html`<${SignIn} done=${load} />`;
  if (problem) return html`<main>
    <${Failed} what="Legation" problem=${problem} again=${load} still="What agents do goes on." /></main>`;
  if (!me.value) return html`<${Loading} what="Legation" />`;
  const first = here[0] ?? "inbox";
  return html`<div class=${`shell at-${first} ${here.length > 1 ? "inside" : ""}`}>
    <${Rail} here=${first === "start" ? "inbox" : first} />
    <div class="view"><${ConnectionLine} />${page(here)}</div>
    ${keys && html`<${AllKeys} close=${() => setKeys(false)} />`}
  </div>`;
}

render(html`<${App} />`, document.getElementById("page"));
