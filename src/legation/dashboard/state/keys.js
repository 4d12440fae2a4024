// Keys: whoever is on the screen says what a key does now; decisions count only when the item can have been read.
import { useLayoutEffect, useRef } from "../vendor/preact.js";
import { connection } from "./stream.js";

export const ARMED_AFTER_MS = 400; // after the whole card is painted
const FOCUS_MS = 300; // after the window got focus
export const SHELL = 0;
export const LIST = 1;
export const ITEM = 2;
export const DIALOG = 3;
const layers = new Set();
let focusedAt = -Infinity;
let justFocused = false; // the click that brought the window to the front
let prefix = "";

addEventListener("focus", () => {
  focusedAt = performance.now();
  justFocused = true;
  setTimeout(() => (justFocused = false), FOCUS_MS);
});

export const inField = (target) => target.closest?.("input, textarea, select, [contenteditable]") != null;
export const settled = () => performance.now() - focusedAt >= FOCUS_MS && connection.value.state === "live";
export const clickCounts = () => !justFocused;

// {key: run} or {key: {run, decides: () => armed}}; of the layers that have a key the innermost wins.
export function useKeys(level, keys) {
  const layer = useRef(null);
  layer.current ??= { level, keys };
  layer.current.keys = keys; // those of what is painted now
  useLayoutEffect(() => { // what is painted has its keys
    layers.add(layer.current);
    return () => layers.delete(layer.current);
  }, []);
}

addEventListener("keydown", (event) => {
  if (event.isComposing || event.altKey || event.metaKey || event.defaultPrevented) return;
  const typing = inField(event.target);
  let name = event.key;
  if (event.ctrlKey) {
    if (name !== "Enter" && name !== "f") return;
    name = `Ctrl ${name}`;
  }
  if (name === "Escape" && event.target.type === "search") return event.target.blur(); // the innermost thing
  if (typing && name !== "Escape" && !name.startsWith("Ctrl ")) return;
  // A focused button or link has its own Enter and space.
  if (name === "Enter" && event.target.closest?.("button, a, summary, [role=option]")) return;
  if (prefix === "g" && name.length === 1) name = `g ${name}`;
  prefix = event.key === "g" && !typing ? "g" : "";
  for (const layer of [...layers].sort((one, other) => other.level - one.level)) {
    const found = layer.keys[name];
    if (!found) continue;
    const run = found.run ?? found;
    if (found.decides) {
      if (event.repeat || !settled() || !found.decides()) return;
    }
    event.preventDefault();
    run(event);
    return;
  }
});
