// The inbox: what needs me, what is going wrong, what did I get; the list beside the item that was chosen.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { get, me, part, post } from "../api.js";
import { inbox, needing, outcomes, problem, readInbox, rows, where } from "../state/inbox.js";
import { address, askedAt, go, query, setQuery } from "../state/place.js";
import { LIST, useKeys } from "../state/keys.js";
import { Ago, Failed, Icon, Key, Left, Loading } from "../parts/basics.js";
import { matches } from "../parts/list.js";
import { Agent } from "../parts/text.js";
import { Approval } from "../parts/approval.js";
import { Question } from "../parts/question.js";
import { Ended } from "../parts/ended.js";
import { Start } from "./start.js";

const SECTIONS = [
  ["you", "Needs you", "soonest to expire first"],
  ["wrong", "Going wrong", "newest first"],
  ["ready", "Ready", "not looked at yet"],
];
const CALM_MS = 1000; // after the pointer moved over the list
const FOLDED = ["supervisor", "others"];
const ICONS = { Edit: "edit", Delete: "edit", Move: "edit", Run: "execute", Read: "read", Fetch: "fetch", Search: "search", Answer: "question", Failed: "wrong", "Timed out": "wrong", "Cut off": "wrong", "Agent ended": "wrong", "Cleanup failed": "wrong", Hangs: "wrong", Loops: "again", Ended: "good" };

function Row({ row, chosen, gone }) {
  const { item, members } = row;
  const many = members.length > 1;
  const isSession = item.kind === "session" || item.kind === "run";
  return html`<a role="option" aria-selected=${chosen} tabindex=${chosen ? 0 : -1} data-id=${item.id} href=${address(where(item)) + location.search}
    class=${`row ${chosen ? "chosen" : ""} ${gone ? "gone" : ""} ${item.section}`}>
    <${Icon} name=${ICONS[item.verb] ?? "call"} />
    <span class="what">${item.kind === "question" ? html`<${Agent} mono=${false} text=${item.object} />` : isSession
      ? html`${item.verb}: <${Agent} mono=${false} text=${item.object} />`
      : html`${item.verb} <${Agent} text=${item.object} />`}${many &&
      html` <span class="times">×${members.length}</span>`}</span>
    <span class="when">${isSession ? html`<${Ago} at=${item.since} suffix="" />`
      : html`<${Left} since=${item.since} until=${item.expiresAt} />`}</span>
    ${!isSession && html`<span class="who">${(item.sessionTitle ?? item.sessionId) &&
      html`<${Agent} mono=${false} text=${many ? members.map((each) => each.sessionTitle ?? each.sessionId).join(", ") : (item.sessionTitle ?? item.sessionId)} /> · `}${item.agent}</span>`}
    <span class="age">${!isSession ? html`<${Ago} at=${item.since} />` : gone ? "" : item.section === "ready" ? "Read" : "Open"}</span>
    <span class="why">${gone ? html`<em>${gone}</em>` : html`${isSession && `${item.agent} · `}${item.injectionRisk &&
      html`<b class="bad">signs of injection</b> · `}${item.outside &&
      html`<b class="bad">outside the workspace</b> · `}${item.rule &&
      html`<code>${item.rule}</code>`}${item.rule && item.why && " · "}${item.why &&
      html`<${Agent} mono=${false} text=${item.why} />`}${item.question &&
      `a question of the agent${item.question.fields.length > 1 ? `, ${item.question.fields.length} fields` : ""}`}${isSession && !item.why &&
      (item.section === "ready" ? "ended its turn" : "")}`}</span>
  </a>`;
}

// The list as it is shown: under a pointer that moves it stays as it is, so that nobody presses what was not there.
function useCalm(live, movedAt) {
  const [shown, setShown] = useState(live);
  useEffect(() => {
    let due = null;
    const look = () => {
      const rest = movedAt.current + CALM_MS - performance.now();
      if (rest > 0) due = setTimeout(look, rest);
      else setShown(live);
    };
    if (shown !== live) look();
    return () => clearTimeout(due);
  }, [live]);
  return [shown ?? live, () => setShown(live)];
}

// Rows that came and were not in view yet: they are where they belong, and a pill leads there.
function useUnseen(list, told, visible, id) {
  const known = useRef(null);
  const [unseen, setUnseen] = useState([]);
  const look = () => {
    const place = list.current?.getBoundingClientRect();
    if (!place) return;
    known.current ??= new Set(told.items.map((item) => item.id));
    const found = visible.filter(({ item, members }) => {
      const { top, bottom } = element(list, item.id)?.getBoundingClientRect() ?? place;
      const isKnown = members.some(({ id }) => known.current.has(id)) || (top < place.bottom && bottom > place.top);
      if (isKnown) for (const { id } of members) known.current.add(id); // a group is one, whichever of it is the first
      return !isKnown;
    }).map((row) => row.item.id);
    setUnseen((before) => (before.join() === found.join() ? before : found));
  };
  useLayoutEffect(look, [told, visible.length, id]); // where an item takes the place of the list, nothing of it is in view
  return [unseen, look];
}
const element = (list, name) => list.current?.querySelector(`[data-id="${CSS.escape(name)}"]`);

export function Inbox({ id, session }) {
  const movedAt = useRef(-Infinity);
  const [told, showNow] = useCalm(inbox.value, movedAt);
  const list = useRef(null);
  const kept = useRef(null); // the chosen row as it was last seen: it stays until somebody leaves it
  const [apart, setApart] = useState(new Set());
  const [folded, setFolded] = useState(true);
  const show = query.value.get("show") ?? "all";
  const search = useRef(null);
  const find = query.value.get("q") ?? "";
  const fits = (row) => !find || row === current || row.members.some((item) => matches(`${item.verb} ${item.object} ${item.sessionTitle ?? ""} ${item.agent} ${item.rule ?? ""}`));

  const all = told ? rows(told.items, apart) : [];
  const chosenRow = all.find((row) => row.members.some((item) => item.id === id)) ?? null;
  if (chosenRow) kept.current = { row: chosenRow, at: all.indexOf(chosenRow), id };
  else if (kept.current?.id !== id) kept.current = null;
  const gone = !chosenRow && kept.current ? kept.current : null;
  if (gone) all.splice(Math.min(gone.at, all.length), 0, gone.row);
  const current = chosenRow ?? gone?.row ?? null;
  const visible = all.filter((row) => (show === "all" ? !FOLDED.includes(row.item.section) || !folded || row === current : row.item.section === show || row === current) && fits(row));

  // New rows go to their rank at once, and the chosen one stays where it is on the screen.
  const before = useRef(null);
  const chosen = id && current && element(list, current.item.id);
  before.current = chosen ? chosen.offsetTop - list.current.scrollTop : null;
  useLayoutEffect(() => {
    const now = id && list.current?.querySelector(".chosen");
    if (now && before.current !== null) list.current.scrollTop = now.offsetTop - before.current;
  }, [told]);
  useEffect(() => {
    list.current?.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
  }, [id]);

  const [unseen, look] = useUnseen(list, told, visible, id);
  const held = new Set(told?.items.map((item) => item.id));
  const waiting = (inbox.value?.items ?? []).filter((item) => !held.has(item.id) && !FOLDED.includes(item.section)).length;
  const toNew = () => {
    showNow();
    if (unseen.length) element(list, unseen[0])?.scrollIntoView({ block: "center" });
  };

  const move = (by) => {
    if (!visible.length) return;
    const at = visible.indexOf(current);
    const next = visible[at < 0 ? (by > 0 ? 0 : visible.length - 1) : at + by];
    if (next) go(where(next.item) + location.search);
  };
  const lookAt = () => {
    if (current && ["wrong", "ready"].includes(current.item.section)) post(`v1/inbox/${part(current.item.id)}/looked-at`, { since: current.item.since }).catch(() => {});
  };
  useKeys(LIST, { j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), x: lookAt, "/": () => search.current?.focus(), Escape: () => id && go(`inbox${location.search}`) });

  if (!told && problem.value) return html`<main>
    <${Failed} what="the inbox" problem=${problem.value} again=${readInbox} still="Agents that wait go on waiting." /></main>`;
  if (!told) return html`<${Loading} what="the inbox" />`;
  const ending = (row) => outcomes.value.get(row.item.id) ?? (row !== gone?.row ? null : ["session", "run"].includes(row.item.kind) ? "looked at" : "over");
  const count = (name) => rows(told.items.filter((item) => item.section === name), apart).length;
  const next = visible[visible.indexOf(current) + 1] ?? null;
  return html`<div class="inbox">
    <section class="list" aria-label="Inbox">
      <header><h1>Inbox</h1><label class="search"><${Icon} name="search" />
        <input ref=${search} type="search" aria-label="Search the inbox" placeholder="Search" value=${find} onInput=${(event) => setQuery({ q: event.target.value })} /></label><${Notify} /></header>
      <div class="tabs" role="group" aria-label="Show">${[["all", "All"], ...SECTIONS].map(([name, label]) => html`<button type="button" aria-pressed=${show === name} onClick=${() => setQuery({ show: name === "all"
        ? "" : name })}>${label} <span>${name === "all" ? count("you") + count("wrong") + count("ready") : count(name)}</span></button>`)}</div>
      ${waiting + unseen.length > 0 && html`<div class="pill-place"><button type="button" class="pill-button" onClick=${toNew}><${Icon} name="inbox" /> ${waiting + unseen.length} new</button></div>`}
      <div class="rows" ref=${list} role="listbox" aria-label="What waits" tabindex=${current ? -1 : 0} onScroll=${look} onPointerMove=${() => (movedAt.current = performance.now())} onPointerLeave=${() => (movedAt.current = -Infinity)}>
        ${SECTIONS.map(([name, label, order]) => {
          const mine = visible.filter((row) => row.item.section === name);
          if (!mine.length) return null;
          return html`<div role="group" aria-label=${label} key=${name}>
            <h2 role="presentation">${label} <small>${order}</small></h2>${mine.map((row) => html`<${Row} key=${row.item.id} row=${row} chosen=${row === current} gone=${ending(row)} />`)}</div>`;
        })}
        ${FOLDED.map((name) => {
          const mine = visible.filter((row) => row.item.section === name);
          if (!mine.length) return null;
          return html`<div role="group" aria-label=${name} key=${name}><h2 role="presentation">${name === "others"
            ? "For others" : "With the supervisor"} <small>${name === "others" ? told.others.join(", ")
            : "you may answer too"}</small></h2>${mine.map((row) => html`<${Row} key=${row.item.id} row=${row} chosen=${row === current} gone=${ending(row)} />`)}</div>`;
        })}
      </div>
      ${told.counts.supervisor + told.counts.others > 0 &&
        html`<p class="more">${told.counts.supervisor ? `${told.counts.supervisor} more ${told.counts.supervisor > 1
        ? "are" : "is"} with the supervisor` : ""}${told.counts.supervisor && told.counts.others ? ", "
        : ""}${told.counts.others ? `${told.counts.others} for others`
        : ""} <button type="button" class="link" aria-expanded=${!folded} onClick=${() => setFolded(!folded)}>${folded
        ? "Show" : "Fold"}</button></p>`}
      <footer><${Key}>j<//><${Key}>k<//> move <${Key}>a<//> approve <${Key}>d<//> deny <${Key}>?<//> <span class="wide">all keys</span></footer>
    </section>
    <section class="item" aria-label="Item">${detail(id, session, current, next, apart, setApart, told)}</section>
  </div>`;
}

function detail(id, session, row, next, apart, setApart, told) {
  if (!id) return html`<${Nothing} told=${told} />`;
  const split = () => setApart(new Set([...apart, row.item.group]));
  if (session) return html`<${Question} key=${id} id=${id} session=${session} row=${row} next=${next} />`;
  if (row && row.item.kind !== "approval") return html`<${Ended} key=${id} item=${row.item} next=${next} />`;
  if (!row && !id.startsWith("apr_")) return html`<${Gone} id=${id} />`;
  return html`<${Approval} key=${id} id=${id} row=${row} next=${next} split=${split} />`;
}

function Gone({ id }) {
  return html`<div class="state quiet-state"><h2>It is not in the inbox any more.</h2>
    <p>You have looked at it, or it goes on.</p>
    <p><a class="button" href=${address(askedAt(id))}>Open it</a></p></div>`;
}

function Nothing({ told }) {
  const [fresh, setFresh] = useState(false);
  const you = needing();
  const { supervisor } = told.counts;
  useEffect(() => {
    if (!told.items.length) Promise.all([get("v1/sessions?limit=1"), get("v1/runs?limit=1")]).then(([{ sessions }, { items }]) => setFresh(!sessions.length && !items.length), () => {});
  }, [told.items.length]);
  if (fresh && !told.items.length) return html`<${Start} title="Nothing has run here yet." />`;
  const waits = (work) => told.items.some((item) => item.section === "you" && (item.runId ?? item.sessionId) === work.id);
  const busy = told.working - told.works.filter(waits).length;
  const works = `${busy || "None"} ${busy > 1 ? "work" : "works"}${supervisor ? `, ${supervisor} with the supervisor` : ""}.`;
  if (you) return html`<div class="state quiet-state"><h2>${you} ${you === 1 ? "needs" : "need"} you.</h2>
    <p>${works} Choose one, or press <${Key}>j<//>.</p></div>`;
  return html`<div class="state quiet-state"><h2><${Icon} name="good" /> Nothing waits for you.</h2><p>${works}</p>
    <p><a class="button" href=${address("sessions/new")}>
      <${Icon} name="plus" /> New session <${Key}>n<//></a> <a class="button quiet" href=${address("start")}>See a rehearsal</a></p></div>`;
}

// Told by the browser while the page is in the background; nothing of what the agent said is in it.
function Notify() {
  const [permission, setPermission] = useState(globalThis.Notification?.permission ?? "denied");
  const known = useRef(null);
  const waiting = (inbox.value?.items ?? []).filter((item) => item.section === "you").map((item) => item.id);
  useEffect(() => {
    const before = known.current;
    known.current = new Set(waiting);
    if (before === null || permission !== "granted" || !document.hidden) return;
    const fresh = waiting.filter((id) => !before.has(id));
    if (fresh.length) new Notification(`Legation: ${fresh.length === 1 ? "one more waits" : `${fresh.length} more wait`} for you`, { tag: "legation", body: me.value.workspace });
  }, [waiting.join()]);
  if (permission !== "default") return null;
  return html`<button type="button" class="quiet" title="Tell me in the browser" aria-label="Tell me in the browser" onClick=${() => Notification.requestPermission().then(setPermission)}><${Icon} name="bell" /></button>`;
}
