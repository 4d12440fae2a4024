// A session or run that went wrong or is ready: opening it here counts as having looked at it.
import { html, useEffect, useRef } from "../vendor/preact.js";
import { part, post } from "../api.js";
import { clock, span } from "../state/clock.js";
import { address, askedAt, go } from "../state/place.js";
import { ITEM, useKeys } from "../state/keys.js";
import { Icon, Key } from "./basics.js";
import { Next } from "./actions.js";
import { Agent, folder } from "./text.js";

export function Ended({ item, next }) {
  const heading = useRef(null);
  const place = askedAt(item.runId ?? item.sessionId ?? item.id);
  useEffect(() => {
    heading.current?.focus({ preventScroll: true });
    post(`v1/inbox/${part(item.id)}/looked-at`, { since: item.since }).catch(() => {});
  }, [item.id]);
  useKeys(ITEM, { o: () => go(place), Enter: () => go(place) });
  const wrong = item.section === "wrong";
  return html`<header class="head"><p class="crumbs">
    <a class="back" href=${address("inbox")} aria-label="Back to the list"><${Icon} name="back" /></a>
    <${Icon} name="agents" /> ${item.agent}${item.folder && html` <span class="where">
    <${Icon} name="folder" /> <code>${folder(item.folder)}</code></span>`}</p>
      <h1 tabindex="-1" ref=${heading}>${item.verb}: <${Agent} mono=${false} text=${item.sessionTitle ?? item.object} /></h1></header>
    <div class="body"><div class="content"><div class=${`panel pad ${wrong ? "flag" : ""}`}><p><${Icon} name=${wrong
      ? "wrong" : "good"} /> ${item.why ? html`<${Agent} mono=${false} text=${item.why} />` : wrong
      ? "It did not end well." : item.kind === "run" ? "It succeeded." : "Its turn ended."}</p>
      <p class="muted">At ${clock(item.since)}, ${span(Date.now() - item.since)} ago.</p></div></div></div>
    <footer class="bar"><div class="buttons main">
      <a class="button filled" href=${address(place)}>${wrong ? (item.kind === "run" ? "Open the run" : "Open the session")
      : "Read it"} <${Key}>o<//></a></div><${Next} next=${next} /></footer>`;
}
