// One live body for all that this tab shows: /v1/stream, with the position of each stream kept here.
//
// Read with fetch and not with EventSource: that one hides pings (a server that vanished would look alive) and the
// status of a refusal. Positions are ours, so that after any cut exactly the rest is asked for: no gap, no duplicate.
import { signal } from "../vendor/preact.js";
import { root, signedOut } from "../api.js";

export const connection = signal({ state: "connecting", since: Date.now(), heard: Date.now() });
const SILENCE_MS = 35_000; // the server pings after 15 s; twice that, and it is gone
const PAUSES_MS = [250, 500, 1000, 2000, 5000];
const followed = new Map(); // name -> {after, take, ended}
let opened = null; // AbortController of the body that is read now
let due = null;
let failures = 0;

export function follow(name, after, take, { ended = () => {}, replaced = () => {} } = {}) {
  const entry = { after, take, ended, replaced };
  followed.set(name, entry);
  reopen(30);
  return () => {
    if (followed.get(name) !== entry) return;
    followed.delete(name);
    reopen(300); // soon another page follows its own
  };
}

export const retryNow = () => reopen(0);
addEventListener("online", retryNow);
addEventListener("offline", () => opened?.abort()); // a body whose network is gone would look alive until it is due to ping

function reopen(pause) {
  clearTimeout(due);
  due = setTimeout(open, pause);
}

function say(state) {
  const before = connection.value;
  const now = Date.now();
  connection.value = {
    state,
    since: before.state === state ? before.since : now,
    heard: state === "live" ? now : before.heard,
  };
}

async function open() {
  opened?.abort();
  if (followed.size === 0 || signedOut.value) return;
  const mine = (opened = new AbortController());
  const names = [...followed.keys()];
  const list = names.map((name) => `${encodeURIComponent(name)}@${followed.get(name).after}`).join(",");
  let watch = null;
  const alive = () => {
    clearTimeout(watch);
    watch = setTimeout(() => mine.abort(), SILENCE_MS);
  };
  try {
    alive();
    const answer = await fetch(`${root}v1/stream?streams=${encodeURIComponent(list)}`, {
      headers: { accept: "text/event-stream" },
      credentials: "same-origin",
      cache: "no-store",
      signal: mine.signal,
    });
    if (!answer.ok) await refused(answer, names);
    else {
      failures = 0;
      say("live");
      await readEvents(answer.body, take, () => {
        alive();
        connection.value.heard = Date.now(); // no news for those who watch: the state is as it was
      });
    }
  } catch {
    // A cut: what follows is the same as after a refusal.
  } finally {
    clearTimeout(watch);
  }
  if (opened !== mine || signedOut.value) return; // another body took its place
  say("lost");
  reopen(PAUSES_MS[Math.min(failures++, PAUSES_MS.length - 1)]);
}

async function refused(answer, names) {
  if (answer.status === 401) signedOut.value = true;
  const told = await answer.json().catch(() => ({}));
  const name = names.find((each) => (told.detail ?? "").includes(each)) ?? (names.length === 1 ? names[0] : null);
  if (name === null) return;
  const entry = followed.get(name);
  if (answer.status === 404) {
    followed.delete(name);
    entry?.ended();
  } else if (answer.status === 409) {
    entry?.replaced(); // an older backup was restored: whoever follows reads anew
  }
}

// Server-sent events of any body: `take(kind, told)` for each, `alive` whenever something comes.
export async function readEvents(body, take, alive = () => {}) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    rest += decoder.decode(value, { stream: true });
    let end;
    let from = 0;
    while ((end = rest.indexOf("\n\n", from)) >= 0) {
      frame(rest.slice(from, end), take);
      from = end + 2;
    }
    rest = rest.slice(from);
  }
}

function frame(text, take) {
  let kind = "message";
  let data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("event:")) kind = line.slice(6).trim();
    else if (line.startsWith("data:")) data += line.slice(5);
  }
  if (data) take(kind, JSON.parse(data));
}

function take(kind, told) {
  const entry = followed.get(told.stream);
  if (kind === "end") {
    followed.delete(told.stream);
    entry?.ended();
  } else if (kind === "message" && entry && told.event.seq > entry.after) {
    entry.after = told.event.seq;
    entry.take(told.event);
  }
}

// What the agent or the server said: an update stands inside the params that the agent sent it in.
export const payload = (event) => (event.update ? event.raw.update : event.raw);
