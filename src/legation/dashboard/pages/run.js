// One run: how it gets on and why, what it did, what it changed, what it cost, and what was left of it.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, may, me, part, post, root } from "../api.js";
import { changed } from "../state/inbox.js";
import { useRecord } from "../state/record.js";
import { connection } from "../state/stream.js";
import { clock, exact, now, span } from "../state/clock.js";
import { address, event, go, query, setQuery } from "../state/place.js";
import { DIALOG, ITEM, useKeys } from "../state/keys.js";
import { files as filesOf } from "../state/patch.js";
import { Ago, Chip, Copy, Failed, Icon, Key, Loading, levelOf } from "../parts/basics.js";
import { Composer } from "../parts/composer.js";
import { Counts } from "../parts/diff.js";
import { Markdown } from "../parts/markdown.js";
import { Changes, Decisions, Levels, Plan, Raw, Rows, askPlace, waits } from "../parts/record.js";
import { KeyField, secretsOf } from "../parts/key.js";
import { Agent, folder, number } from "../parts/text.js";

const ENDED = ["succeeded", "failed", "timed_out", "cancelled"];
// By progress: tone, icon, word.
const STATES = {
  queued: ["", "clock", "Queued"], preparing: ["work", null, "Preparing"], starting: ["work", null, "Starting"], waiting: ["wait", null, "Waiting on you"],
  paused: ["", "clock", "Paused"], suspended: ["", "clock", "Suspended"], cancelling: ["", null, "Cancelling"], cleaning: ["work", null, "Cleaning up"],
  succeeded: ["good", "check", "Succeeded"], failed: ["bad", "wrong", "Failed"], timed_out: ["bad", "wrong", "Timed out"], cancelled: ["", "denied", "Cancelled"],
};
const PROGRESS = { working: ["work", null, "Working"], "waiting-on-you": ["wait", null, "Waiting on you"], "waiting-on-provider": ["wait", null, "Waiting on the provider"], looping: ["bad", "again", "Looping"], hung: ["bad", "wrong", "Hung"], idle: ["", null, "Idle"] };
// What somebody can do about a class of failures.
const ADVICE = {
  tenant_permanent: "Trying again with the same key, model or folder cannot help, so it was not tried again.",
  tenant_quota: "A cap of the workspace or of the run is reached.",
  provider_transient: "The provider did not answer. Resuming it may do.",
  provider_permanent: "The provider refuses what was sent, so it was not tried again.",
  provider_limit: "The provider's usage limit lasted longer than a run may wait.",
  agent_failed: "The agent ended, or said that it cannot go on. Its last words are in the transcript.",
  machine_lost: "The machine or the runner is gone, and the prompt may have had an effect. Resuming goes on.",
  deadline: "Its time was up. What it had done is kept.",
  unavailable: "What the machine should have is not there.",
  internal: "This is a defect of Legation's.",
};
const GONE = { folder: "Remove its folders", runner: "Stop the runner and all it started", secrets: "Destroy its secrets" };

export const hasEnded = (run) => ENDED.includes(run.state);

export function RunState({ run, asks = [] }) {
  const [tone, icon, word] = (asks.length && !hasEnded(run) ? PROGRESS["waiting-on-you"] : run.state === "running" ? PROGRESS[run.liveness] : STATES[run.state]) ?? PROGRESS.working;
  return html`<${Chip} tone=${tone} icon=${icon}>${word}<//>${run.status === "cleanup_failed" && html` <${Chip} tone="bad" icon="wrong">Cleanup failed<//>`}`;
}

// Why it stands where it stands, in words.
export function evidence(run, heard) {
  if (run.notice) return run.notice;
  if (run.state === "suspended") return `the provider's limit${run.resumeAt ? `; goes on at ${clock(run.resumeAt)}` : ""}`;
  if (run.errorClass) return `${run.errorClass}: ${run.errorReason ?? run.errorCode ?? ""}`;
  if (run.liveness === "hung" || run.liveness === "waiting-on-provider") return heard ? `nothing heard for ${span(now.value - heard)}` : "nothing heard yet";
  if (run.liveness === "looping") return "the same call again and again";
  if (run.cancelRequestedAt && !run.endedAt) return "somebody asked for its end";
  return "";
}

export const money = (usd) => `$${usd.toFixed(2)}`;

export function Run({ id }) {
  const [run, setRun] = useState(null);
  const [details, setDetails] = useState(null);
  const [changes, setChanges] = useState(null);
  const [opened, setOpened] = useState({});
  const [failed, setFailed] = useState(null);
  const [resuming, setResuming] = useState(false);
  const view = query.value.get("view") ?? (event.value ? "transcript" : "overview");
  const read = () =>
    Promise.all([get(`v1/runs/${part(id)}`), get(`v1/runs/${part(id)}/details`), get(`v1/runs/${part(id)}/changes`)]).then(([fresh, more, patch]) => {
      setRun(fresh);
      setDetails(more);
      setChanges({ ...patch, parsed: filesOf(patch.patch) });
    });
  const { told, raw, problem, again } = useRecord(id, () => read().then(() => null), () => read().catch(() => {}));
  const heard = useRef(null);
  heard.current = raw.at(-1)?.at ?? null;
  // Read again when the inbox says that it changed, and when its agent begins, asks, is answered or ends.
  useEffect(() => {
    if (run) read().catch(() => {});
  }, [changed.value, told?.rows.length > 0, told?.asks.size, told?.decisions.length, told?.ends]);

  const asks = run && !hasEnded(run) ? waits(told) : [];
  useKeys(ITEM, asks.length ? { Enter: () => go(askPlace(asks[0], id)) } : {});
  if (problem && !run) {
    if (problem.status === 404) return html`<main class="state"><h1>There is no such run here.</h1>
      <p>It was deleted, or it is another workspace's.</p><p><a class="button" href=${address("runs")}>All runs</a></p></main>`;
    return html`<main><${Failed} what="the run" problem=${problem} again=${again} still="Runs that are under way go on." /></main>`;
  }
  if (!run || !details || !told) return html`<${Loading} what="the run" />`;
  const act = (word, body = {}) => post(`v1/runs/${part(id)}/${word}`, body).then((fresh) => (setFailed(null), fresh?.id && setRun({ ...run, ...fresh }), read()), (error) => {
    setFailed(error);
    throw error;
  });
  const over = hasEnded(run);
  const title = told.title ?? run.title ?? firstLine(details.submission) ?? id;
  const took = (run.endedAt ?? now.value) - (run.startedAt ?? run.createdAt);
  const place = { directory: workFolder(told), sessionId: id, at: `runs/${part(id)}` };
  const tab = (name, label, count) => html`<button type="button" aria-pressed=${view === name} onClick=${() => setQuery({ view: name === "overview"
    ? "" : name })}>${label}${count === undefined ? "" : html` <span>${number(count)}</span>`}</button>`;
  const parsed = changes?.parsed ?? [];
  return html`<main class=${`run at-${view}`}>
    <header class="run-head"><p class="crumbs"><a href=${address("runs")}>Runs</a> › <code>${id}</code> <${Copy} text=${id} label="Copy the id" /></p>
      <div class="run-title"><h1><${Agent} mono=${false} text=${title} /> <${RunState} run=${run} asks=${asks} /></h1>
        <div class="buttons"><${Copy} words="Copy as curl" text=${() => `curl -N -H "Authorization: Bearer $LEGATION_TOKEN" '${location.origin}${root}v1/runs/${part(id)}/events/sse'`} />
          ${may("operate") && html`<${Buttons} run=${run} act=${act} resuming=${resuming} resume=${() => setResuming(true)} />`}
          ${asks.length > 0 && html`<a class="button filled" href=${address(askPlace(asks[0], id))}>Look and answer <${Key}>↵<//></a>`}
          ${over && parsed.length > 0 && view !== "changes" && html`<button type="button" class=${run.state === "failed" ? "" : "filled"} onClick=${() => setQuery({ view: "changes" })}>Review the patch</button>`}</div></div>
      <p class="muted">${run.agent} · ${over ? html`${word(run)} <${Ago} at=${run.endedAt} />, after ${span(took)}` : run.startedAt
        ? html`since ${span(took)}` : html`submitted <${Ago} at=${run.createdAt} />`}${parsed.length > 0 && html` · ${parsed.length} ${parsed.length === 1 ? "file" : "files"} <${Counts} ...${sum(parsed)} />`}${!over &&
        evidence(run, heard.current) && html` · <span class="wait-word"><${Agent} mono=${false} text=${evidence(run, heard.current)} /></span>`}</p>
      <${Track} run=${run} details=${details} told=${told} />
      ${run.errorClass && html`<div class="flag"><h2><${Icon} name="wrong" /> <${Agent} mono=${false} text=${run.errorReason ?? run.errorClass} /></h2>
        <p>Class <code>${run.errorClass}</code>${run.errorCode && html`, code <code>${run.errorCode}</code>`}. ${ADVICE[run.errorClass] ?? ""}${over && " Its secrets went with its end."}</p></div>`}
      ${failed && html`<p class="note bad" role="alert">${failed.message}</p>`}
      ${resuming && run.state === "failed" && html`<${Resume} run=${run} close=${() => setResuming(false)} go=${(secrets) => act("resume", secrets ? { secrets } : {}).then(() => (setResuming(false), again()))} />`}
      <div class="tabs" role="group" aria-label="View">${tab("overview", "Overview")}${tab("transcript", "Transcript", told.rows.length)}${tab("changes", "Changes", parsed.length || told.files.size)}${tab("decisions", "Decisions", told.decisions.length)}${tab("raw", "Raw events", told.seq)}</div></header>
    <div class="run-body">
      ${view === "overview" && html`<${Overview} run=${run} details=${details} told=${told} changes=${changes} />`}
      ${view === "transcript" && html`<${Rows} told=${told} place=${place} opened=${opened} setOpened=${setOpened} />
        <${Composer} id=${id} asks=${asks} turning=${!over} steer=${false} send=${(_, prompt) => act("messages", { prompt })} over=${over && html`<p class="muted">This run has ended. <a href=${address(`runs/new?agent=${part(run.agent)}`)}>Submit another</a></p>`} />`}
      ${view === "changes" && (parsed.length || !told.files.size
        ? html`<${Changes} files=${parsed} none=${changes?.incomplete ?? (over ? "Its runner reported no change." : "The whole patch comes when an attempt ends.")} />`
        : html`<${Changes} files=${[...told.files.values()]} root=${place.directory} />`)}
      ${view === "changes" && parsed.length > 0 && html`<p class="run-foot muted">${changes.incomplete ? html`Not all of it: <${Agent} mono=${false} text=${changes.incomplete} /> · ` : ""}As its runner found it at the end of attempt ${changes.attempt}. <${Copy} words="Copy the patch" text=${() => changes.patch} /></p>`}
      ${view === "decisions" && html`<${Decisions} told=${told} />`}
      ${view === "raw" && html`<${Raw} events=${raw} />`}
    </div></main>`;
}

const word = (run) => ({ timed_out: "timed out" })[run.state] ?? run.state;
const sum = (found) => found.reduce((all, each) => ({ added: all.added + each.added, removed: all.removed + each.removed }), { added: 0, removed: 0 });
const firstLine = (submission) => submission?.prompts[0].split("\n").map((line) => line.trim()).find((line) => line && !line.startsWith("#!"))?.replace(/^#+ +/, "");
// The agent's own folder, as its calls name it: the server tells it of no run.
const workFolder = (told) => [...told.files.keys()].map((path) => path.match(/^(.*\/runs\/run_[^/]+\/work)\//)?.[1]).find(Boolean) ?? null;

function Buttons({ run, act, resume, resuming }) {
  const [sure, setSure] = useState(false);
  const off = connection.value.state !== "live";
  useKeys(DIALOG, sure ? { Escape: () => setSure(false) } : {});
  const quiet = (name, body) => act(name, body).catch(() => {});
  if (run.state === "failed") return html`<button type="button" class=${resuming ? "" : "filled"} disabled=${off} onClick=${resume}><${Icon} name="again" /> Resume…</button>`;
  if (hasEnded(run)) return html`<a class="button" href=${address(`runs/new?agent=${part(run.agent)}`)}>Submit another</a>`;
  if (sure) return html`<button type="button" class="danger" disabled=${off} onClick=${() => (setSure(false), quiet("cancel"))}>Yes, cancel it</button>
    <button type="button" class="quiet" onClick=${() => setSure(false)}>Back <${Key}>Esc<//></button>`;
  return html`${["running", "waiting"].includes(run.state) && html`<button type="button" disabled=${off} onClick=${() => quiet("pause")}>Pause</button>`}
    ${["paused", "suspended"].includes(run.state) && html`<button type="button" disabled=${off} onClick=${() => quiet("resume")}>Let it go on</button>`}
    ${run.cancelRequestedAt === null && html`<button type="button" disabled=${off} onClick=${() => setSure(true)}><${Icon} name="stop" /> Cancel</button>`}`;
}

// Its key went with its end: it is typed again, sealed for the run, and kept nowhere in the browser.
function Resume({ run, close, go: send }) {
  const [agent, setAgent] = useState(null);
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => void get(`v1/agents/${part(run.agent)}`).then(setAgent, () => setAgent({ keyProviders: [] })), []);
  useKeys(DIALOG, { Escape: close });
  const providers = agent?.keyProviders ?? [];
  const missing = providers.length > 0 && !key;
  const submit = (event) => {
    event.preventDefault();
    if (missing || busy) return;
    setBusy(true);
    send(secretsOf(providers, key)).catch(() => setBusy(false));
  };
  return html`<form class="panel pad resume" aria-label="Resume" onSubmit=${submit}>
    <p><b>It goes on as attempt ${run.attempt + 1} of what was submitted.</b> <span class="muted">Its secrets went with its end.</span></p>
    <${KeyField} providers=${providers} agent=${run.agent} value=${key} set=${setKey} />
    <div class="buttons"><button type="submit" class="filled" disabled=${!agent || missing || busy}>Resume it</button>
      <button type="button" class="quiet" onClick=${close}>Back <${Key}>Esc<//></button></div></form>`;
}

function Track({ run, details, told }) {
  const over = hasEnded(run);
  const attempt = details.attempts.at(-1);
  const machines = details.attempts.map((each) => each.machine);
  const waited = told.decisions.filter((each) => each.row?.ask && levelOf(each.by, each.byName) !== "policy").map((each) => Math.max(0, each.at - each.row.ask.askedAt));
  const gone = details.cleanup.filter((step) => step.state === "gone").length;
  const wrong = ["failed", "timed_out"].includes(run.state);
  const begun = attempt?.handedAt ?? null;
  const steps = [
    ["Queued", run.startedAt ? span(run.startedAt - run.createdAt) : "waits for a worker", run.startedAt ? "done" : "now"],
    ["Claimed", attempt ? `${machines.length > 1 ? `${machines.length} times: ` : ""}${[...new Set(machines)].join(", ")}` : "", attempt ? "done" : ""],
    ["Started", begun ? span(begun - attempt.createdAt) : "", begun ? "done" : attempt && !over ? "now" : ""],
    [wrong ? word(run) : "Worked", wrong ? (run.errorCode ?? run.errorClass) : begun ? span((run.endedAt ?? now.value) - begun) : "", wrong ? "bad" : over ? "done" : begun ? "now" : ""],
    ...(waited.length ? [["Waited for an answer", `${span(waited.reduce((all, each) => all + each, 0))}, ${waited.length} ${waited.length === 1 ? "time" : "times"}`, "done"]] : []),
    ["Cleanup", over ? `${gone} of ${details.cleanup.length}` : "", run.status === "cleanup_failed" ? "bad" : over ? "done" : run.state === "cleaning" ? "now" : ""],
  ];
  return html`<ol class="track" aria-label="How far it is">${steps.map(([name, told_, state]) => html`<li key=${name} class=${state}><b>${name}</b><small>${told_}</small></li>`)}</ol>`;
}

function Overview({ run, details, told, changes }) {
  const last = told.rows.filter((row) => row.kind === "message").at(-1);
  const { submission, usage } = details;
  const cost = usage.costUsd ?? told.usage?.cost?.amount ?? null;
  const place = submission?.workspace;
  const left = details.cleanup.filter((step) => step.state !== "gone" && step.state !== "retained");
  const over = hasEnded(run);
  const wrong = changes?.files ?? [];
  return html`<div class="run-columns"><div>
    <section><h2>${over ? "Summary" : "What it said last"} <small>the agent's ${over ? "last " : ""}words</small></h2>
      <div class="panel pad">${last ? html`<${Markdown} text=${last.text} />` : html`<p class="muted">${over ? "It said nothing." : "Nothing yet."}</p>`}</div></section>
    ${wrong.length > 0 && html`<section><h2>Changed files <small>${number(wrong.length)}</small></h2><div class="panel"><table class="table">
      <tbody>${wrong.slice(0, 20).map((file) => html`<tr key=${file.path}><td><${Agent} text=${file.path} /></td><td class="muted">${file.status}</td>
      <td class="right">${file.binary ? html`<span class="muted">binary</span>` : html`<${Counts} added=${file.added} removed=${file.removed} />`}</td></tr>`)}</tbody></table>
      ${wrong.length > 20 && html`<p class="pad muted">and ${number(wrong.length - 20)} more</p>`}</div></section>`}
    <section><h2>Cleanup <small>${over ? "" : "when it has ended"}</small></h2><div class="panel"><ul class="steps">${details.cleanup.map((step) => html`<li key=${step.name}>
      <${Icon} name=${step.state === "gone" ? "check" : step.errorCode ? "wrong" : "todo"} label=${step.state} /> <span class=${step.errorCode && step.state !== "gone" ? "bad" : ""}>${GONE[step.kind] ?? step.kind}${step.errorReason && step.state !== "gone"
      ? html`: <${Agent} mono=${false} text=${step.errorReason} />` : ""}</span> <span class="grow" /><span class="muted">${step.tries > 1 ? `${step.tries} ×` : step.state === "retained" ? "kept, as asked for"
      : step.state === "gone" && step.at ? clock(step.at) : ""}</span></li>`)}</ul>
      ${over && html`<p class=${`pad ${left.length ? "bad" : "good"}`}><${Icon} name=${left.length ? "wrong" : "check"} /> Left behind: ${left.length ? `${left.length} (${left.map((step) => step.kind).join(", ")})` : "nothing"}</p>`}</div></section>
    <${Plan} told=${told} />
  </div><aside>
    <section><h2>Usage</h2><div class="panel pad"><p class="run-cost"><b>${cost === null ? "" : money(cost)}</b><span class="muted">${span((run.endedAt ?? now.value) - (run.startedAt ?? now.value))}${run.deadlineAt && run.startedAt ? ` of ${span(run.deadlineAt - run.startedAt)}` : ""}</span></p>
      ${run.deadlineAt && run.startedAt && html`<progress aria-label="Time" max=${run.deadlineAt - run.startedAt} value=${(run.endedAt ?? now.value) - run.startedAt} />`}
      <dl>${cost === null && html`<div><dt>Cost</dt><dd>not told by this agent</dd></div>`}<div><dt>Tokens</dt><dd>${usage.inputTokens !== null || usage.outputTokens !== null
        ? `${number(usage.inputTokens ?? 0)} in · ${number(usage.outputTokens ?? 0)} out` : "not told by this agent"}</dd></div></dl></div></section>
    <${Levels} told=${told} />
    <section><h2>Lease</h2><div class="panel pad"><dl><div><dt>Worker</dt><dd>${details.lease ? html`<code>${details.lease.owner}</code>` : over
      ? "released" : "nobody at this moment"}</dd></div><div><dt>Machine</dt><dd><code>${details.machine ?? details.attempts.at(-1)?.machine ?? "none yet"}</code></dd></div><div><dt>Attempts</dt>
      <dd>${run.attempt}${details.attempts.filter((each) => each.errorClass || each.number < run.attempt).map((each) => html`<br /><small key=${each.number}>attempt ${each.number} ended${each.endedAt ? ` at ${clock(each.endedAt)}` : ""}${each.errorClass ? `: ${each.errorClass}` : ""}</small>`)}</dd></div></dl></div></section>
    <section><h2>Submitted</h2><div class="panel pad"><dl><div><dt>By</dt><dd>${run.creatorUser && run.creatorUser === me.value.user ? "you" : html`<code>${run.creatorUser ?? run.creator}</code>`}</dd></div><div><dt>At</dt><dd title=${exact(run.createdAt)}>${clock(run.createdAt)}</dd></div>
      ${submission?.model && html`<div><dt>Model</dt><dd><${Agent} text=${submission.model} /></dd></div>`}${submission?.policy && html`<div><dt>Policy</dt><dd><code>${submission.policy}</code></dd></div>`}
      <div><dt>Where</dt><dd>${place?.type === "folder" ? html`<code>${folder(place.path)}</code>` : place?.type === "git" ? html`<${Agent} text=${`${place.url}${place.ref ? ` ${place.ref}` : ""}`} />` : "a folder of its own"}</dd></div>
      <div><dt>Priority</dt><dd>${run.priority}</dd></div></dl>
      ${submission && html`<details><summary>What was prompted</summary><pre class="prompted"><${Agent} mono=${false} text=${submission.prompts.join("\n\n")} /></pre></details>`}</div></section>
  </aside></div>`;
}
