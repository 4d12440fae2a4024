// Where the page is: the address is the only state of navigation, and every place has one.
import { computed, signal } from "../vendor/preact.js";
import { root } from "../api.js";

const read = () => ({ path: location.pathname.slice(root.length + 2).replace(/^\/|\/$/g, ""), query: location.search, hash: location.hash });
const here = signal(read());
export const path = computed(() => here.value.path.split("/").filter(Boolean).map(decodeURIComponent));
export const query = computed(() => new URLSearchParams(here.value.query));
export const event = computed(() => Number(here.value.hash.match(/^#e(\d+)$/)?.[1] ?? 0)); // of a record, that the address names; 0: none
export const address = (to) => `${root}ui/${to}`;

// Where something was asked: a session, or the run whose runner has its name and the number of the attempt.
export const askedAt = (session) =>
  session.startsWith("run_") ? `runs/${encodeURIComponent(session.replace(/-\d+$/, ""))}` : `sessions/${encodeURIComponent(session)}`;

addEventListener("popstate", () => (here.value = read()));
addEventListener("hashchange", () => (here.value = read()));

export function go(to, { replace = false } = {}) {
  const next = address(to);
  if (next === location.pathname + location.search + location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", next);
  here.value = read();
}

export function setQuery(changes) {
  const next = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const text = next.toString();
  go(path.value.map(encodeURIComponent).join("/") + (text ? `?${text}` : ""), { replace: true });
}

// Links are links: they open in a new tab where somebody wants that, and here they load nothing.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !url.pathname.startsWith(`${root}ui`) || link.target || link.download) return;
  event.preventDefault();
  go(url.pathname.slice(root.length + 3) + url.search + url.hash);
});
