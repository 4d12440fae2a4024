// The published sandbox-agent SDK, unmodified, against our server. Prints one JSON object with what it saw.
// node sandbox_agent_sdk.mjs <sdk folder> <what> <work folder> [seconds]; SERVER_URL and SERVER_TOKEN in the environment.
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, what, work, seconds] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(path.join(folder, "dist", file)));
const { InMemorySessionPersistDriver, SandboxAgent } = await load("index.js");
const script = (...steps) => [{ type: "text", text: ["#!rehearse", ...steps].join("\n") }];
const connect = (more = {}) =>
  SandboxAgent.connect({ baseUrl: process.env.SERVER_URL, token: process.env.SERVER_TOKEN, ...more });
const refused = (promise) => promise.then(() => "done", (error) => error.status ?? error.code ?? error.name);
const base64 = (text) => Buffer.from(text).toString("base64");
const textOf = (events, session) =>
  events
    .filter((each) => each.sessionId === session.id && each.payload?.params?.update?.sessionUpdate === "agent_message_chunk")
    .map((each) => each.payload.params.update.content.text)
    .join("");
const watched = (session) => {
  const events = [];
  session.onEvent((event) => events.push(event));
  return events;
};
const until = async (wanted) => {
  const end = Date.now() + 30000;
  while (!wanted()) {
    if (Date.now() > end) throw new Error("it did not come");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
};

const doings = {
  async everything() {
    const sandbox = await connect();
    const session = await sandbox.createSession({ agent: "rehearsal", cwd: work });
    const events = watched(session);
    const first = await session.prompt(script("say hello"));
    await until(() => textOf(events, session) === "hello");
    const kinds = [];
    session.onPermissionRequest((request) => {
      kinds.push(request.toolCall.kind);
      void session.respondPermission(request.id, kinds.length === 1 ? "once" : "reject");
    });
    await session.prompt(script("ask write allowed.txt yes"));
    await session.prompt(script("ask write denied.txt no"));
    const modes = await session.getModes();
    const mode = modes.availableModes.find((each) => each.id !== modes.currentModeId).id;
    await session.setMode(mode);
    const second = await sandbox.createSession({ agent: "rehearsal", cwd: work });
    const others = watched(second);
    await Promise.all([session.prompt(script("say mine")), second.prompt(script("say theirs"))]);
    await until(() => textOf(others, second) === "theirs" && textOf(events, session) === "hellomine");
    const stored = await sandbox.getEvents({ sessionId: session.id, limit: 200 });
    const servers = (await sandbox.listAcpServers()).servers.length;
    const started = Date.now();
    await sandbox.dispose();
    return {
      stopReason: first.stopReason,
      kinds,
      mode,
      stored: stored.items.length,
      servers,
      disposeMs: Date.now() - started,
    };
  },

  async crash() {
    const sandbox = await connect();
    const session = await sandbox.createSession({ agent: "rehearsal", cwd: work });
    const events = watched(session);
    const started = Date.now();
    const error = await session.prompt(script("say going", "crash 7")).catch((each) => each);
    const after = await session.prompt(script("recall"));
    await until(() => textOf(events, session).includes("prompts before this one: 1"));
    await sandbox.dispose();
    return { code: error.code, data: error.data, crashMs: Date.now() - started, stopReason: after.stopReason };
  },

  async choosing() {
    const sandbox = await connect();
    const asked = { id: "mine", agent: "rehearsal", cwd: work, mode: "plan", model: "rehearsal-terse" };
    const session = await sandbox.resumeOrCreateSession(asked);
    const options = await session.getConfigOptions();
    const begun = [(await session.getModes()).currentModeId, options.find((each) => each.id === "model").currentValue];
    await session.setModel("rehearsal-steady");
    const set = await session.setConfigOption("model", "rehearsal-terse");
    const again = await sandbox.resumeOrCreateSession({ ...asked, mode: "default" });
    const requests = [];
    session.onPermissionRequest((request) => requests.push(request));
    const asking = session.prompt(script("ask write raw.txt yes"));
    await until(() => requests.length === 1);
    const { optionId } = requests[0].options.find((each) => each.kind === "allow_once");
    await session.rawRespondPermission(requests[0].id, { outcome: { outcome: "selected", optionId } });
    await asking;
    const other = await sandbox.createSession({ agent: "rehearsal", cwd: work });
    const others = watched(other);
    const stalled = other.prompt(script("say begun", "stall 60"));
    await until(() => textOf(others, other) === "begun"); // each message is a request of its own, and may overtake
    const destroyed = await sandbox.destroySession(other.id);
    const found = {
      begun,
      set: set.configOptions.find((each) => each.id === "model").currentValue,
      same: again.agentSessionId === session.agentSessionId,
      thoughtLevel: await refused(session.setThoughtLevel("high")),
      bypass: await refused(session.setMode("bypass")),
      listed: (await session.rawSend("session/list", { cwd: work })).sessions.length,
      unknown: await refused(session.rawSend("_no/such", {})),
      stalled: (await stalled).stopReason,
      destroyed: destroyed.destroyedAt > 0,
      sessions: (await sandbox.listSessions()).items.map((each) => each.id).includes("mine"),
      missing: await sandbox.getSession("no-such"),
    };
    await sandbox.dispose();
    return found;
  },

  async before() {
    const persist = new InMemorySessionPersistDriver();
    const sandbox = await connect({ persist });
    const session = await sandbox.createSession({ id: "kept", agent: "rehearsal", cwd: work });
    const events = watched(session);
    await session.prompt(script("say before"));
    await until(() => textOf(events, session) === "before");
    const record = await persist.getSession("kept");
    const { items } = await persist.listEvents({ sessionId: "kept" });
    writeFileSync(path.join(work, "kept.json"), JSON.stringify({ record, items }));
    return { agentSessionId: session.agentSessionId };
  },

  async after() {
    const persist = new InMemorySessionPersistDriver();
    const { record, items } = JSON.parse(readFileSync(path.join(work, "kept.json"), "utf8"));
    await persist.updateSession(record);
    for (const each of items) await persist.insertEvent("kept", each);
    const sandbox = await connect({ persist });
    const session = await sandbox.resumeSession("kept");
    const answer = await session.prompt(script("say after"));
    await sandbox.dispose();
    return { stopReason: answer.stopReason, agentSessionId: session.agentSessionId };
  },

  async agents() {
    const sandbox = await connect();
    const { agents } = await sandbox.listAgents({ config: true, noCache: true });
    const mock = await sandbox.getAgent("mock", { config: true });
    const found = {
      health: (await sandbox.getHealth()).status,
      ids: agents.map((each) => each.id),
      flags: agents.every((each) => typeof each.installed === "boolean" && typeof each.credentialsAvailable === "boolean"),
      categories: mock.configOptions.map((each) => each.category),
      installed: await sandbox.installAgent("rehearsal"),
      unknown: [await refused(sandbox.getAgent("no-such")), await refused(sandbox.installAgent("no-such"))],
      desktop: await refused(sandbox.getDesktopStatus()),
    };
    await sandbox.dispose();
    return found;
  },

  async config() {
    const sandbox = await connect();
    const mcp = { directory: work, mcpName: "a name" };
    const skills = { directory: work, skillName: "set" };
    const before = await refused(sandbox.getMcpConfig(mcp));
    await sandbox.setMcpConfig(mcp, { type: "local", command: "x", args: ["-y"], env: { A: "b" } });
    await sandbox.setMcpConfig({ ...mcp, mcpName: "other" }, { type: "remote", url: "http://127.0.0.1:9" });
    await sandbox.setSkillsConfig(skills, { sources: [{ type: "github", source: "a/b", skills: ["c"] }] });
    const found = {
      before,
      mcp: await sandbox.getMcpConfig(mcp),
      skills: await sandbox.getSkillsConfig(skills),
      stored: Object.keys(JSON.parse(readFileSync(path.join(work, ".sandbox-agent/config/mcp.json"), "utf8"))),
    };
    await sandbox.deleteMcpConfig(mcp);
    await sandbox.deleteMcpConfig(mcp);
    await sandbox.deleteSkillsConfig(skills);
    found.after = [await refused(sandbox.getMcpConfig(mcp)), await refused(sandbox.getSkillsConfig(skills))];
    found.other = (await sandbox.getMcpConfig({ ...mcp, mcpName: "other" })).url;
    await sandbox.dispose();
    return found;
  },

  async mock() {
    const sandbox = await connect();
    const session = await sandbox.createSession({ agent: "mock", cwd: work, model: "mock" });
    const events = watched(session);
    const said = await session.prompt([{ type: "text", text: "hello" }]);
    await until(() => textOf(events, session) === "mock: hello");
    const option = async (category) => (await session.getConfigOptions()).find((each) => each.category === category).currentValue;
    const chosen = [];
    for (const [model, mode, level] of [["mock-fast", "plan", "high"], ["mock", "normal", "medium"]]) {
      await session.setModel(model);
      await session.setMode(mode);
      await session.setThoughtLevel(level);
      await until(() => true);
      chosen.push([await option("model"), (await session.getModes()).currentModeId, await option("mode"), await option("thought_level")]);
    }
    const asked = [];
    session.onPermissionRequest((request) => {
      asked.push([request.toolCall.title, request.toolCall.kind]);
      void session.respondPermission(request.id, asked.length === 1 ? "reject" : "always");
    });
    await session.prompt([{ type: "text", text: "first permission" }]);
    await until(() => textOf(events, session).includes("mock permission rejected: reject-once"));
    await session.prompt([{ type: "text", text: "second permission" }]);
    await until(() => textOf(events, session).includes("mock permission approved: allow-once"));
    const found = {
      stopReason: said.stopReason,
      chosen,
      asked,
      wrong: await refused(session.setModel("no-such")),
      agent: (await sandbox.listAcpServers()).servers[0].agent,
    };
    await sandbox.dispose();
    return found;
  },

  async files() {
    const sandbox = await connect();
    const at = (name) => path.join(work, name);
    const written = await sandbox.writeFsFile({ path: at("a/one.txt") }, "one");
    await sandbox.mkdirFs({ path: at("b") });
    const moved = await sandbox.moveFs({ from: at("a/one.txt"), to: at("b/two.txt") });
    const uploaded = await sandbox.uploadFsBatch(readFileSync(at("batch.tar")), { path: at("c") });
    const found = {
      written,
      moved,
      uploaded,
      read: new TextDecoder().decode(await sandbox.readFsFile({ path: at("b/two.txt") })),
      stat: await sandbox.statFs({ path: at("b/two.txt") }),
      entries: (await sandbox.listFsEntries({ path: at("b") })).map((each) => [each.name, each.entryType, each.size]),
      full: await refused(sandbox.deleteFsEntry({ path: at("b") })),
      deleted: await sandbox.deleteFsEntry({ path: at("b"), recursive: true }),
      missing: await refused(sandbox.readFsFile({ path: at("b/two.txt") })),
    };
    await sandbox.dispose();
    return found;
  },

  async processes() {
    const sandbox = await connect();
    const config = await sandbox.getProcessConfig();
    const changed = await sandbox.setProcessConfig({ ...config, maxOutputBytes: 3 });
    const run = await sandbox.runProcess({ command: "sh", args: ["-c", "echo $WORD; exit 4"], env: { WORD: "hello" }, cwd: work });
    const cat = await sandbox.createProcess({ command: "cat", cwd: work });
    let read = "";
    const logs = await sandbox.followProcessLogs(cat.id, (entry) => (read += Buffer.from(entry.data, "base64")));
    await sandbox.sendProcessInput(cat.id, { data: base64("one ") });
    await sandbox.sendProcessInput(cat.id, { data: "two", encoding: "utf8" });
    await until(() => read === "one two");
    const kept = await sandbox.getProcessLogs(cat.id, { stream: "stdout", tail: 1 });
    const running = await refused(sandbox.deleteProcess(cat.id));
    const listed = (await sandbox.listProcesses({ owner: "user" })).processes.map((each) => each.id).includes(cat.id);
    const stopped = (await sandbox.stopProcess(cat.id, { waitMs: 30000 })).status;
    await logs.closed;
    await sandbox.deleteProcess(cat.id);
    const shell = await sandbox.createProcess({ command: "sh", tty: true, interactive: true, cwd: work });
    const terminal = sandbox.connectProcessTerminal(shell.id);
    const frames = [];
    let screen = "";
    terminal.onReady((frame) => frames.push(frame.type));
    terminal.onExit((frame) => frames.push(frame.exitCode));
    terminal.onError((frame) => frames.push(frame));
    terminal.onData((bytes) => (screen += new TextDecoder().decode(bytes)));
    await until(() => frames.length === 1);
    terminal.resize({ cols: 123, rows: 45 });
    terminal.sendInput("stty size\n");
    await until(() => screen.includes("45 123"));
    await sandbox.resizeProcessTerminal(shell.id, { cols: 99, rows: 33 });
    terminal.sendInput(new TextEncoder().encode("stty size; exit 5\n"));
    await until(() => screen.includes("33 99"));
    await terminal.closed;
    const missing = await refused(sandbox.killProcess("no-such"));
    await sandbox.dispose();
    return { output: [config.maxOutputBytes, changed.maxOutputBytes], run, kept: kept.entries.length, running, listed, stopped, frames, missing };
  },

  async long() {
    const sandbox = await connect();
    const session = await sandbox.createSession({ agent: "rehearsal", cwd: work });
    const started = Date.now();
    const answer = await session.prompt(script(`stall ${seconds}`, "say finally"));
    const took = Date.now() - started;
    await sandbox.dispose();
    return { stopReason: answer.stopReason, seconds: took / 1000 };
  },

  // Holds a server of its own until it is killed.
  async hold() {
    const { local } = await load("providers/local.js");
    const sandbox = await SandboxAgent.start({ sandbox: local({ log: "silent" }) });
    console.log(sandbox.sandboxId);
    await new Promise(() => setInterval(() => {}, 1000));
  },

  async start() {
    const { local } = await load("providers/local.js");
    const sandbox = await SandboxAgent.start({ sandbox: local({ log: "silent" }) });
    const session = await sandbox.createSession({ agent: "rehearsal", cwd: work });
    const answer = await session.prompt(script("say from a server of its own"));
    await sandbox.dispose();
    await sandbox.destroySandbox?.();
    return { stopReason: answer.stopReason };
  },
};

console.log(JSON.stringify(await doings[what]()));
process.exit(0);
