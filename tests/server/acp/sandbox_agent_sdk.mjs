// The published sandbox-agent SDK, unmodified, against our server. Prints one JSON object with what it saw.
// node sandbox_agent_sdk.mjs <sdk folder> <what> <work folder> [seconds]; SERVER_URL and SERVER_TOKEN in the environment.
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, what, work, seconds] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(path.join(folder, "dist", file)));
const { SandboxAgent } = await load("index.js");
const script = (...steps) => [{ type: "text", text: ["#!rehearse", ...steps].join("\n") }];
const connect = () => SandboxAgent.connect({ baseUrl: process.env.SERVER_URL, token: process.env.SERVER_TOKEN });
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
    const session = await sandbox.createSession({ agent: "mock", cwd: work });
    const events = watched(session);
    const started = Date.now();
    const error = await session.prompt(script("say going", "crash 7")).catch((each) => each);
    const after = await session.prompt(script("recall"));
    await until(() => textOf(events, session).includes("prompts before this one: 1"));
    await sandbox.dispose();
    return { code: error.code, data: error.data, crashMs: Date.now() - started, stopReason: after.stopReason };
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
