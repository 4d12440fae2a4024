// A session as rows to read: one fold over its events, which a snapshot may begin.
//
// Rows are keyed by the number of their first event, so that the snapshot's and the events' own rows are the same ones.
import { payload } from "./stream.js";

const textOf = (content) => (content?.type === "text" ? content.text : null);
const ROLES = { "user-message-chunk": "user", "agent-message-chunk": "message", "agent-thought-chunk": "thought" };
const SILENT = new Set(["turn-state", "setup-facts", "available-commands-update", "session-status", "agent-exited"]);

export class Transcript {
  constructor() {
    this.seq = 0;
    this.clear();
  }

  clear() {
    this.rows = [];
    this.calls = new Map();
    this.asks = new Map(); // approval or question -> the row that shows it
    this.messages = new Map();
    this.open = null; // the message that a chunk without an id belongs to
    this.plan = [];
    this.usage = null;
    this.tokens = { in: 0, out: 0, told: false };
    this.title = null;
    this.state = "idle"; // of the turn: running, requires-action, idle
    this.since = null;
    this.status = null; // of the session
    this.decisions = [];
    this.ends = 0; // of prompts
    this.files = new Map();
    this.diagnostics = new Map();
  }

  // A snapshot knows no times and no decisions: those come with the events.
  static fromSnapshot({ seq, snapshot }) {
    const made = new Transcript();
    for (const each of snapshot.prompts ?? []) made.push({ kind: "prompt", seq: each.seq, text: joined(each.prompt) });
    for (const each of snapshot.messages ?? []) {
      const kind = { user: "user", agent: "message", thought: "thought" }[each.role];
      const row = made.push({ kind, seq: each.seq, text: joined(each.content), blocks: each.content.filter((block) => block.type !== "text"), cut: each.truncated });
      if (each.messageId) made.messages.set(`${kind}:${each.messageId}`, row);
    }
    for (const each of snapshot.toolCalls ?? []) made.call(each, { seq: each.seq });
    made.rows.sort((one, other) => one.seq - other.seq);
    made.open = made.rows.find((row) => row.seq === snapshot.open) ?? null;
    made.plan = snapshot.plan ?? [];
    made.usage = snapshot.usage ?? null;
    made.title = snapshot.title ?? null;
    made.seq = seq;
    made.partial = true;
    return made;
  }

  push(row) {
    this.rows.push(row);
    return row;
  }

  take(event) {
    if (event.seq <= this.seq) return;
    this.seq = event.seq;
    const told = payload(event);
    const { type, at, seq } = event;
    if (told === null || typeof told !== "object") {
      this.push({ kind: "unknown", seq, at, name: type, told });
      return;
    }
    const place = { seq, at };
    if (ROLES[type]) this.chunk(ROLES[type], told, place);
    else if (type === "tool-call" || type === "tool-call-update") this.call(told, place);
    else if (HANDLERS[type]) HANDLERS[type](this, told, place);
    else if (!SILENT.has(type) && !type.startsWith("plan-") && type !== "current-mode-update" && type !== "config-option-update") {
      this.push({ kind: "unknown", ...place, name: told.sessionUpdate ?? type, told });
    }
    if (type === "turn-state") {
      if (told.state !== this.state) this.since = at;
      this.state = told.state;
    }
    if (type === "session-status") this.status = told;
  }

  chunk(kind, told, { seq, at }) {
    const key = told.messageId ? `${kind}:${told.messageId}` : null;
    let row = key ? this.messages.get(key) : this.open?.kind === kind ? this.open : null;
    if (!row) {
      row = this.push({ kind, seq, at, text: "", blocks: [] });
      if (key) this.messages.set(key, row);
    }
    const text = textOf(told.content);
    if (text === null) row.blocks = [...row.blocks, told.content];
    else row.text += text;
    row.end = at;
    row.version = seq;
    this.open = row;
  }

  call(told, { seq, at }) {
    let row = this.calls.get(told.toolCallId);
    if (!row) {
      row = this.push({ kind: "call", seq, at, call: {} });
      this.calls.set(told.toolCallId, row);
    }
    if (told.sessionUpdate === "tool_call") this.open = null; // a text behind it is another message
    const { sessionUpdate, seq: _, ...members } = told;
    const kept = Object.entries(members).filter(([name, value]) => value !== null || name === "rawInput" || name === "rawOutput");
    row.call = { ...row.call, ...Object.fromEntries(kept) };
    row.end = at;
    row.version = seq;
    for (const each of row.call.content ?? []) {
      if (each?.type === "diff") this.files.set(each.path, { path: each.path, call: row, oldText: this.files.get(each.path)?.oldText ?? each.oldText, newText: each.newText });
    }
  }
}

const HANDLERS = {
  "prompt-started": (all, told, place) => {
    all.open = null;
    all.push({ kind: "prompt", ...place, text: joined(told.prompt), message: told.message });
  },
  "prompt-finished": (all, told, place) => {
    all.open = null;
    all.ends++;
    if (told.usage) {
      all.tokens = { in: all.tokens.in + (told.usage.inputTokens ?? 0), out: all.tokens.out + (told.usage.outputTokens ?? 0), told: true };
    }
    if (told.error) all.push({ kind: "failure", ...place, text: told.error.message });
    else if (told.stopReason !== "end_turn") all.push({ kind: "line", ...place, text: `The turn ended: ${told.stopReason}` });
  },
  "permission-asked": (all, told, place) => {
    const row = (told.toolCallId && all.calls.get(told.toolCallId)) ?? all.push({ kind: "call", ...place, call: { title: told.title, kind: told.action.kind, rawInput: told.action.params, content: [] } });
    row.ask = told;
    row.version = place.seq;
    all.asks.set(told.id, row);
  },
  "permission-answered": (all, told, place) => {
    const row = all.asks.get(told.id);
    if (row) {
      row.answer = { ...told, at: place.at };
      row.version = place.seq;
    }
    all.decisions.push({ ...told, at: place.at, row });
  },
  "unasked-effect": (all, told, place) => {
    all.push({ kind: "unasked", ...place, told });
  },
  "unasking-mode": (all, told, place) => all.push({ kind: "line", ...place, text: told.putInto ? `It was in the mode ${told.mode}, which does not ask, and was put into ${told.putInto}.` : `It is in the mode ${told.mode}, which does not ask.` }),
  "question-asked": (all, told, place) => all.asks.set(told.id, all.push({ kind: "question", ...place, told })),
  "question-answered": (all, told, place) => {
    const row = all.asks.get(told.id);
    if (row) Object.assign(row, { answer: told, version: place.seq });
  },
  plan: (all, told) => (all.plan = told.entries ?? []),
  "usage-update": (all, told) => (all.usage = told),
  "session-info-update": (all, told) => {
    if (told.title !== undefined) all.title = told.title;
  },
  notice: (all, told, place) => all.push({ kind: "line", ...place, text: [told.title, told.description].filter(Boolean).join(": ") }),
  "session-reset": (all, told, place) => {
    all.clear();
    all.push({ kind: "line", ...place, text: "The agent told its history anew." });
  },
  "compaction-update": (all, told, place) => all.push({ kind: "line", ...place, text: `The agent condenses its context: ${told.status}` }),
  "compaction-summary-chunk": () => {},
  diagnostic: (all, told, place) => {
    const before = all.diagnostics.get(told.code);
    all.diagnostics.set(told.code, { count: (before?.count ?? 0) + 1, message: told.message, at: place.at });
  },
};

const joined = (blocks) => (blocks ?? []).map((block) => textOf(block) ?? (block.uri ? `[${block.name ?? block.uri}]` : "")).join("");
