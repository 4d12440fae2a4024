// The interactive docs: reads /openapi.json and makes a form of every operation. No framework, nothing from elsewhere.
import { example, notation } from "/docs/schema.js";
import { el, words } from "/docs/element.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const SHOWN_CHARACTERS = 200_000; // of an answer; a stream may go on for ever

const response = await fetch("/openapi.json");
const document_ = await response.json();
const schemas = document_.components.schemas;

document.getElementById("version").textContent = document_.info.version;
const token = document.getElementById("token");
const filter = document.getElementById("filter");
const shown = []; // what the filter hides and shows: { words, nodes }

function operations() {
  return Object.entries(document_.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, ...item[method] })));
}

let fields = 0;

function field(parameter) {
  const id = `${parameter.in}-${parameter.name}-${fields++}`;
  const choices = parameter.schema.enum ?? (parameter.schema.type === "boolean" ? ["true", "false"] : null);
  const input = choices
    ? el("select", { id }, el("option", { value: "" }, ""), ...choices.map((each) => el("option", {}, String(each))))
    : el("input", { id, autocomplete: "off", spellcheck: false, placeholder: String(parameter.schema.default ?? "") });
  input.required = parameter.required;
  const type = notation(parameter.schema, schemas) + (parameter.schema.type === "array" ? ", separated by commas" : "");
  const label = el("label", { for: id, className: parameter.required ? "required" : "" }, el("code", {}, parameter.name));
  return { parameter, input, nodes: [label, input, el("span", { className: "type" }, `${parameter.in} · ${type}`)] };
}

function request(operation, fields, body) {
  let path = operation.path;
  const query = new URLSearchParams();
  const headers = {};
  for (const { parameter, input } of fields) {
    if (input.value === "") continue;
    if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    else if (parameter.in === "header") headers[parameter.name] = input.value;
    else if (parameter.schema.type === "array") input.value.split(",").forEach((each) => query.append(parameter.name, each.trim()));
    else query.append(parameter.name, input.value);
  }
  if (token.value) headers.Authorization = `Bearer ${token.value.trim()}`;
  if (body?.value.trim()) headers["Content-Type"] = "application/json";
  const search = query.size ? `?${query}` : "";
  return [path + search, { method: operation.method.toUpperCase(), headers, body: body?.value.trim() || undefined }];
}

function pretty(text, type) {
  if (!type?.includes("json")) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

// Shows what comes while it comes: an event stream has no end to wait for.
async function read(answer, output, signal) {
  const reader = answer.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  while (reader && !signal.aborted && text.length < SHOWN_CHARACTERS) {
    const { done, value } = await reader.read();
    if (done) break;
    text += decoder.decode(value, { stream: true });
    output.textContent = text;
  }
  await reader?.cancel();
  output.textContent = pretty(text, answer.headers.get("content-type"));
  output.hidden = text === "";
}

function form(operation) {
  const fields = (operation.parameters ?? []).map(field);
  const schema = operation.requestBody?.content["application/json"].schema;
  const body = schema && el("textarea", { spellcheck: false, ariaLabel: "Body, JSON" }, JSON.stringify(example(schema, schemas), null, 2));
  const send = el("button", { className: "send", type: "submit" }, "Send");
  const stop = el("button", { type: "button", hidden: true }, "Stop");
  const outcome = el("span", { className: "outcome", role: "status" });
  const headers = el("pre", { hidden: true, ariaLabel: "Headers of the answer", tabIndex: 0 });
  const output = el("pre", { hidden: true, ariaLabel: "Body of the answer", tabIndex: 0 });
  let abort;

  async function submit(event) {
    event.preventDefault();
    abort = new AbortController();
    send.disabled = true;
    stop.hidden = false;
    headers.hidden = output.hidden = true;
    outcome.className = "outcome";
    outcome.textContent = "…";
    const started = performance.now();
    try {
      const answer = await fetch(...request(operation, fields, body).map((each) =>
        typeof each === "string" ? each : { ...each, signal: abort.signal }));
      outcome.textContent = `${answer.status} ${answer.statusText} · ${(performance.now() - started).toFixed(1)} ms`;
      outcome.classList.add(answer.ok ? "good" : "bad");
      headers.textContent = [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
      headers.hidden = output.hidden = false;
      await read(answer, output, abort.signal);
    } catch (error) {
      if (!abort.signal.aborted) {
        outcome.textContent = `No answer: ${error.message}`;
        outcome.classList.add("bad");
      }
    } finally {
      send.disabled = false;
      stop.hidden = true;
    }
  }

  stop.addEventListener("click", () => abort.abort());
  const node = el("form", {},
    ...(fields.length ? [el("h3", {}, "Parameters"), el("div", { className: "fields" }, ...fields.flatMap((each) => each.nodes))] : []),
    ...(body ? [el("h3", {}, "Body"), el("pre", {}, notation(schema, schemas, 2)), body] : []),
    el("div", { className: "actions" }, send, stop, outcome, body ? el("span", { className: "note" }, "Ctrl+Enter sends") : ""),
    headers, output);
  node.addEventListener("submit", submit);
  body?.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) node.requestSubmit();
  });
  return node;
}

function answers(operation) {
  return el("dl", { className: "answers" }, ...Object.entries(operation.responses).flatMap(([status, answer]) => {
    const [media, content] = Object.entries(answer.content ?? {})[0] ?? [];
    const isProblem = media === "application/problem+json";
    const says = media && !isProblem ? `${answer.description} · ${media}` : answer.description;
    const shape = content && !isProblem ? el("pre", {}, notation(content.schema, schemas, 2)) : "";
    return [el("dt", {}, status), el("dd", {}, ...words(says), shape)];
  }));
}

function card(operation) {
  const scopes = operation.security.flatMap((each) => Object.values(each))[0];
  const needs = !operation.security.length ? "open" : scopes.length ? `needs ${scopes.join(", ")}` : "signed in";
  const node = el("details", { className: "operation", id: operation.operationId },
    el("summary", {},
      el("span", { className: `method ${operation.method}` }, operation.method.toUpperCase()),
      el("span", { className: "path" }, operation.path),
      el("span", { className: "words" }, ...words(operation.summary)),
      el("span", { className: "needs" }, needs)));
  // Made when it is opened: a hundred forms at once would be slow to show.
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) {
      const said = operation.description ? [el("p", { className: "description" }, ...words(operation.description))] : [];
      node.append(el("div", { className: "inside" }, ...said, form(operation), el("h3", {}, "Answers"), answers(operation)));
    }
  });
  return node;
}

function link(operation) {
  return el("li", {}, el("a", { href: `#${operation.operationId}`, title: operation.summary },
    el("span", { className: `method ${operation.method}` }, operation.method.toUpperCase()),
    el("span", {}, operation.path.replace("/v1", ""))));
}

function show() {
  const main = document.getElementById("operations");
  const index = document.getElementById("index");
  main.replaceChildren();
  for (const { name } of document_.tags) {
    const mine = operations().filter((each) => each.tags.includes(name));
    const list = el("ul");
    const section = el("section", {}, el("h2", {}, name));
    const part = el("div", {}, el("h2", {}, name), list);
    for (const operation of mine) {
      const nodes = [card(operation), link(operation)];
      section.append(nodes[0]);
      list.append(nodes[1]);
      shown.push({ words: `${operation.method} ${operation.path} ${operation.summary} ${name}`.toLowerCase(), nodes, groups: [section, part] });
    }
    main.append(section);
    index.append(part);
  }
}

function narrow() {
  const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  shown.forEach(({ groups }) => groups.forEach((group) => { group.hidden = true; }));
  for (const each of shown) {
    const fits = wanted.every((word) => each.words.includes(word));
    each.nodes.forEach((node) => { node.hidden = !fits; });
    if (fits) each.groups.forEach((group) => { group.hidden = false; });
  }
}

function follow() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.matches("details")) {
    target.open = true;
    target.scrollIntoView();
    target.querySelector("summary").focus({ preventScroll: true });
  }
}

show();
follow();
filter.addEventListener("input", narrow);
addEventListener("hashchange", follow);
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches("input, textarea, select")) {
    event.preventDefault();
    filter.focus();
  }
});
