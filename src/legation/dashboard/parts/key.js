// The key of a provider for one run: typed, sent, and kept nowhere here.
import { html } from "../vendor/preact.js";
import { Agent } from "./text.js";

const named = (provider) => (provider === "custom" ? "" : ` of ${provider}`);
export const secretsOf = (providers, key) => (providers.length && key ? { [providers[0]]: { apiKey: key } } : undefined);

export function KeyField({ providers, agent, value, set }) {
  if (!providers.length) return null;
  return html`<label class="field">Key for the model<input type="password" autocomplete="off" spellcheck=${false} placeholder=${`Paste a key${named(providers[0])}`} value=${value} aria-invalid=${value
    ? undefined : "true"} onInput=${(event) => set(event.target.value)} /></label>
    ${!value && html`<p class="note bad"><${Agent} mono=${false} text=${agent} /> needs a key for a run. Its own sign-in is used for sessions only.</p>`}
    <p class="muted">Sealed for this run, opened only while it works, destroyed when it is cleaned up.</p>`;
}
