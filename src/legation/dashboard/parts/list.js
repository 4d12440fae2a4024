// What lists share: search and filters that stand in the address, and moving through the rows by key.
import { html, useRef, useState } from "../vendor/preact.js";
import { query, setQuery } from "../state/place.js";
import { LIST, useKeys } from "../state/keys.js";
import { Icon, Key } from "./basics.js";

export const SINCE = { hour: 3_600_000, day: 86_400_000, week: 604_800_000 };
export const asked = (name) => query.value.get(name) ?? "";
export const matches = (text) => asked("q").toLowerCase().split(/\s+/).filter(Boolean).every((word) => text.toLowerCase().includes(word));

// `selects`: [name in the address, label, choices].
export function Filters({ label, selects }) {
  const search = useRef(null);
  useKeys(LIST, { "/": () => search.current?.focus() });
  const names = ["q", ...selects.map(([name]) => name)];
  return html`<div class="filters" role="search"><label class="search"><${Icon} name="search" />
    <input ref=${search} type="search" aria-label=${label} placeholder=${label} value=${asked("q")} onInput=${(event) => setQuery({ q: event.target.value })} />
    <${Key}>/<//></label>
    ${selects.map(([name, words, choices]) => html`<select key=${name} aria-label=${words} value=${asked(name)} onChange=${(event) => setQuery({ [name]: event.target.value })}>
      <option value="">${words}: any</option>${choices.map((each) => html`<option key=${each} value=${each}>${words}: ${each.replace("_", " ")}</option>`)}</select>`)}
    ${names.some(asked) && html`<button type="button" class="link" onClick=${() => setQuery(Object.fromEntries(names.map((name) => [name, ""])))}>Clear</button>`}</div>`;
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
