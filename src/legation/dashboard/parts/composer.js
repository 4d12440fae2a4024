// A word to the agent, and above it what it waits for.
import { html, useState } from "../vendor/preact.js";
import { may } from "../api.js";
import { connection } from "../state/stream.js";
import { clock } from "../state/clock.js";
import { address } from "../state/place.js";
import { Icon, Key } from "./basics.js";
import { askPlace } from "./record.js";
import { Agent } from "./text.js";

// `send(word, text)` speaks; `over`: what is shown where nobody listens any more.
export function Composer({ id, asks, turning, send: say, over, failed, steer = true }) {
  const [text, setText] = useState("");
  const [sending, setSending] = useState(false);
  const [problem, setProblem] = useState(null);
  const offline = connection.value.state !== "live";
  const send = async (word) => {
    if (!text.trim() || sending || offline) return;
    setSending(true);
    try {
      await say(word, text);
      setText("");
      setProblem(null);
    } catch (failed) {
      setProblem(failed);
    } finally {
      setSending(false);
    }
  };
  const key = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing && (event.preventDefault(), event.stopPropagation(), send("messages"));
  const ask = asks[0];
  return html`<div class="composer">
    ${ask && html`<div class="asked-box"><div><b>${ask.kind === "question"
      ? html`<${Agent} mono=${false} text=${ask.told.message} />` : html`<${Agent} text=${ask.ask.title} />`}</b>
      <p>${asks.length > 1 ? `${asks.length} wait for you`
      : "It waits for you"}${ask.ask?.expiresAt ? ` · a no at ${clock(ask.ask.expiresAt)}` : ""}</p></div>
      <a class="button filled" href=${address(askPlace(ask, id))}>Look and answer <${Key}>↵<//></a></div>`}
    ${over ? over : !may("operate")
      ? html`<p class="muted">You may look. Speaking takes the role operator.</p>` : html`<div class="write">
      <textarea rows="2" aria-label="Say something" placeholder=${turning
      ? "Say something. It is taken when this turn ends."
      : "Say something."} value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${key} />
      <div class="buttons"><${Key}>Ctrl ↵<//><span class="grow" />${turning && steer &&
      html`<button type="button" disabled=${sending || offline || !text.trim()} onClick=${() => send("steer")}>Steer now</button>`}
      <button type="button" class=${ask ? ""
      : "filled"} disabled=${sending || offline || !text.trim()} onClick=${() => send("messages")}>
      <${Icon} name="send" /> Send</button></div></div>`}
    ${(problem ?? failed) && html`<p class="note bad" role="alert">${(problem ?? failed).message}</p>`}${offline &&
      html`<p class="muted">Answers need the server.</p>`}
  </div>`;
}

