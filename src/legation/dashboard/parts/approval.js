// One approval: what would happen, why I am asked, what is known of it, and the answer.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { call, get, may, me, part } from "../api.js";
import { changed, outcomes } from "../state/inbox.js";
import { ms } from "../state/clock.js";
import { address, askedAt, go } from "../state/place.js";
import { ITEM, useKeys } from "../state/keys.js";
import { Actions, KIND } from "./actions.js";
import { Ago, Copy, Failed, Icon, Left, Level, Loading, levelOf, verb } from "./basics.js";
import { Counts, Diff, compare } from "./diff.js";
import { Agent, folder, invisible, number, short, within } from "./text.js";

const FILES_AT_ONCE = 50; // names of files on a card

export function Approval({ id, row, next, split }) {
  const [detail, setDetail] = useState(null);
  const [problem, setProblem] = useState(null);
  const [seen, setSeen] = useState(false);
  const [whole, setWhole] = useState(true); // every file of it was opened
  const paintedAt = useRef(null);
  const heading = useRef(null);
  const end = useRef(null);
  const load = () =>
    get(`approvals/${part(id)}`).then(
      (told) => {
        if (told.status !== "pending") outcomes.value = new Map(outcomes.value).set(id, told.status);
        setProblem(null);
        setDetail(told);
        return told;
      },
      (failed) => setProblem(failed),
    );
  useEffect(() => void load(), [id]);
  useEffect(() => {
    if (changed.value.ids.has(id) || changed.value.ids.has(null)) load();
  }, [changed.value]);
  const digest = detail?.digest ?? null;
  useEffect(() => {
    if (!detail) return undefined;
    setSeen(false);
    heading.current?.focus({ preventScroll: true });
    // Two frames: then it is on the screen, and the time in which nobody can have read it begins.
    requestAnimationFrame(() => requestAnimationFrame(() => (paintedAt.current = performance.now())));
    const watch = new IntersectionObserver((found) => found.some((each) => each.isIntersecting) && setSeen(true));
    if (end.current) watch.observe(end.current);
    return () => {
      paintedAt.current = null;
      watch.disconnect();
    };
  }, [digest]);
  useKeys(ITEM, detail?.session_id ? { o: () => go(askedAt(detail.session_id)) } : {});
  if (problem && !detail) {
    if (problem.status === 404) return html`<div class="state"><h2>There is no such approval here.</h2>
      <p>It was deleted, or it is another workspace's.</p></div>`;
    return html`<${Failed} what="this approval" problem=${problem} again=${load} still="It goes on waiting." />`;
  }
  if (!detail) return html`<${Loading} what="the approval" />`;
  const members = row?.members ?? [];
  return html`<${Head} detail=${detail} item=${row?.item} many=${members.length} heading=${heading} />
    <div class="body"><div class="content">
      ${detail.injection_risk && html`<div class="flag" role="note"><h3>
        <${Icon} name="wrong" /> Somebody else may have put the agent up to this</h3>
        <p>Signs of injection were found.</p></div>`}
      <${Levels} detail=${detail} />
      <${What} detail=${detail} many=${members.length} setWhole=${setWhole} />
      ${members.length > 1 && html`<${Members} members=${members} />`}
      <p class="bound"><${Icon} name="lock" /> Your answer counts for exactly this action <code>${short(detail.digest)}</code>${detail.policy_version
        ? html` under policy <code>${short(detail.policy_version)}</code>` : ""}, once.</p>
      <div ref=${end} class="end" />
    </div><${Evidence} detail=${detail} reload=${load} /></div>
    <${Actions} detail=${detail} members=${members} next=${next} split=${split} seen=${seen && whole} paintedAt=${paintedAt} reload=${load} />`;
}

export function subject(detail) {
  if (detail.kind === "execute") return { verb: "Run", object: detail.command?.length <= 40 ? detail.command : null };
  const path = detail.paths?.[0]?.path;
  if (path && detail.kind !== "call") return { verb: verb(detail.kind), object: within(path, detail.workspace) + (detail.paths.length > 1 ? ` and ${detail.paths.length - 1} more` : "") };
  return { verb: verb(detail.kind), object: detail.urls?.[0] ?? detail.tool };
}

function Head({ detail, item, many, heading }) {
  const { verb: word, object } = subject(detail);
  const totals = (detail.diffs ?? []).slice(0, FILES_AT_ONCE).filter((diff) => !diff.cut && diff.new_text !== null).map((diff) => compare(diff.old_text, diff.new_text));
  const sum = (name) => totals.reduce((all, each) => all + each[name], 0);
  const pending = detail.status === "pending";
  return html`<header class="head">
    <p class="crumbs"><a class="back" href=${address("inbox")} aria-label="Back to the list"><${Icon} name="back" /></a>
      <${Icon} name="agents" /> ${detail.agent_id} ${detail.session_id &&
      html`› <${Agent} mono=${false} text=${item?.sessionTitle ?? detail.session_id} />`}
      <span class="where"><${Icon} name="folder" /> <code>${many > 1 ? `${many} folders` : detail.cwd || detail.workspace ? folder(detail.cwd ?? detail.workspace)
        : "no folder"}</code></span>
      <span class="grow" />${detail.session_id &&
        html`<a class="asked" href=${address(askedAt(detail.session_id))}>Open where it was asked <kbd>o</kbd></a>`}</p>
    <h1 tabindex="-1" ref=${heading}>${object === null ? "Run a command"
      : html`${word} <${Agent} text=${object} />`}${many > 1 && html` <span class="times">×${many}</span>`}</h1>
    <p class="facts">${totals.length > 0 && detail.diffs.length <= FILES_AT_ONCE && html`<${Counts} added=${sum("added")} removed=${sum("removed")} />`}
      ${pending ? html`<span class="pill">
        <${Left} since=${detail.created_at} until=${detail.expires_at} words="left" /></span>`
        : html`<span class=${`pill ${detail.status}`}>${detail.status}</span>`}</p>
  </header>`;
}

const MATCHES = /^rule \S+ of policy \S+ matches$/; // says no more than its name, which stands above it
const SUPERVISOR = {
  "not-asked": ["Not asked", "the rule goes straight to a person"],
  waiting: ["May take it", "none has looked at it yet"],
  looking: ["Looks at it", ""],
  absent: ["Nobody is attached", "so people were asked"],
  undecided: ["Did not answer", "so people were asked"],
  escalated: ["Escalated", ""],
  decided: ["Decided", ""],
  "passed-over": ["Passed over", "a person answered first"],
};

function Levels({ detail }) {
  const asked = detail.asked;
  if (!asked) return null;
  const { policy, supervisor, person } = asked;
  const [state, words] = SUPERVISOR[supervisor.state] ?? [supervisor.state, ""];
  const waited = ["absent", "undecided"].includes(supervisor.state) && supervisor.waited_ms >= 1000 ? `waited ${Math.round(supervisor.waited_ms / 1000)} s, then people were asked` : words;
  const reviewers = person.reviewers ?? [];
  return html`<ol class="levels" aria-label="Why you are asked">
    <li><span><${Level} level="policy" /> Policy</span><b><code>${policy.rule}</code></b><small>${policy.reason && !MATCHES.test(policy.reason)
      ? html`<${Agent} mono=${false} text=${policy.reason} />`
      : `${(KIND[detail.kind] ?? "calls").toLowerCase()}: ask ${policy.verdict === "human_approval" ? "a person" : "the supervisor"}`}</small></li>
    <li><span><${Level} level="supervisor" /> Supervisor</span><b>${state}</b><small>${supervisor.state === "escalated"
      ? html`${supervisor.by_name ?? supervisor.by}${supervisor.confidence === null
      ? "" : `, ${supervisor.confidence} sure`}${supervisor.reasoning
      ? html`: <${Agent} mono=${false} text=${supervisor.reasoning} />` : ""}` : supervisor.by_name ?? waited}</small></li>
    <li class=${person.state === "waiting" ? "waits" : ""}><span><${Level} level="person" /> Person</span>
      <b>${person.state === "waiting" ? "You" : detail.resolved_by_name ?? (detail.status === "pending" ? "Not yet" : "Nobody")}</b><small>${reviewers.length
      ? html`for ${reviewers.join(", ")} · no grant lifts this`
      : html`any approver of <b>${me.value.workspace}</b> · the first answer stands`}</small></li>
  </ol>`;
}

// Arguments as a person reads them: a diff for edits, a command line for a shell, a table for everything else.
function What({ detail, many, setWhole }) {
  const diffs = detail.diffs ?? [];
  return html`${detail.command !== null && detail.command !== undefined &&
    html`<${Command} detail=${detail} many=${many} />`}
    ${diffs.length > 0 && html`<${Diffs} diffs=${diffs} root=${detail.workspace} setWhole=${setWhole} />`}
    ${!diffs.length && !detail.command && html`<${Arguments} detail=${detail} />`}`;
}

function Diffs({ diffs, root, setWhole }) {
  const [open, setOpen] = useState(new Set(diffs.length <= 3 ? diffs.keys() : [0]));
  const [upto, setUpto] = useState(FILES_AT_ONCE);
  useEffect(() => setWhole(open.size === diffs.length), [open, diffs.length]);
  const files = diffs.slice(0, upto).map((diff, at) =>
    open.has(at)
      ? html`<${Diff} key=${at} path=${within(diff.path, root)} oldText=${diff.old_text} newText=${diff.new_text} cut=${diff.cut} isNew=${diff.old_text === null && diff.source === "agent"} all />`
      : html`<button key=${at} type="button" class="panel fold" onClick=${() => setOpen(new Set([...open, at]))}>
        <${Icon} name="open" /> <${Agent} text=${within(diff.path, root)} /></button>`,
  );
  return html`${files}${diffs.length > upto &&
  html`<p><button type="button" class="link" onClick=${() => setUpto(upto + FILES_AT_ONCE)}>${number(diffs.length - upto)} more files</button></p>`}`;
}

function Command({ detail, many }) {
  const hidden = invisible(detail.command);
  return html`<section class="panel command"><header><${Icon} name="execute" /> Command${many > 1 ? ", the same in all"
    : html`, in <code>${folder(detail.cwd ?? detail.workspace ?? "no folder")}</code>`}<span class="grow" />
    <${Copy} text=${detail.command} /></header>
    ${hidden > 0 && html`<p class="note bad">${hidden} invisible ${hidden === 1 ? "character is"
      : "characters are"} shown as ${hidden === 1 ? "a mark" : "marks"}.</p>`}
    <pre><span class="prompt" aria-hidden="true">$ </span><${Agent} text=${detail.command} /></pre>
    ${(detail.parts?.length > 1 || detail.unreadable) && html`<table class="parts"><thead><tr><th>Taken apart</th><th>What it is</th><th>Verdict</th></tr></thead>
      <tbody>${detail.parts.map((part) => html`<tr key=${part.text}><td><${Agent} text=${part.text} /></td><td class=${part.outside || SHELL.test(part.text)
        ? "bad" : ""}>${partWords(part)}</td><td class="wait-word">${VERDICTS[part.verdict] ?? ""} <code>${part.rule}</code></td></tr>`)}
      ${detail.unreadable && html`<tr><td class="muted">and the rest</td><td class="bad" colspan="2"><${Agent} mono=${false} text=${detail.unreadable} />: nobody can know all that it runs</td></tr>`}</tbody></table>`}</section>`;
}

const SHELL = /^(?:\S*\/)?(?:ba|da|z|k|fi)?sh$|^(?:\S*\/)?(?:python3?|node|perl|ruby)$/;
const VERDICTS = { allow: "allowed", deny: "denied", supervisor: "ask", human_approval: "ask" };

// What a part does, where its text alone says so.
function partWords({ text, opens, outside }) {
  if (opens) return `${opens === "write" ? "writes" : "reads"} a file ${outside ? "outside the workspace" : outside === false ? "in the workspace" : "that cannot be told from here"}`;
  if (SHELL.test(text)) return "reads its commands from a pipe: nobody can know them";
  const [, host] = text.match(/^(?:curl|wget)\s.*?https?:\/\/([^\s/]+)/) ?? [];
  if (host) return html`fetches from <${Agent} text=${host} />`;
  if (/^(?:sudo|doas)\b/.test(text)) return "runs as another user";
  return /^\w+=/.test(text) ? "sets a variable" : "runs a program";
}

function flat(value, name = "", found = []) {
  if (value !== null && typeof value === "object" && Object.keys(value).length) {
    for (const [key, inner] of Object.entries(value)) flat(inner, name ? `${name}.${key}` : key, found);
  } else found.push([name, typeof value === "string" ? value : JSON.stringify(value)]);
  return found;
}

function Arguments({ detail }) {
  const [json, setJson] = useState(false);
  const params = detail.params;
  if (params === null) return html`<section class="panel">
    <p class="pad muted">The arguments were destroyed.</p></section>`;
  const lines = flat(params);
  // What a rule looked at and did not find: it would have decided otherwise.
  const because = Object.fromEntries((detail.looks ?? []).filter((look) => look.outcome !== "matches").map((look) => [look.why.split(/[ :]/)[0], look]));
  return html`<section class="panel arguments"><header><${Icon} name="call" /> Arguments <span class="grow" />
    <span class="switch" role="group" aria-label="View">
    <button type="button" aria-pressed=${!json} onClick=${() => setJson(false)}>Table</button>
    <button type="button" aria-pressed=${json} onClick=${() => setJson(true)}>JSON</button></span></header>
    ${json ? html`<pre class="pad"><${Agent} text=${JSON.stringify(params, null, 2)} /></pre>` : lines.length
      ? html`<table><tbody>${lines.map(([name, value]) => html`<tr key=${name} class=${because[name] ? "because" : ""}><th scope="row">
      <${Agent} mono=${false} text=${name} /></th><td>
      <${Agent} mono=${value.length < 80} text=${value} />${because[name] && html` <span class="wait-word">this made the rule ask: <code>${because[name].rule}</code> wants <${Agent} text=${because[name].why.split(": ")[0]} /></span>`}</td></tr>`)}</tbody></table>`
      : html`<p class="pad muted">It has none.</p>`}</section>`;
}

function Members({ members }) {
  return html`<section class="panel members"><header><b>${members.length} that wait for the same</b>
    <span class="grow" /><span class="muted">one answer reaches all of them</span></header>
    <table><tbody>${members.map((item) => html`<tr key=${item.id}><td>
      <${Agent} mono=${false} text=${item.sessionTitle ?? item.sessionId ?? item.agent} /></td><td>
      <code>${item.folder ? folder(item.folder) : "no folder"}</code></td><td class="right">
      <${Left} since=${item.since} until=${item.expiresAt} words="left" /></td></tr>`)}</tbody></table></section>`;
}

// What a call was about, as its arguments say it: a command, a path, an address.
const about = (params) => ["command", "path", "file_path", "url", "pattern", "query"].map((name) => params?.[name]).find((each) => typeof each === "string") ?? "";
const levelBy = (trace) => (trace.approved_by ? levelOf(trace.approved_by, trace.approved_by_name) : trace.approval_status === "denied" ? "person" : "policy");

function Evidence({ detail, reload }) {
  const [failed, setFailed] = useState(null);
  const revoke = (grant) => call("DELETE", `grants/${part(grant.id)}`).then(() => (setFailed(null), reload()), setFailed);
  const [lately, setLately] = useState(null);
  useEffect(() => {
    if (detail.session_id) get(`traces?session=${part(detail.session_id)}&limit=7`).then((told) => setLately(told.filter((each) => each.approval_id !== detail.id)), () => setLately([]));
    else setLately(detail.recent_traces);
  }, [detail.id]);
  const paths = detail.paths ?? [];
  const outside = paths.some((path) => path.inside === false);
  const link = paths.some((path) => path.link);
  return html`<aside class="evidence" aria-label="Evidence">
    ${paths.length > 0 &&
    html`<section><h2>Where it ${["edit", "delete", "move", "execute"].includes(detail.kind) ? "writes" : "looks"}</h2>
      <dl><div><dt>Workspace</dt><dd><code>${detail.workspace ? folder(detail.workspace)
        : "none"}</code></dd></div>${paths.slice(0, 8).map((path) => html`<div key=${path.path}><dt>Path</dt><dd>
        <${Agent} text=${within(path.path, detail.workspace)} /></dd></div>`)}</dl>
      ${paths.length > 8 && html`<p class="muted">and ${paths.length - 8} more</p>`}
      ${outside ? html`<p class="bad">
        <${Icon} name="wrong" /> outside the workspace</p>` : paths.every((path) => path.inside) ? html`<p class="good">
        <${Icon} name="check" /> inside the workspace${link ? ", through a link" : ", through no link"}</p>`
        : html`<p class="muted">Where it leads cannot be told.</p>`}</section>`}
    <section><h2>What it did lately</h2>
      ${lately?.length
        ? html`<ul class="lately">${lately.slice(0, 6).map((trace) => html`<li key=${trace.trace_id}>
        <${Level} level=${levelBy(trace)} tone=${trace.policy === "deny" || trace.approval_status === "denied" ? "bad" : "good"} /><${Agent} text=${`${trace.tool} ${about(trace.params)}`.trim()} />
        <${Ago} at=${trace.timestamp} suffix="" /></li>`)}</ul>` : html`<p class="muted">${lately ? "Nothing yet." : ""}</p>`}
      ${detail.session_id && html`<a href=${address(askedAt(detail.session_id))}>Show all in the session</a>`}</section>
    <section><h2>Grants in force</h2>${detail.active_grants.length ? detail.active_grants.map((grant) => html`<p key=${grant.id}>
      <code>${grant.tools}</code> for ${grant.agent}${grant.folder ? html` in <code>${folder(grant.folder)}</code>`
      : ""}<br /><small class="muted">${Math.max(0, Math.round((ms(grant.expires_at) - Date.now()) / 60000))} min left · by ${grant.granted_by_name ?? grant.granted_by}${may("approve") && me.value.level === 2 && html` · <button type="button" class="link" onClick=${() => revoke(grant)}>Revoke</button>`}</small></p>`)
      : html`<p class="muted">None.${detail.injection_risk
      ? " None would count here: where there are signs of injection, somebody is asked each time." : ""}</p>`}${failed && html`<p class="note bad" role="alert">${failed.message}</p>`}</section>
  </aside>`;
}

