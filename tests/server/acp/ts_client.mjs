// The official TypeScript SDK's client drives an agent on stdio. Prints one JSON object with what it saw.
// node ts_client.mjs <main module of the SDK> <work folder> <command...>
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [main, work, ...command] = process.argv.slice(2);
const { client, methods, ndJsonStream } = await import(pathToFileURL(main).href);
const agent = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
const stream = ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const seen = { updates: [], asked: [], withdrawn: 0 };
const choices = ["allow_once", "reject_once", null];
const script = (...steps) => [{ type: "text", text: ["#!rehearse", ...steps].join("\n") }];
const text = () =>
  seen.updates
    .filter((each) => each.sessionUpdate === "agent_message_chunk")
    .map((each) => each.content.text)
    .join("");
const until = async (wanted) => {
  const end = Date.now() + 30000;
  while (!wanted()) {
    if (Date.now() > end) throw new Error("it did not come");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
};

const app = client({ name: "test" })
  .onNotification(methods.client.session.update, ({ params }) => void seen.updates.push(params.update))
  .onRequest(methods.client.session.requestPermission, async ({ params, signal }) => {
    seen.asked.push(params.toolCall.kind);
    const kind = choices[seen.asked.length - 1];
    if (kind) {
      const chosen = params.options.find((each) => each.kind === kind);
      return { outcome: { outcome: "selected", optionId: chosen.optionId } };
    }
    // Nobody decides here: until it is withdrawn.
    await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
    seen.withdrawn += 1;
    return { outcome: { outcome: "cancelled" } };
  });

await app.connectWith(stream, async (ctx) => {
  const hello = await ctx.request(methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
  seen.name = hello.agentInfo.name;
  const { sessionId, modes } = await ctx.request(methods.agent.session.new, { cwd: work, mcpServers: [] });
  seen.sessionId = sessionId;
  const prompt = (...steps) => ctx.request(methods.agent.session.prompt, { sessionId, prompt: script(...steps) });
  seen.stopReason = (await prompt("say hello")).stopReason;
  await until(() => text() === "hello");
  await prompt("ask write allowed.txt yes");
  await prompt("ask write denied.txt no");
  const mode = modes.availableModes.find((each) => each.id !== modes.currentModeId).id;
  await ctx.request(methods.agent.session.setMode, { sessionId, modeId: mode });
  const waiting = prompt("ask write withdrawn.txt no");
  await until(() => seen.asked.length === 3);
  await ctx.notify(methods.agent.session.cancel, { sessionId });
  seen.cancelled = (await waiting).stopReason;
  await until(() => seen.withdrawn === 1);
  seen.updates = [];
  await ctx.request(methods.agent.session.load, { sessionId, cwd: work, mcpServers: [] });
  await until(() => text().includes("hello"));
});
agent.stdin.end();
seen.exit = await new Promise((resolve) => (agent.exitCode === null ? agent.once("exit", resolve) : resolve(agent.exitCode)));
seen.updates = seen.updates.length;
console.log(JSON.stringify(seen));
process.exit(0);
