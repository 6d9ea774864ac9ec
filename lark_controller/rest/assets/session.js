// The token of this log-in. It lives in sessionStorage, so it is gone when the tab is closed, no other port of the host gets
// it (a cookie would go to all of them), and no request carries it unasked. Another tab of these pages may ask for it, so
// that a link opens in a new tab; signing out in one tab is signing out in all.

const KEY = "lark-token";
const ANSWER_MS = 200;

let listeners = [];
const channel = "BroadcastChannel" in window ? new BroadcastChannel("lark-session") : null;

export function token() {
  return sessionStorage.getItem(KEY);
}

export function keep(secret) {
  sessionStorage.setItem(KEY, secret);
}

export function forget({ everywhere }) {
  sessionStorage.removeItem(KEY);
  if (everywhere) channel?.postMessage({ signedOut: true });
}

// Called when another tab has signed out.
export function whenSignedOut(listener) {
  listeners.push(listener);
}

// The token of another tab, if there is one; null after a moment otherwise.
export function askOtherTabs() {
  if (!channel) return Promise.resolve(null);
  return new Promise((resolve) => {
    const heard = (event) => {
      if (typeof event.data?.token === "string") done(event.data.token);
    };
    const timer = setTimeout(() => done(null), ANSWER_MS);
    function done(found) {
      clearTimeout(timer);
      channel.removeEventListener("message", heard);
      resolve(found);
    }
    channel.addEventListener("message", heard);
    channel.postMessage({ asks: true });
  });
}

channel?.addEventListener("message", (event) => {
  if (event.data?.asks && token()) channel.postMessage({ token: token() });
  if (event.data?.signedOut && token()) {
    sessionStorage.removeItem(KEY);
    for (const listener of listeners) listener();
  }
});
