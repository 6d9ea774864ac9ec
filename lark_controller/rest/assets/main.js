// The frame of all pages: log-in, navigation, which view an address shows, and how fresh what it shows is.

import { get } from "./api.js";
import { h, patch } from "./dom.js";
import { clock, duration } from "./format.js";
import { freshnessOf, poll } from "./live.js";
import { note, problem, to } from "./parts.js";
import { find } from "./search.js";
import * as session from "./session.js";
import { MENU, VIEWS } from "./views.js";

const HEADING = "heading";

const bar = document.getElementById("bar");
const main = document.getElementById("main");
const said = document.getElementById("said");
const gone = document.getElementById("gone");

let who = null;
let current = null;
// How each part of the view that asks the controller fares: {state, error, again, at, seconds}; `at` is when it was answered last,
// `seconds` its pause between two questions.
let asking = new Map();
// The state that the bar shows.
let painted = "none";

// -- log-in ------------------------------------------------------------------------------------------------------------

async function begin() {
  if (!session.token()) {
    const found = await session.askOtherTabs();
    if (found) session.keep(found);
  }
  if (session.token()) await enter();
  else showLogIn();
}

// Look at the token, then show the view; true where the token was accepted.
async function enter() {
  try {
    const found = await get(["token"]);
    if (!found.scopes.some((scope) => scope === "read" || scope === "operate")) {
      session.forget({ everywhere: false });
      const own = found.scopes.includes("self") ? ` Your own jobs: "lark jobs" and "lark explain" show them with this token.` : "";
      showLogIn(`The token ${found.name} allows only: ${found.scopes.join(", ")}. These pages need read or operate.${own}`);
      return;
    }
    who = found;
  } catch (error) {
    if (error.status === undefined) throw error;
    if (error.status === 401) session.forget({ everywhere: false });
    showLogIn(error.status === 401 ? error.message : [error.title, error.message].filter(Boolean).join(": "));
    return;
  }
  show();
}

function signOut(reason) {
  session.forget({ everywhere: true });
  showLogIn(reason);
}

function showLogIn(reason) {
  leave();
  who = null;
  document.title = "Log in – Lark";
  patch(bar, h("a", { class: "brand", href: "#/" }, "Lark"));
  patch(gone);
  patch(main, h("form", { class: "log-in", on: { submit: logIn } },
    h("h1", { id: HEADING, tabindex: "-1" }, "Log in"),
    reason && h("p", { class: "note bad", role: "alert" }, reason),
    h("label", { for: "token" }, "Token"),
    h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" }),
    h("button", { type: "submit", class: "primary" }, "Log in"),
    h("p", { class: "hint" }, "A token with the scope ", h("code", {}, "read"), " shows everything; ", h("code", {}, "operate"),
      " may change the policy as well. On the controller’s host, ", h("code", {}, "lark token NAME --scope read"), " makes one."),
    h("p", { class: "hint" }, "The token stays in this tab until you sign out or close it.")));
  document.getElementById("token").focus();
}

async function logIn(event) {
  event.preventDefault();
  session.keep(new FormData(event.target).get("token").trim());
  // The refusal of a log-in before is no answer to this one; the same again is a new element, which is read out again.
  event.target.querySelector("[role=alert]")?.remove();
  const button = event.target.querySelector("button");
  button.disabled = true;
  await enter();
  button.disabled = false;
}

// -- frame -------------------------------------------------------------------------------------------------------------

function paintBar() {
  const here = parts()[0];
  const section = here === "users" ? "jobs" : here;
  patch(bar,
    h("a", { class: "brand", href: "#/" }, "Lark"),
    h("nav", { "aria-label": "Views" }, MENU.map(([name, text]) =>
      h("a", { href: to(name), "aria-current": section === name ? "page" : null }, text))),
    h("form", { class: "find", role: "search", on: { submit: search } },
      h("input", { type: "search", name: "what", "aria-label": "Find a job, address, user, group, host or switch",
        placeholder: "Job, address, user, host, switch", autocomplete: "off", spellcheck: "false", maxlength: "1024" })),
    h("div", { class: "session" }, freshnessText(),
      h("span", { class: "who", title: `Scope: ${who.scopes.join(", ")}` }, who.name),
      h("button", { type: "button", class: "quiet", on: { click: () => signOut() } }, "Sign out")));
}

function freshness() {
  return freshnessOf([...asking.values()]);
}

function freshnessText() {
  const { state, error, again, at } = freshness();
  painted = state;
  if (state === "failed") {
    const wait = `Again at ${clock(new Date(again))}.`;
    return h("span", { class: "fresh bad", title: `${error.message} ${wait}` }, error.status === 429 ? "Waiting" : "Not current");
  }
  if (state === "late") return h("span", { class: "fresh bad", title: `As of ${clock(new Date(at))}` }, "Not current");
  if (state === "paused") return h("span", { class: "fresh" }, "Paused");
  return state === "live" && h("span", { class: "fresh good", title: at ? `As of ${clock(new Date(at))}` : null }, "Live");
}

// What is shown may be old: why, how old it is, and when the controller is asked again.
function paintGone() {
  const { state, error, again, at } = freshness();
  if (who && state !== painted) paintBar();
  if (!who || (state !== "failed" && state !== "late")) {
    patch(gone);
    return;
  }
  const now = Date.now();
  if (state === "late") {
    patch(gone, h("div", { class: "gone", role: "region", "aria-label": "Not current" },
      h("strong", {}, "The controller has not answered yet."), " ",
      `What you see is ${duration((now - at) / 1000)} old, of ${clock(new Date(at))}.`));
    return;
  }
  const why = error.status === 0 ? `${error.title || error.message}.` : `The controller refuses: ${error.message}`;
  patch(gone, h("div", { class: "gone", role: "region", "aria-label": "Not current" },
    h("strong", {}, why), " ",
    at ? `What you see is ${duration((now - at) / 1000)} old, of ${clock(new Date(at))}.` : "There is nothing to show yet.", " ",
    h("span", {}, again > now ? `Asked again in ${duration((again - now) / 1000)}.` : "Asking again…"), " ",
    h("button", { type: "button", on: { click: () => current?.again() } }, "Ask now")));
}
setInterval(paintGone, 1000);

function report(part, found) {
  if (found.error?.status === 401) {
    session.forget({ everywhere: false });
    showLogIn(found.error.message);
    return;
  }
  const before = freshness().state;
  asking.set(part, { ...found, at: found.state === "live" ? Date.now() : asking.get(part)?.at });
  const now = freshness().state;
  if (now === "failed" && before !== "failed") say(`Not current: ${found.error.message}`);
  if (now === "live" && before === "failed") say("Live again.");
  if (who) paintBar();
  paintGone();
}

function say(text) {
  said.textContent = text;
}

async function search(event) {
  event.preventDefault();
  const field = event.target.elements.what;
  const text = field.value.trim();
  if (!text) return;
  try {
    location.hash = await find(text);
    field.value = "";
  } catch (error) {
    if (error.status === undefined) throw error;
    say(error.message);
    field.setCustomValidity(error.message);
    field.reportValidity();
    field.addEventListener("input", () => field.setCustomValidity(""), { once: true });
  }
}

// -- views -------------------------------------------------------------------------------------------------------------

function address() {
  return location.hash.replace(/^#?\/?/, "");
}

function parts() {
  return address().split("?")[0].split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

function leave() {
  current?.abort();
  current = null;
}

function show() {
  leave();
  if (!who) return;
  const [name, ...rest] = parts();
  const one = rest.join("/");
  const view = Object.hasOwn(VIEWS, name) ? VIEWS[name][one ? 1 : 0] : undefined;
  const query = Object.fromEntries(new URLSearchParams(address().split("?")[1] || ""));
  const mine = (current = new AbortController());
  const polls = [];
  mine.again = () => polls.forEach((each) => each.now());
  mine.signal.addEventListener("abort", () => polls.forEach((each) => each.stop()));
  asking = new Map();
  paintBar();
  paintGone();
  bar.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  patch(main);
  window.scrollTo(0, 0);
  if (!view) {
    paint("Not found", note("bad", "There is no such page. ", h("a", { href: "#/" }, "Overview")));
    focusHeading();
    return;
  }

  // Show a view's content below its heading; what is left over from an earlier address is not shown any more.
  function paint(title, ...content) {
    if (mine.signal.aborted) return;
    document.title = `${title.text || title} – Lark`;
    patch(main, h("div", { class: "title" }, h("h1", { id: HEADING, tabindex: "-1" }, title.text || title), title.aside), content);
  }

  view.open({
    one, query, who, say, paint, signal: mine.signal,
    // Ask now and every so many seconds; an error before the first answer is shown in place of the view, or by `failed`.
    live(seconds, load, shown, failed) {
      let answered = false;
      const made = poll(seconds * 1000, load, (data) => {
        answered = true;
        shown(data);
      }, (found) => {
        if (mine.signal.aborted) return;
        const missing = found.error?.status === 404;
        if (missing || (found.state === "failed" && !answered)) {
          if (failed) failed(found.error);
          else paint(missing ? "Not found" : "Lark", problem(found.error));
        }
        // What is not there is not out of date.
        report(shown, { ...(missing ? { state: "none" } : found), seconds });
      });
      polls.push(made);
      return {
        now: made.now,
        // What is not asked for any more does not grow old.
        stop() {
          made.stop();
          asking.delete(shown);
        },
      };
    },
    // On to another address, which a step back does not come from.
    lead: (where) => mine.signal.aborted || location.replace(where),
    signedOut: (reason) => signOut(reason),
    // Another address in place of this one, without a step in the history.
    replace(...where) {
      history.replaceState(null, "", to(...where));
    },
  });
  focusHeading();
}

// A new view begins at its heading, for the keyboard and for whoever listens; the first one begins at the top.
let first = true;
function focusHeading() {
  if (!first) (document.getElementById(HEADING) || main).focus({ preventScroll: true });
  first = false;
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => (who ? show() : undefined));
session.whenSignedOut(() => showLogIn("You have signed out in another tab."));
begin();
