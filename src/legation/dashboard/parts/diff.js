// Diffs: what stands there and what would, in colour, unified or side by side, with the words that changed.
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { structuredPatch, diffWordsWithSpace } from "../vendor/diff.js";
import { hunks as hunksOf } from "../state/patch.js";
import { Copy, Icon } from "./basics.js";
import { highlighted, language, useHighlight } from "./code.js";
import { Agent, CUT_AT, bytes, number, shown, strip } from "./text.js";

const LINES_AT_ONCE = 2000;
const TIMEOUT_MS = 250; // of the search for the shortest diff: beyond that everything old goes and everything new comes
const WORDS_UPTO = 400; // characters of a line in which changed words are looked for

export function compare(oldText, newText) {
  const before = strip(oldText ?? "").clean;
  const after = strip(newText ?? "").clean;
  const patch = structuredPatch("a", "b", before, after, "", "", { context: 3, timeout: TIMEOUT_MS });
  return counted(patch?.hunks ?? whole(before, after));
}

function counted(hunks) {
  let added = 0;
  let removed = 0;
  for (const hunk of hunks) {
    for (const line of hunk.lines) {
      if (line[0] === "+") added++;
      else if (line[0] === "-") removed++;
    }
  }
  return { hunks, added, removed };
}

function whole(before, after) {
  const old = before ? before.split("\n") : [];
  const fresh = after ? after.split("\n") : [];
  return [{ oldStart: 1, newStart: 1, lines: [...old.map((line) => `-${line}`), ...fresh.map((line) => `+${line}`)] }];
}

// One entry a line: numbers on both sides, and which words changed where a line has its counterpart.
function lines(hunks) {
  const found = [];
  hunks.forEach((hunk, at) => {
    if (at > 0 || hunk.oldStart > 1) found.push({ sign: "@", text: `line ${hunk.newStart}` });
    let old = hunk.oldStart;
    let fresh = hunk.newStart;
    let taken = [];
    let given = [];
    const flush = () => {
      if (taken.length === given.length) taken.forEach((line, index) => pair(line, given[index]));
      taken = [];
      given = [];
    };
    for (const line of hunk.lines) {
      const [sign, text] = [line[0], line.slice(1)];
      if (sign === "\\") continue;
      const entry = { sign, text, old: sign === "+" ? null : old++, fresh: sign === "-" ? null : fresh++ };
      if (sign === "-") {
        if (given.length) flush();
        taken.push(entry);
      } else if (sign === "+") given.push(entry);
      else flush();
      found.push(entry);
    }
    flush();
  });
  return found;
}

function pair(one, other) {
  if (one.text.length > WORDS_UPTO || other.text.length > WORDS_UPTO) return;
  const words = diffWordsWithSpace(one.text, other.text);
  const same = words.filter((word) => !word.added && !word.removed).reduce((sum, word) => sum + word.value.length, 0);
  if (same < Math.min(one.text.length, other.text.length) / 3) return; // another line altogether
  one.words = words.filter((word) => !word.added);
  other.words = words.filter((word) => !word.removed);
}

const code = (entry, name, upto) => {
  if (!entry) return "";
  if (entry.text.length > upto) return [...shown(entry.text.slice(0, upto)), html`<span class="mark">${bytes(entry.text.length - upto)} more</span>`];
  if (entry.words) return entry.words.map((word) => (word.added || word.removed
    ? html`<mark>${shown(word.value)}</mark>` : shown(word.value)));
  return highlighted(entry.text, name);
};
const CLASS = { "+": "add", "-": "del", "@": "at", " ": "" };

function Unified({ entries, name, longest }) {
  return entries.map((entry, at) =>
    entry.sign === "@"
      ? html`<tr key=${at} class="at"><td colspan="4">${entry.text}</td></tr>`
      : html`<tr key=${at} class=${CLASS[entry.sign]}><td class="no">${entry.old}</td><td class="no">${entry.fresh}</td>
        <td class="sign">${entry.sign}</td><td class="code">${code(entry, name, longest)}</td></tr>`,
  );
}

function Split({ entries, name, longest }) {
  const pairs = [];
  let waiting = [];
  for (const entry of entries) {
    if (entry.sign === "-") waiting.push(pairs.push([entry, null]) - 1);
    else if (entry.sign === "+" && waiting.length) pairs[waiting.shift()][1] = entry;
    else {
      if (entry.sign !== "+") waiting = [];
      pairs.push(entry.sign === "+" ? [null, entry] : [entry, entry]);
    }
  }
  return pairs.map(([one, other], at) =>
    one?.sign === "@"
      ? html`<tr key=${at} class="at"><td colspan="4">${one.text}</td></tr>`
      : html`<tr key=${at}><td class="no">${one?.old}</td><td class=${`code half ${one?.sign === "-" ? "del"
        : ""}`}>${code(one, name, longest)}</td><td class="no">${other?.fresh}</td><td class=${`code half ${other?.sign === "+"
        ? "add" : ""}`}>${code(other, name, longest)}</td></tr>`,
  );
}

export function Diff({ path, patch, oldText, newText, cut = false, isNew = false, all = false }) {
  useHighlight();
  const [split, setSplit] = useState(false);
  const [upto, setUpto] = useState(LINES_AT_ONCE);
  const [whole_, setWhole] = useState(false); // lines that are very long, too
  const made = useMemo(() => (cut ? null : patch === undefined ? compare(oldText, newText) : counted(hunksOf(patch))), [patch, oldText, newText, cut]);
  const entries = useMemo(() => (made ? lines(made.hunks) : []), [made]);
  useEffect(() => {
    if (all) setUpto(Infinity); // on a card nothing is cut
  }, [all]);
  const Lines = split ? Split : Unified;
  return html`<figure class="diff panel">
    <figcaption><${Icon} name="file" /> <${Agent} text=${path} />${made &&
      html` <${Counts} added=${made.added} removed=${made.removed} />`}${isNew &&
      html` <span class="muted">new file</span>`}
      <span class="grow" />
      <span class="switch" role="group" aria-label="View">
        <button type="button" aria-pressed=${!split} onClick=${() => setSplit(false)}>Unified</button>
        <button type="button" aria-pressed=${split} onClick=${() => setSplit(true)}>Split</button></span>
      <${Copy} text=${() => (patch === undefined ? newText ?? "" : `diff --git ${patch}`)} label=${patch === undefined ? "Copy the new text"
        : "Copy this patch"} /></figcaption>
    ${cut ? html`<p class="muted pad">${cut === true ? "Too large to be shown." : cut}</p>` : null}
    <div class="scroll" tabindex="0" role="region" aria-label="Changed lines"><table><tbody>
      <${Lines} entries=${entries.slice(0, upto)} name=${language(path)} longest=${all || whole_ ? Infinity : CUT_AT} /></tbody></table></div>
    ${entries.length > upto && html`<p class="pad">
      <button type="button" class="link" onClick=${() => setUpto(upto + LINES_AT_ONCE)}>${number(entries.length - upto)} more lines</button></p>`}
    ${!all && !whole_ && entries.some((entry) => entry.text.length > CUT_AT) && html`<p class="pad">
      <button type="button" class="link" onClick=${() => setWhole(true)}>Show long lines whole</button></p>`}
    ${made && !entries.length && html`<p class="muted pad">No line changes.</p>`}
  </figure>`;
}

export const Counts = ({ added, removed }) => html`<span class="counts">
  <span class="plus">+${number(added)}</span> <span class="minus">-${number(removed)}</span></span>`;
