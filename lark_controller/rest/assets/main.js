// The frame of all pages: log-in, navigation, which view an address shows, and how fresh what it shows is.

import { get } from "./api.js";
import { h, patch } from "./dom.js";
import { banner, isOld, spoken, stateText } from "./freshness.js";
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
// How each part of the view that asks the controller fares: {state, error, again, at, since, seconds}; `at` is when it was answered last,
// `since` when it was asked where nothing was answered since, `seconds` its pause between two questions.
let asking = new Map();
// How a view fared which the controller did not answer, until it answers any.
let silent = null;
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
  asking = new Map();
  silent = null;
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

// What is known of a controller that does not answer holds for the next view, too, whose own first question says nothing for a while.
function freshness() {
  const found = freshnessOf([...asking.values()]);
  if (found.state === "failed" && found.error.status === 0) silent = found;
  else if (found.state === "late") silent ??= found;
  const waits = found.state === "asked" || found.state === "late";
  return waits && silent ? { ...silent, again: 0, at: found.at, missing: found.missing } : found;
}

function freshnessText() {
  const found = freshness();
  const old = isOld({ state: painted });
  // One that was late and is given up now has another reason.
  if (isOld(found) && found.state !== painted) say(spoken(found));
  else if (old && !isOld(found)) say(found.state === "live" ? "Live again." : "");
  painted = found.state;
  return stateText(found);
}

function paintGone() {
  const found = freshness();
  if (who && found.state !== painted) paintBar();
  patch(gone, who && isOld(found) && banner(found, () => current?.again()));
}
setInterval(paintGone, 1000);

function report(part, found) {
  if (found.error?.status === 401) {
    session.forget({ everywhere: false });
    showLogIn(found.error.message);
    return;
  }
  const before = asking.get(part);
  // What is shown stays as it was while it is asked for again.
  if (found.state === "asked" && before && before.state !== "paused") return;
  // A refusal is an answer as well.
  if (found.state === "live" || found.state === "none" || found.error?.status) silent = null;
  asking.set(part, { ...found, since: Date.now(), at: found.state === "live" ? Date.now() : before?.at });
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
  let titled = "Lark";
  mine.again = () => polls.forEach((each) => each.now());
  mine.signal.addEventListener("abort", () => polls.forEach((each) => each.stop()));
  asking = new Map();
  patch(main);
  window.scrollTo(0, 0);
  if (!view) {
    paint("Not found", note("bad", "There is no such page. ", h("a", { href: "#/" }, "Overview")));
    begun();
    return;
  }

  // Show a view's content below its heading; what is left over from an earlier address is not shown any more.
  function paint(title, ...content) {
    if (mine.signal.aborted) return;
    titled = title;
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
          else paint(missing ? "Not found" : titled, problem(found.error));
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
  begun();
}

// The frame of a view that has begun: no sooner, so that what is known of the controller goes over to it without a gap.
function begun() {
  paintBar();
  paintGone();
  bar.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
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
