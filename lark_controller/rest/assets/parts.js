// What several views show alike: links, states, tables, bars, notes.

import { h } from "./dom.js";
import { count, several } from "./format.js";

// The address of a view: to("jobs", ID) is "#/jobs/ID".
export function to(...parts) {
  let query = "";
  if (typeof parts.at(-1) === "object") {
    const asked = new URLSearchParams();
    for (const [name, value] of Object.entries(parts.pop())) {
      if (value !== undefined && value !== null && value !== "") asked.set(name, value);
    }
    query = asked.size ? `?${asked}` : "";
  }
  return `#/${parts.map(encodeURIComponent).join("/")}${query}`;
}

export function link(text, ...parts) {
  return h("a", { href: to(...parts) }, text);
}

export const jobLink = (id, text = id) => h("a", { href: to("jobs", id), class: "code" }, text);
// What each of these jobs is called, by id: CLUSTER.PROC, with the access point in front where two of them have it.
export function jobNames(jobs) {
  const number = (job) => `${job.cluster}.${job.proc}`;
  const point = (job) => job.global_job_id.includes("#") ? job.global_job_id.split("#")[0] : "";
  const points = new Map();
  for (const job of jobs) points.set(number(job), (points.get(number(job)) || new Set()).add(point(job)));
  return new Map(jobs.map((job) => [job.id, points.get(number(job)).size > 1 ? `${point(job)}#${number(job)}` : number(job)]));
}

export const userLink = (name) => (name ? link(name, "users", name) : "–");
export const groupLink = (name) => (name ? link(name, "groups", name) : "–");
export const switchLink = (datapath, name = datapath) => link(name || datapath, "switches", datapath);

// A text in which ids of jobs and datapaths lead to what they name. Both have 16 digits: which of them one is, is looked up there.
export function linked(text) {
  return String(text).split(/\b([0-9a-f]{16})\b/).map((part, at) => (at % 2 === 0 ? part
    : h("a", { class: "code", href: to("find", part) }, part)));
}

const GOOD = new Set(["enforced", "in sync", "forwarded", "installed", "valid", "active", "standby"]);
const POOR = new Set(["registering", "pending", "unknown", "missing", "desired", "nearly full", "jobs wait", "starting"]);
const BAD = new Set(["refused", "quarantined", "blocked", "away", "out of sync", "dropped", "foreign", "changed by others", "lost"]);

// A state in its own word; the colour and the mark only repeat it.
export function state(word) {
  const kind = GOOD.has(word) ? "good" : POOR.has(word) ? "poor" : BAD.has(word) ? "bad" : "plain";
  return h("span", { class: `state ${kind}` }, word);
}

// The state of a job of a list; one that has its rules is blocked where these let nothing pass, and there is nothing that they are for
// where it has no network.
export function jobState(job) {
  const { decision } = job;
  if (job.state === "enforced" && job.network_type === "none") return "no network";
  const isolated = decision ? decision.blocked || !(decision.inbound || decision.outbound) : job.isolated;
  return job.state === "enforced" && isolated ? "blocked" : job.state;
}

export function switchState(one) {
  if (one.state !== "in sync") return one.state;
  if (one.drift > 0) return "changed by others";
  return one.max_rules && one.desired >= 0.9 * one.max_rules ? "nearly full" : "in sync";
}

// A table; columns are {head, cell(row), number, wide, narrow}: `narrow` false hides the column on a phone. Of the kind "stacked" each
// row is a list there, with the heads before its cells, and all columns are shown.
export function table(label, columns, rows, { key, empty = "Nothing.", kind: tableKind } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const kind = (column) => [column.number && "number", column.wide && "wide", column.narrow === false && "roomy", column.kind]
    .filter(Boolean).join(" ") || null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: tableKind },
      h("caption", { class: "unseen" }, label),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: kind(column) }, column.head)))),
      h("tbody", {}, rows.map((row, number) => h("tr", { key: key ? key(row) : number },
        columns.map((column, at) => h(at === 0 ? "th" : "td", { scope: at === 0 ? "row" : null, class: kind(column), "data-head": tableKind === "stacked" ? column.head : null },
          column.cell(row))))))));
}

// Facts as a definition list; entries are [name, value], and what has no value is left out.
export function facts(...entries) {
  return h("dl", { class: "facts" }, entries.filter(([, value]) => value || value === 0)
    .map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))));
}

export function section(title, ...content) {
  return h("section", { class: "panel", key: title }, h("h2", {}, title), content);
}

// A list that is the whole of a view.
export function framed(...content) {
  return h("div", { class: "panel", key: "list" }, content);
}

// A section that is closed until somebody opens it; it stays as the reader has left it.
export function closed(title, ...content) {
  return h("details", { class: "panel", key: title.split(" (")[0] }, h("summary", {}, h("h2", {}, title)), content);
}

// A section that is closed until somebody opens it, and asked for only then.
export function folded(title, aside, opened, ...content) {
  return h("details", { class: "panel", key: title, on: { toggle: (event) => opened(event.currentTarget.open) } },
    h("summary", {}, h("h2", {}, title), aside && h("span", { class: "beside" }, ` ${aside}`)), content);
}

// A heading of its own with something beside it, such as a link or a number.
export function headed(title, aside, ...content) {
  return h("section", { class: "panel", key: title }, h("div", { class: "head" }, h("h2", {}, title), h("div", { class: "aside" }, aside)), content);
}

export function note(kind, ...content) {
  return h("p", { class: `note ${kind}` }, content);
}

// Jobs whose counters are not read: what there is of them is missing in what is shown.
export function unread(jobs, what = "what is sent and received by") {
  return jobs > 0 && h("p", { class: "hint" }, `Not known: ${what} ${several(jobs, "job")} whose counters are not read twice yet, or not read now.`);
}

// Cores of which it is not known what they drop of groups.
export function coresUnread(cores) {
  return cores > 0 && h("p", { class: "hint" }, `Not known: what is dropped of groups at ${several(cores, "core switch", "core switches")} not looked at twice yet, or not answering.`);
}

// How much of something is used, as a bar with a mark; the numbers stand beside it.
export function bar(used, whole, { mark, label } = {}) {
  const part = (value) => `${Math.max(0, Math.min(100, (100 * value) / whole))}%`;
  const full = whole > 0 && used >= 0.9 * whole;
  return h("svg", { class: `bar-of ${full ? "full" : ""}`, width: "100%", height: "10", role: "img", "aria-label": label },
    h("rect", { class: "track", x: 0, y: 2, width: "100%", height: 6, rx: 1 }),
    whole > 0 && used > 0 && h("rect", { class: "fill", x: 0, y: 2, width: part(used), height: 6, rx: 1 }),
    whole > 0 && mark > 0 && mark < whole && h("rect", { class: "mark", x: part(mark), y: 0, width: 2, height: 10 }));
}

export function rules(one) {
  const text = one.max_rules ? `${count(one.desired)} of ${count(one.max_rules)}` : count(one.desired);
  return one.max_rules
    ? h("span", { class: "with-bar" }, h("span", {}, text), bar(one.desired, one.max_rules, { label: `${text} rules` }))
    : text;
}

// "How many more there are" below a list that was cut.
export function more(shown, all, word, show) {
  return all > shown && h("p", { class: "more" }, `The first ${count(shown)} of ${several(all, word)}. `,
    h("button", { type: "button", on: { click: show } }, "Show more"));
}

// What a Problem says, with every mistake.
export function problem(error) {
  return h("div", { class: "note bad", role: "alert" },
    h("strong", {}, error.title || "Something went wrong"), error.title && error.title !== error.message ? `: ${error.message}` : "");
}
