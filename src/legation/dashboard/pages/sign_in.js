// Signing in: by the code of a link, in its address or pasted here; then on to the place that was asked for.
import { html, useEffect, useState } from "../vendor/preact.js";
import { get, post, root, signedOut } from "../api.js";
import { go, path } from "../state/place.js";
import { Copy } from "../parts/basics.js";

// The place alone, no content: a link opens another tab, which has to know where this one wanted to go.
export const WANTED = "legation.wanted";

export function SignIn({ done }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const [mail, setMail] = useState(null); // null: no link comes by mail here; else the address
  const [sent, setSent] = useState(false);
  const use = async (code) => {
    setBusy(true);
    setProblem(null);
    try {
      await post("v1/sign-in", { code });
      new BroadcastChannel("legation").postMessage("signed-in");
      signedOut.value = false;
      if (path.value[0] === "sign-in") go(localStorage.getItem(WANTED) ?? "inbox", { replace: true });
      localStorage.removeItem(WANTED);
      done();
    } catch (failed) {
      setProblem(failed.status === 401 ? "This link was used already, or is older than ten minutes." : failed.message);
    } finally {
      setBusy(false);
    }
  };
  useEffect(() => void get("v1/sign-in-ways").then((ways) => ways.mail && setMail(""), () => {}), []);
  const ask = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    await post("v1/sign-in-mails", { email: mail.trim() }).then(() => setSent(true), (failed) => setProblem(failed.message));
    setBusy(false);
  };
  useEffect(() => {
    if (path.value[0] !== "sign-in") localStorage.setItem(WANTED, location.pathname.slice(root.length + 3) + location.search + location.hash);
    const code = location.hash.slice(1);
    if (path.value[0] === "sign-in" && code) {
      history.replaceState(null, "", location.pathname); // neither the history nor a screenshot keeps it
      use(code);
    }
    // Who signs in in another tab is signed in here as well.
    const others = new BroadcastChannel("legation");
    others.onmessage = () => {
      signedOut.value = false;
      if (path.value[0] === "sign-in") go("inbox", { replace: true });
      done();
    };
    return () => others.close();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    const code = text.trim().split("#").pop();
    if (code && !busy) use(code);
  };
  return html`<main class="sign-in"><div class="panel">
    <svg class="logo" viewBox="0 0 24 24" aria-hidden="true"><path d="M6 4v16h13" />
      <circle cx="16" cy="8" r="3.5" /></svg>
    <h1>Sign in to Legation</h1><p class="muted">on <code>${location.host}</code></p>
    ${mail !== null && html`<form onSubmit=${ask}><label class="field">Mail address<input type="email" autocomplete="email" required value=${mail} onInput=${(event) => (setMail(event.target.value), setSent(false))} /></label>
      <button type="submit" class="filled" disabled=${busy || !mail.trim()}>Send me a link</button>
      ${sent && html`<p role="status">If this is somebody's address here, a link is on its way. It works once, for ten minutes.</p>`}</form><hr />`}
    <form onSubmit=${submit}><label class="field">Sign-in link<input type="text" autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} placeholder="Paste a link" /></label>
    ${problem && html`<p class="note bad" role="alert">${problem}</p>`}
    <button type="submit" class=${mail === null ? "filled" : ""} disabled=${busy || !text.trim()}>${busy ? "Signing you in"
      : "Sign in"}</button></form>
    <hr /><p class="muted">On the machine where it runs a link comes from</p><p class="command-box">
      <code>legation users link</code><${Copy} text="legation users link" /></p>
      <p class="muted">It works once, for ten minutes. Somebody else's Legation? Ask one of its admins.</p>
  </div></main>`;
}
