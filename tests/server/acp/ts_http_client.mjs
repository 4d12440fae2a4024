// The official TypeScript SDK's client over its HTTP transport. Prints one JSON object with what it saw.
// node ts_http_client.mjs <folder of the SDK> <work folder> <address> <token>
import { pathToFileURL } from "node:url";
import { join } from "node:path";
import { readFileSync } from "node:fs";

const [folder, work, address, token] = process.argv.slice(2);
const { exports } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
const load = (name) => import(pathToFileURL(join(folder, exports[name].import)).href);
const { client, methods } = await load(".");
const { createHttpStream } = await load("./experimental/http-client");

const script = (...steps) => [{ type: "text", text: ["#!rehearse", ...steps].join("\n") }];
const seen = { order: [], asked: [] };
const choices = ["allow_once", "reject_once"];
const app = () =>
  client({ name: "test" })
    .onNotification(methods.client.session.update, ({ params }) => {
      const { sessionUpdate, content } = params.update;
      if (sessionUpdate === "agent_message_chunk") seen.order.push(content.text);
    })
    .onRequest(methods.client.session.requestPermission, ({ params }) => {
      const kind = choices[seen.asked.push(params.toolCall.kind) - 1];
      return { outcome: { outcome: "selected", optionId: params.options.find((each) => each.kind === kind).optionId } };
    });
const connect = (using) =>
  app().connectWith(createHttpStream(address, { headers: { Authorization: `Bearer ${token}` } }), async (ctx) => {
    const hello = await ctx.request(methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
    seen.name = hello.agentInfo.name;
    await using(ctx);
  });

let sessionId;
await connect(async (ctx) => {
  ({ sessionId } = await ctx.request(methods.agent.session.new, { cwd: work, mcpServers: [] }));
  const prompt = (...steps) => ctx.request(methods.agent.session.prompt, { sessionId, prompt: script(...steps) });
  seen.stopReason = (await prompt("say one", "ask write allowed.txt yes", "say two")).stopReason;
  seen.order.push("answered");
  await prompt("ask write denied.txt no");
  const waiting = prompt("say before", "stall 60");
  const end = Date.now() + 60000;
  while (!seen.order.includes("before")) {
    if (Date.now() > end) throw new Error("it did not come");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  await ctx.notify(methods.agent.session.cancel, { sessionId });
  seen.cancelled = (await waiting).stopReason;
  try {
    await ctx.request(methods.agent.session.setMode, { sessionId, modeId: "no such mode" });
  } catch (error) {
    seen.refused = error.code;
  }
});
seen.first = seen.order;
seen.order = [];
await connect(async (ctx) => {
  await ctx.request(methods.agent.session.load, { sessionId, cwd: work, mcpServers: [] });
  seen.order.push("loaded");
  await ctx.request(methods.agent.session.prompt, { sessionId, prompt: script("say again") });
});
console.log(JSON.stringify(seen));
process.exit(0);
