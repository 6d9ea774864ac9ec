// How fresh what a view shows is, in words: beside the name of who has logged in, and as a banner where it may be old.

import { h } from "./dom.js";
import { clock, duration } from "./format.js";

// States in which what is shown may be old.
export const isOld = ({ state }) => state === "failed" || state === "late";

export function stateText({ state, error, again, at }) {
  if (state === "failed") {
    const wait = again ? `Again at ${clock(new Date(again))}.` : "Asking again…";
    return h("span", { class: "fresh bad", title: `${error.message} ${wait}` }, error.status === 429 ? "Waiting" : "Not current");
  }
  if (state === "late") return h("span", { class: "fresh bad", title: at ? `As of ${clock(new Date(at))}` : null }, "Not current");
  if (state === "paused") return h("span", { class: "fresh" }, "Paused");
  return state === "live" && h("span", { class: "fresh good", title: at ? `As of ${clock(new Date(at))}` : null }, "Live");
}

// Why what is shown may be old, for whoever listens.
export function spoken({ state, error }) {
  return `Not current: ${state === "late" ? "The controller has not answered yet." : error.message}`;
}

// A controller that stands by refuses nothing: it says that the active one does not answer.
function why(error) {
  if (error.status === 0) return `${error.title || error.message}.`;
  return /:(standby|unanswered)$/.test(error.type) ? error.message : `The controller refuses: ${error.message}`;
}

// What is shown may be old: why, how old it is, and when the controller is asked again; `ask` asks it now.
export function banner({ state, error, again, at, missing }, ask) {
  const now = Date.now();
  const region = (why, ...more) => h("div", { class: "gone", role: "region", "aria-label": "Not current" }, h("strong", {}, why), " ", more);
  const age = at ? `What you see is ${duration((now - at) / 1000)} old, of ${clock(new Date(at))}.` : "There is nothing to show yet.";
  if (state === "late") return region(at && !missing ? "The controller does not answer." : "The controller has not answered yet.", at && missing ? "A part of this view is still missing." : age);
  return region(why(error), age, " ",
    h("span", {}, again > now ? `Asked again in ${duration((again - now) / 1000)}.` : "Asking again…"), " ",
    h("button", { type: "button", on: { click: ask } }, "Ask now"));
}
