// The audit trail: what changed, when, and by whom.

import { get } from "../api.js";
import { h } from "../dom.js";
import { moment } from "../format.js";
import { framed, jobLink, link, switchLink, table, to } from "../parts.js";
import { pages } from "./jobs.js";

const PAGE = 100;

// What an event is about: a job, the policy, a switch, or something else in its own word, such as a reservation of no job.
function about({ subject, name, kind }) {
  if (name) return kind === "switch" ? switchLink(subject, name) : jobLink(subject, name);
  return subject === "policy" ? link("policy", "policy") : subject;
}

const KEYED = { key: (entry) => entry.number, empty: "Nothing has happened yet." };

function eventTable(entries) {
  return table("Events", [
    { head: "When", cell: (entry) => moment(entry.at) },
    { head: "What", cell: (entry) => entry.action },
    { head: "About", cell: (entry) => about(entry) },
    { head: "By", narrow: false, cell: (entry) => entry.actor },
    { head: "Detail", wide: true, cell: (entry) => entry.detail },
  ], entries, KEYED);
}

// The same in two lines an event, for the side of a page; `subject` false where all are about one thing.
export function eventList(entries, { subject = true } = {}) {
  return table("Events", [
    { head: "When", cell: (entry) => moment(entry.at) },
    { head: "What", cell: (entry) => [h("div", {}, subject && entry.subject === entry.action ? about(entry) : [entry.action, subject && entry.subject !== entry.actor && [" ", about(entry)]],
      ` by ${entry.actor}`),
      entry.detail && h("div", { class: "reason clipped", title: entry.detail }, entry.detail)] },
  ], entries, { ...KEYED, kind: "fixed" });
}

export function open({ query, paint, live }) {
  const filters = h("form", { class: "filters", key: "filters", on: { submit: (event) => {
    event.preventDefault();
    location.hash = to("events", { subject: new FormData(event.currentTarget).get("subject").trim() });
  } } },
  h("label", {}, h("span", {}, "About"), h("input", { name: "subject", value: query.subject || "", spellcheck: "false",
    autocomplete: "off", maxlength: "1024", placeholder: "Job, switch, policy or controller" })),
  h("button", { type: "submit" }, "Show"));
  paint("Events", filters, h("p", { class: "empty" }, "Loading…"));
  live(4, (signal) => get(["audit"], { ...query, limit: PAGE }, signal), (page) => {
    paint("Events", filters, framed(eventTable(page.entries), pages(query, page.next_cursor, "events")));
  });
}
