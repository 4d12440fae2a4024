// The code stands behind the `#`. It is taken out of the address at once, so that neither the history nor a
// screenshot keeps it, and held in memory only for as long as another try makes sense.
// Addresses are relative: Legation may stand behind a proxy, below a path of its own.
const message = document.getElementById("message");
const remedy = document.getElementById("remedy");
const again = document.getElementById("again");
const WAIT_MS = 15_000; // the server's time to answer

const code = location.hash.slice(1);
history.replaceState(null, "", location.pathname);

function say(text, { canTryAgain = false, needsLink = false } = {}) {
  message.textContent = text;
  again.hidden = !canTryAgain;
  remedy.hidden = !needsLink;
}

async function signIn() {
  say("Signing you in…");
  let answer;
  try {
    answer = await fetch("v1/sign-in", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ code }),
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(WAIT_MS),
    });
  } catch {
    return say("Legation does not answer. Is it running?", { canTryAgain: true });
  }
  if (answer.ok) return goOn();
  if (answer.status === 429) {
    const seconds = answer.headers.get("retry-after") ?? "60";
    return say(`Too many tries. Wait ${seconds} seconds, then try again.`, { canTryAgain: true });
  }
  if (answer.status >= 500) return say("Legation could not sign you in just now.", { canTryAgain: true });
  return say("This link was used already, or is older than ten minutes.", { needsLink: true });
}

// To the item that somebody wanted to see, where the dashboard sent them here; tabs that wait for a sign-in go on, too.
function goOn() {
  const wanted = localStorage.getItem("legation.wanted");
  localStorage.removeItem("legation.wanted");
  new BroadcastChannel("legation").postMessage("signed-in");
  location.replace(wanted ? `ui/${wanted}` : "./");
}

again.addEventListener("click", signIn);
if (code) {
  signIn();
} else {
  say("To sign in, open a sign-in link.", { needsLink: true });
}
