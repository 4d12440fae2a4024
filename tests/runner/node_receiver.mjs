// A receiver written from the text of seed 000 alone: signature, window, nonce, order, kinds, limits.
// Kinds that the seed does not name are counted and passed over, and a GET is answered like anything that is signed.
// Says its port, then one line of JSON for every report that it accepts, or what is wrong with one.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const token = process.argv[2];
const nonces = new Set();
let lastSequence = 0;

function check(headers, body) {
  if (headers.authorization !== `Bearer ${token}`) return "bearer";
  const timestamp = headers["x-supervisor-timestamp"];
  const nonce = headers["x-supervisor-nonce"];
  if (!/^\d+$/.test(timestamp) || Math.abs(Date.now() - Number(timestamp)) > 5 * 60 * 1000) return "window";
  if (!/^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/.test(nonce) || nonces.has(nonce)) return "nonce";
  const wanted = Buffer.from(`sha256=${createHmac("sha256", token).update(`${timestamp}.${nonce}.`).update(body).digest("hex")}`);
  const given = Buffer.from(headers["x-supervisor-signature"] ?? "");
  if (wanted.length !== given.length || !timingSafeEqual(wanted, given)) return "signature";
  nonces.add(nonce);
  return null;
}

function take(report, size) {
  for (const name of ["kind", "runId", "taskId", "sandboxId", "promptId"]) {
    if (typeof report[name] !== "string") return `${name} is missing`;
  }
  if (report.kind === "heartbeat") return report.sequence === 0 ? null : "a heartbeat in the chain";
  if (report.sequence <= lastSequence) return null; // sent again
  if (report.sequence !== lastSequence + 1) return `report ${report.sequence} after ${lastSequence}`;
  lastSequence = report.sequence;
  if (report.kind === "session_update") {
    if (!Array.isArray(report.notifications) || report.notifications.length < 1) return "no notifications";
    if (report.notifications.length > 50) return "more than 50";
    if (report.notifications.length > 1 && size > 1_400_000) return "more than about a megabyte";
    for (const each of report.notifications) {
      if (typeof each.sessionId !== "string" || typeof each.update?.sessionUpdate !== "string") return "no notification";
    }
  }
  if (typeof report.snapshot !== "object") return "no snapshot";
  if (JSON.stringify(report.snapshot).length > 256 * 1024) return "a snapshot above 256 KB";
  return null;
}

const server = createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts);
    const wrong = check(request.headers, body);
    if (wrong) {
      console.log(JSON.stringify({ wrong }));
      response.writeHead(401).end();
      return;
    }
    if (request.method === "GET") {
      response.writeHead(200).end();
      return;
    }
    const report = JSON.parse(body.toString("utf8"));
    const fault = take(report, body.length);
    console.log(JSON.stringify(fault ? { wrong: fault } : { kind: report.kind, sequence: report.sequence, notifications: report.notifications?.length ?? 0 }));
    response.writeHead(fault ? 400 : 200).end();
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
