// Jobs by user, group, host and state, page by page; the list of 200,000 is never loaded whole.

import { get } from "../api.js";
import { h } from "../dom.js";
import { moment, rate } from "../format.js";
import { framed, groupLink, jobLink, jobNames, jobState, linked, state, table, to, userLink } from "../parts.js";

const PAGE = 50;
const STATES = [["live", "Live"], ["enforced", "Enforced"], ["blocked", "Blocked"], ["registering", "Registering"], ["pending", "Pending"], ["quarantined", "Quarantined"],
  ["refused", "Refused"], ["ended", "Ended"], ["any", "Any"]];
const COLUMNS = {
  job: { head: "Job", cell: (job, names) => jobLink(job.id, names.get(job.id)) },
  state: { head: "State", cell: (job) => state(jobState(job)) },
  owner: { head: "User", cell: (job) => userLink(job.owner) },
  group: { head: "Group", narrow: false, cell: (job) => groupLink(job.group) },
  host: { head: "Host", narrow: false, cell: (job) => h("a", { href: to("jobs", { host: job.host }) }, job.host) },
  address: { head: "Address", cell: (job) => h("span", { class: "code" }, job.addresses.map((one, at) => [at > 0 && h("br"), one.address])) },
  sent: { head: "Sent", number: true, cell: (job) => known(job, "outward") },
  received: { head: "Received", number: true, cell: (job) => known(job, "inward") },
  moved: { head: "Moved out", number: true, narrow: false, cell: (job) => rate(job.usage?.rate.transfer_outward) },
  taken: { head: "Moved in", number: true, narrow: false, cell: (job) => rate(job.usage?.rate.transfer_inward) },
  started: { head: "Registered", narrow: false, cell: (job) => moment(job.created) },
  reason: { head: "Reason", wide: true, cell: (job) => linked(job.reason) },
};

// A rate of a job whose counters cannot be read now is not 0.
const known = ({ usage }, way) => (usage?.unread ? h("span", { class: "poor-text" }, "not known") : rate(usage?.rate[way]));

export function jobTable(jobs, { label = "Jobs", columns = Object.keys(COLUMNS), empty } = {}) {
  const names = jobNames(jobs);
  const shown = columns.map((name) => ({ ...COLUMNS[name], cell: (job) => COLUMNS[name].cell(job, names) }));
  return table(label, shown, jobs, { key: (job) => job.id, empty });
}

export function open({ query, paint, live }) {
  const chosen = { owner: query.owner, group: query.group, host: query.host, cluster: query.cluster, state: query.state || "live", order: query.order || "newest" };
  paint("Jobs", filters(chosen), h("p", { class: "empty" }, "Loading…"));
  live(4, (signal) => get(["jobs"], { ...chosen, cursor: query.cursor, limit: PAGE }, signal), (page) => {
    paint("Jobs", filters(chosen),
      framed(jobTable(page.jobs, { empty: query.cursor ? "No more jobs." : "No job is like that." }), pages(query, page.next_cursor)));
  });
}

// Links to the first page and the next one; to the one before leads the browser's own way back.
export function pages(query, next, ...where) {
  const place = where.length ? where : ["jobs"];
  return h("p", { class: "pages" },
    query.cursor && h("a", { href: to(...place, { ...query, cursor: undefined }) }, "First page"),
    next && h("a", { href: to(...place, { ...query, cursor: next }), rel: "next" }, "Next page"));
}

function filters(chosen) {
  const field = (name, text) => h("label", {}, h("span", {}, text),
    h("input", { name, value: chosen[name] || "", maxlength: "1024", spellcheck: "false", autocomplete: "off" }));
  const choice = (name, text, options) => h("label", {}, h("span", {}, text),
    h("select", { name, value: chosen[name] }, options.map(([value, word]) => h("option", { value }, word))));
  const submit = (event) => {
    event.preventDefault();
    const wanted = Object.fromEntries([...new FormData(event.currentTarget)].map(([name, value]) => [name, value.trim()]));
    location.hash = to("jobs", wanted);
  };
  return h("form", { class: "filters", key: "filters", on: { submit, change: (event) => event.target.localName === "select" && event.currentTarget.requestSubmit() } },
    field("owner", "User"), field("group", "Group"), field("host", "Host"), field("cluster", "Cluster"),
    choice("state", "State", STATES), choice("order", "Order", [["newest", "Newest first"], ["oldest", "Oldest first"]]),
    h("button", { type: "submit" }, "Show"));
}
