// The agent of sdk_python_agent.py, on the official TypeScript SDK, whose main module is the first argument.

import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const { agent, methods, ndJsonStream, RequestError } = await import(pathToFileURL(process.argv[2]).href);

const REPLAYED = 50;
const CRASH = 7;
const OPTIONS = [
  { optionId: "always", name: "Always", kind: "allow_always" },
  { optionId: "yes", name: "Yes", kind: "allow_once" },
  { optionId: "no", name: "No", kind: "reject_once" },
];

const cancels = new Map(); // by session: what ends the turn that runs

function split(text) {
  const [word] = text.split(" ", 1);
  return [word, text.slice(word.length + 1)];
}

function update(client, sessionId, what) {
  return client.notify(methods.client.session.update, { sessionId, update: what });
}

const actions = {
  async say(client, session, text) {
    await update(client, session, { sessionUpdate: "agent_message_chunk", content: { type: "text", text } });
    return "end_turn";
  },

  async flood(client, session, count) {
    for (let number = 0; number < Number(count); number++) await actions.say(client, session, String(number));
    return "end_turn";
  },

  async tool(client, session, title) {
    const call = { toolCallId: title, title, kind: "execute", status: "pending", rawInput: { command: title } };
    await update(client, session, { sessionUpdate: "tool_call", ...call });
    const params = { sessionId: session, toolCall: { toolCallId: title }, options: OPTIONS };
    const { outcome } = await client.request(methods.client.session.requestPermission, params);
    if (outcome.outcome !== "selected") return "cancelled";
    const status = outcome.optionId === "yes" ? "completed" : "failed";
    await update(client, session, { sessionUpdate: "tool_call_update", toolCallId: title, status });
    return "end_turn";
  },

  async tools(client, session, titles) {
    await Promise.all(titles.split(" ").map((title) => actions.tool(client, session, title)));
    return "end_turn";
  },

  // Takes its question back: only this SDK can.
  async withdraw(client, session, title) {
    const taken = new AbortController();
    const params = { sessionId: session, toolCall: { toolCallId: title, title }, options: OPTIONS };
    const answer = client.request(methods.client.session.requestPermission, params, {
      cancellationSignal: taken.signal,
    });
    taken.abort();
    const told = await answer.then((found) => JSON.stringify(found), (error) => `error ${error.code}`);
    return actions.say(client, session, told);
  },

  async read(client, session, path) {
    const answer = client.request(methods.client.fs.readTextFile, { sessionId: session, path });
    return actions.say(client, session, await answer.then((found) => found.content, (error) => `error ${error.code}`));
  },

  async write(client, session, rest) {
    const [path, content] = split(rest);
    await client.request(methods.client.fs.writeTextFile, { sessionId: session, path, content });
    return "end_turn";
  },

  async wait(client, session, text) {
    const cancelled = new Promise((resolve) => cancels.set(session, resolve));
    await actions.say(client, session, text);
    await cancelled;
    return "cancelled";
  },

  async fail(_client, _session, rest) {
    const [code, message] = split(rest);
    throw new RequestError(Number(code), message, { by: "agent" });
  },

  async crash(client, session, text) {
    await actions.say(client, session, text);
    process.exit(CRASH);
  },
};

agent({ name: "ts-agent" })
  .onRequest(methods.agent.initialize, ({ params }) => ({
    protocolVersion: params.protocolVersion,
    agentCapabilities: { loadSession: true },
  }))
  .onRequest(methods.agent.session.new, () => {
    const sessionId = `session-${cancels.size}`;
    cancels.set(sessionId, () => {});
    return { sessionId };
  })
  .onRequest(methods.agent.session.load, async ({ params, client }) => {
    await actions.flood(client, params.sessionId, REPLAYED);
    return {};
  })
  .onRequest(methods.agent.session.prompt, async ({ params, client }) => {
    const [action, rest] = split(params.prompt[0].text);
    return { stopReason: await actions[action](client, params.sessionId, rest) };
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => cancels.get(params.sessionId)())
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
