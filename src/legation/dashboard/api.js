// Requests to the server: the public API, the cookie of this browser, and problems as they are told.
import { signal } from "./vendor/preact.js";

// Legation may stand behind a proxy, below a path of its own.
export const root = location.pathname.slice(0, location.pathname.search(/\/ui(\/|$)/) + 1);
export const me = signal(null); // who is signed in: /v1/me
export const signedOut = signal(false);
const WAIT_MS = 30_000; // the server's time to answer

export class Problem extends Error {
  constructor(status, told, request) {
    super(told.detail ?? told.title ?? "The server does not answer.");
    this.status = status;
    this.code = told.code ?? "";
    this.data = told.data ?? {};
    this.request = request ?? "";
  }
}

// The answer itself, for whoever reads it as it comes, and has no time to keep.
export async function open(method, path, body, signal) {
  try {
    return await fetch(root + path, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal,
    });
  } catch {
    throw new Problem(0, { detail: "The server does not answer. Is it running?" });
  }
}

export async function call(method, path, body) {
  return read(await open(method, path, body, AbortSignal.timeout(WAIT_MS)), path);
}

export async function read(answer, path) {
  const text = await answer.text();
  let told = null;
  try {
    told = text ? JSON.parse(text) : null;
  } catch {
    if (answer.ok) throw new Problem(answer.status, { detail: "The server answered something else than JSON." });
  }
  if (answer.ok) return told;
  if (answer.status === 401 && path !== "v1/sign-in") signedOut.value = true;
  throw new Problem(answer.status, told ?? {}, answer.headers.get("request-id"));
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body);
export const may = (scope) => me.value?.scopes.includes(scope) ?? false;
export const part = encodeURIComponent;
