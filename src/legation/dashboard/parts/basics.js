// Small parts that every page uses: icons, shapes of the three levels, times, keys, chips, and the states of a page.
import { html, useEffect, useState } from "../vendor/preact.js";
import { clock, exact, left, ms, now, span } from "../state/clock.js";
import { connection, retryNow } from "../state/stream.js";

const ICONS = {
  inbox: "M4 13h4l1.5 3h5L16 13h4M4 13l3-8h10l3 8v6H4z",
  sessions: "M4 5h16v11H11l-4 4v-4H4z",
  agents: "M5 9h14v10H5zM12 9V5M9 13v2M15 13v2M2.5 13v3M21.5 13v3",
  runs: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM10 8.5v7l6-3.5z",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  execute: "M4 5h16v14H4zM7 10l3 2.5-3 2.5M12 15h4",
  read: "M2.5 12s3.5-6 9.5-6 9.5 6 9.5 6-3.5 6-9.5 6-9.5-6-9.5-6zM12 9.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z",
  fetch: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20 20l-4-4",
  call: "M9 3v5M15 3v5M6 8h12v3a6 6 0 0 1-12 0zM12 17v4",
  question: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM9.5 9.5a2.5 2.5 0 1 1 3.5 2.300c-.7.3-1 .8-1 1.700M12 16.5v.5",
  wrong: "M12 4L2.5 20h19zM12 10v5M12 17v.5",
  good: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM8 12l3 3 5-6",
  check: "M5 12l5 5 9-11",
  folder: "M3 6h6l2 2h10v11H3z",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 7v5l3 2",
  lock: "M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3",
  bell: "M6 17h12l-1.500-2.500V10a4.500 4.500 0 0 0-9 0v4.500zM10.500 20h3",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  plus: "M12 5v14M5 12h14",
  send: "M12 20V5M6 11l6-6 6 6",
  stop: "M6 6h12v12H6z",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  back: "M14 6l-6 6 6 6",
  open: "M9 6l6 6-6 6",
  down: "M6 9l6 6 6-6",
  think: "M9 18h6M10 21h4M12 3a6 6 0 0 0-3.5 11c.6.5.5 1.5.5 2h6c0-.5-.1-1.5.5-2A6 6 0 0 0 12 3z",
  denied: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM6 6l12 12",
  again: "M20 8a8 8 0 1 0 .8 6M20 3v5h-5",
  key: "M15 4a5 5 0 1 0-4 8l-7 7v2h3l1-2h2l1-3 2-1a5 5 0 0 0 2-11z",
  todo: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  person: "M12 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM4.5 21c.5-4 3.5-6 7.5-6s7 2 7.5 6",
  close: "M6 6l12 12M18 6L6 18",
};
const KINDS = { edit: "edit", delete: "edit", move: "edit", execute: "execute", read: "read", fetch: "fetch", search: "search", think: "think" };

export const Icon = ({ name, label }) => html`<svg class="icon" viewBox="0 0 24 24" role=${label
  ? "img" : undefined} aria-label=${label} aria-hidden=${label ? undefined : "true"}>
  <path d=${ICONS[name] ?? ICONS.call} /></svg>`;
export const KindIcon = ({ kind }) => html`<${Icon} name=${KINDS[kind] ?? "call"} />`;
export const verb = (kind) =>
  ({ edit: "Edit", delete: "Delete", move: "Move", execute: "Run", read: "Read", fetch: "Fetch", search: "Search", think: "Think" })[kind] ?? "Call";

// Square: policy. Diamond: supervisor. Circle: person.
const SHAPES = { policy: "M4 4h16v16H4z", supervisor: "M12 2l10 10-10 10L2 12z", person: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z" };
export const Level = ({ level, tone = "" }) =>
  html`<svg class=${`level ${tone}`} viewBox="0 0 24 24" role="img" aria-label=${level}>
    <path d=${SHAPES[level]} /></svg>`;

export function levelOf(by, name) {
  if (name) return name.startsWith("supervisor:") ? "supervisor" : "person";
  if (!by || by === "policy" || by.startsWith("grant:") || by.startsWith("policy")) return "policy";
  return by.startsWith("user:") || by.startsWith("process:") ? "person" : "supervisor";
}

export const Key = ({ children }) => html`<kbd>${children}</kbd>`;
export const Ago = ({ at, suffix = " ago" }) =>
  at == null ? null : html`<time title=${exact(at)} datetime=${new Date(ms(at)).toISOString()}>${span(now.value - ms(at))}${suffix}</time>`;

export function Left({ since, until, words = "" }) {
  if (until == null) return html`<span class="left"><${Icon} name="clock" />${words ? "no time limit"
    : "no limit"}</span>`;
  const rest = ms(until) - now.value;
  const whole = Math.max(1, ms(until) - ms(since));
  const soon = rest < 120_000 || rest < whole * 0.2;
  const share = Math.min(1, Math.max(0, rest / whole));
  return html`<span class=${`left ${soon ? "soon" : ""}`} title=${exact(until)}>
    <svg class="ring" viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="7" />
      <circle class="rest" cx="10" cy="10" r="7" stroke-dasharray=${`${share * 44} 44`} /></svg>
    ${rest > 0 ? left(rest) : "over"}${words && rest > 0 ? ` ${words}` : ""}</span>`;
}

export const Chip = ({ tone = "", icon, children }) => html`<span class=${`chip ${tone}`}>${icon &&
  html`<${Icon} name=${icon} />`}${children}</span>`;

export function Copy({ text, label = "Copy", words }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(typeof text === "function" ? text() : text).catch(() => {});
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button type="button" class=${words ? "" : "quiet small"} onClick=${copy} aria-label=${words ? undefined : label}><${Icon} name=${copied
    ? "check" : "copy"} />${words}</button>`;
}

// States of a page.

export function Loading({ what }) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150); // what comes sooner needs no shape
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="loading" role="status" aria-label=${`Loading ${what}`}>${late && html`<i /><i /><i />
    <i />`}</div>`;
}

export function Failed({ what, problem, again, still }) {
  return html`<div class="state" role="alert">
    <h2><${Icon} name="wrong" /> Cannot load ${what}.</h2>
    <p>${problem.status ? `The server answered ${problem.status}: ${problem.message}` : problem.message} ${still}</p>
    ${problem.request && html`<p class="muted">Request <code>${problem.request}</code></p>`}
    <p><button type="button" class="filled" onClick=${again}>Try again</button> <${Copy} words="Copy for a report" text=${() => `Cannot load ${what}: ${problem.status || "no answer"}, ${problem.message} ${problem.request}`} /></p>
  </div>`;
}

export function ConnectionLine() {
  const { state, heard } = connection.value;
  const [shownAt, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(state === "lost"), state === "lost" ? 400 : 0);
    return () => clearTimeout(timer);
  }, [state]);
  if (!shownAt || state !== "lost") return null;
  return html`<div class="reconnect" role="status"><${Icon} name="again" />
    <span>${navigator.onLine ? "Reconnecting."
      : "This device is offline."} What you see is as of ${clock(heard)}, ${span(now.value - heard)} ago. Answers need the server.</span>
    <button type="button" class="quiet small" onClick=${retryNow}>Try now</button></div>`;
}
