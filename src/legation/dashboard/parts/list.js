// What lists share: pages of the server's list, search and filters that stand in the address, and moving through the rows by key.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, part } from "../api.js";
import { changed } from "../state/inbox.js";
import { query, setQuery } from "../state/place.js";
import { LIST, useKeys } from "../state/keys.js";
import { Icon, Key } from "./basics.js";

const TYPED_MS = 150; // between two letters
export const SINCE = { hour: 3_600_000, day: 86_400_000, week: 604_800_000 };
export const asked = (name) => query.value.get(name) ?? "";
export const matches = (text) => asked("q").toLowerCase().split(/\s+/).filter(Boolean).every((word) => text.toLowerCase().includes(word));

// A list read by pages, and its first page again whenever something changed: what was loaded behind it stays, and so does who reads there.
// `of` is its name in the answer, `key` a row's, `cursor` the query's name of what stands behind a page, `since` a word of SINCE.
export function usePages(url, { of, key, cursor, since = "" }) {
  const [rows, setRows] = useState(null);
  const [next, setNext] = useState(null);
  const [problem, setProblem] = useState(null);
  const agents = useRef(new Set()); // to choose from: a choice does not go because it was made
  if (asked("agent")) agents.current.add(asked("agent"));
  const wanted = url + since;
  const latest = useRef(wanted);
  latest.current = wanted;
  const far = useRef(null); // the list of which more than the first page is here
  const read = (behind) => {
    const from = SINCE[since] ? `&since=${Date.now() - SINCE[since]}` : "";
    return get(`${url}${from}${behind ? `&${cursor}=${part(behind)}` : ""}`).then((told) => {
      if (wanted !== latest.current) return; // an answer to what was typed before is none any more
      const fresh = told[of];
      for (const each of fresh) agents.current.add(each.agent);
      if (behind) far.current = wanted;
      const stays = far.current === wanted;
      setRows((before) => (behind ? [...before, ...fresh] : stays ? renewed(before, fresh, key) : fresh));
      if (behind || !stays) setNext(told.next ?? null);
      setProblem(null);
    }, (failed) => wanted === latest.current && setProblem(failed));
  };
  useEffect(() => {
    const due = setTimeout(read, rows ? TYPED_MS : 0);
    return () => clearTimeout(due);
  }, [changed.value, wanted]);
  return { rows, next, problem, agents: [...agents.current].sort(), load: () => read(), more: () => read(next) };
}

function renewed(before, fresh, key) {
  const names = new Set(fresh.map((each) => each[key]));
  const at = before.findLastIndex((each) => names.has(each[key]));
  return at < 0 && fresh.length ? fresh : [...fresh, ...before.slice(at + 1)];
}

// `selects`: [name in the address, label, choices].
export function Filters({ label, selects, problem }) {
  const search = useRef(null);
  useKeys(LIST, { "/": () => search.current?.focus() });
  const names = ["q", ...selects.map(([name]) => name)];
  return html`<div class="filters" role="search"><label class="search"><${Icon} name="search" />
    <input ref=${search} type="search" maxlength="200" aria-label=${label} placeholder=${label} value=${asked("q")} onInput=${(event) => setQuery({ q: event.target.value })} />
    <${Key}>/<//></label>
    ${selects.map(([name, words, choices]) => html`<select key=${name} aria-label=${words} value=${asked(name)} onChange=${(event) => setQuery({ [name]: event.target.value })}>
      <option value="">${words}: any</option>${choices.map((each) => html`<option key=${each} value=${each}>${words}: ${each.replace("_", " ")}</option>`)}</select>`)}
    ${names.some(asked) && html`<button type="button" class="link" onClick=${() => setQuery(Object.fromEntries(names.map((name) => [name, ""])))}>Clear</button>`}</div>${problem && html`<p class="note bad" role="alert">${problem.message}</p>`}`;
}

// The row under the keys is the one whose link has the focus: Enter is the link's own.
export function useRowKeys(rows) {
  const [at, setAt] = useState(-1);
  const move = (by) => {
    const links = document.querySelectorAll(`${rows} a`);
    const to = Math.max(0, Math.min(links.length - 1, at + by));
    setAt(to);
    links[to]?.focus();
  };
  useKeys(LIST, { j: () => move(1), k: () => move(-1) });
}
