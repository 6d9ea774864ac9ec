// The whole pool at a glance: what needs somebody, groups against their rates, switches, events.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration, moment, rate, several } from "../format.js";
import { coresUnread, groupLink, headed, link, note, rules, section, state, switchLink, switchState, table, to, unread } from "../parts.js";
import { downPort, dropSum, dropTable } from "./drops.js";
import { eventList } from "./events.js";
import { groupTable } from "./groups.js";
import { jobTable } from "./jobs.js";

const REFUSED = 8;
const BUSIEST = 5;
// So many dropped packets a second are more than what every machine says to nobody.
const MANY = 10;

export function open({ live, paint, signal }) {
  let found = {};
  paint("Overview", h("p", { class: "empty" }, "Loading…"));

  const draw = () => found.overview && found.groups && found.waiting && found.events && paint("Overview", content(found));
  live(2, async (stop) => {
    const [overview, groups, users] = await Promise.all([get(["overview"], {}, stop), get(["groups"], {}, stop),
      get(["rates"], { by: "user", limit: BUSIEST }, stop)]);
    // Sum and rows of one answer: the overview's own sum is another reading. One row more than is shown says whether there are more.
    const drops = overview.drops.packets_per_second >= MANY ? await get(["drops"], { limit: BUSIEST + 1 }, stop) : null;
    return { overview, groups: groups.groups, users: users.rates, drops };
  }, (answer) => {
    found = { ...found, ...answer };
    draw();
  });
  live(4, async (stop) => {
    const some = (which) => get(["jobs"], { state: which, order: "newest", limit: REFUSED }, stop);
    const [quarantined, pending, refused, events, controllers] = await Promise.all([some("quarantined"), some("pending"),
      some("refused"), get(["audit"], { limit: 12 }, stop), get(["instances"], {}, stop)]);
    return { waiting: [...quarantined.jobs, ...pending.jobs, ...refused.jobs], events: events.entries, controllers };
  }, (answer) => {
    found = { ...found, ...answer };
    draw();
  });
  signal.addEventListener("abort", () => (found = {}));
}

function content({ overview, groups, users, drops, waiting, events, controllers }) {
  const { switches } = overview;
  const { instances } = controllers;
  const rows = drops?.drops || [];
  return [
    !overview.ready && note("bad", h("strong", {}, "The controller is not ready: "), overview.reasons.join("; ")),
    (overview.drops.down || []).map((each) => note("poor", downPort(each), " ", link("All drops", "drops"))),
    rows.length > 0 && note("poor", `${dropSum(drops)} are dropped now. `, link("All drops", "drops")),
    figures(overview),
    overview.drops.uncounted > 0 && h("p", { class: "hint" }, `Not counted under this policy: what ${several(overview.drops.uncounted, "job")} ${overview.drops.uncounted === 1 ? "sends, receives and has" : "send, receive and have"} dropped.`),
    unread(overview.drops.unread, "what is sent, received and dropped of"),
    coresUnread(overview.drops.cores_unread),
    h("div", { class: "columns" },
      h("div", {},
        headed("Groups", link("All groups", "groups"), groupTable(groups)),
        rows.length > 0 && headed("Dropped now", [rows.length > BUSIEST && h("span", {}, `The ${BUSIEST} largest`), link("All drops", "drops")],
          dropTable(rows.slice(0, BUSIEST), { whole: false })),
        users.length > 0 && section("Users that send and receive most", table("Users that send and receive most", [
          { head: "User", cell: (one) => link(one.user, "users", one.user.split("@")[0], { user: one.user }) },
          { head: "Group", narrow: false, cell: (one) => groupLink(one.group) },
          { head: "Active jobs", number: true, cell: (one) => count(one.jobs) },
          { head: "Sent", number: true, cell: (one) => rate(one.rate.outward) },
          { head: "Received", number: true, cell: (one) => rate(one.rate.inward) },
          { head: "To the WAN", number: true, narrow: false, cell: (one) => rate(one.rate.wan_outward) },
          { head: "Moved out", number: true, narrow: false, cell: (one) => rate(one.rate.transfer_outward) },
          { head: "Moved in", number: true, narrow: false, cell: (one) => rate(one.rate.transfer_inward) },
        ], users, { key: (one) => `${one.user} ${one.group}` })),
        headed("Jobs without their network", ["quarantined", "pending", "refused"].map((each) => link(`All ${each}`, "jobs", { state: each })),
          waiting.length ? jobTable(waiting, { label: "Jobs without their network", columns: ["job", "state", "owner", "host", "reason"] })
            : h("p", { class: "empty" }, "None is quarantined, pending or refused."))),
      h("div", {},
        headed("Switches", link(`All ${count(switches.known)}`, "switches"),
          switches.in_sync < switches.known && h("p", { class: "poor-text" }, `${several(switches.known - switches.in_sync, "switch", "switches")} not in sync`),
          table("Switches", [
            { head: "Switch", cell: (one) => switchLink(one.datapath, one.name) },
            { head: "State", cell: (one) => [state(switchState(one)), one.reason && h("span", { class: "reason" }, one.reason)] },
            { head: "Rules", number: true, cell: rules },
            { head: "Jobs", number: true, cell: (one) => count(one.jobs) },
          ], overview.shown, { key: (one) => one.datapath, empty: "No switch is declared or has connected." })),
        instances.length > 1 && section("Controllers", table("Controllers", [
          { head: "Controller", cell: (one) => one.name },
          { head: "State", cell: (one) => [state(one.state), one.successor === false ? h("span", { class: "reason" }, "cannot take over: older than the database's tables") : "", one.id === controllers.active ? h("span", { class: "reason" }, "since ", moment(controllers.since)) : ""] },
          { head: "Version", narrow: false, cell: (one) => one.version },
          { head: "Copy", narrow: false, cell: (one) => one.state !== "standby" ? "" : one.copy_age === null ? "none" : `${duration(one.copy_age)} old` },
          { head: "Switches", number: true, narrow: false, cell: (one) => one.kept === null ? "" : count(one.kept) },
          { head: "Counters read", number: true, narrow: false, cell: (one) => one.counters_read === null ? "" : count(one.counters_read) },
        ], instances, { key: (one) => one.id }),
        controllers.age > 0 && h("p", { class: "poor-text" }, `The database does not answer: controllers as they were ${duration(controllers.age)} ago`),
        controllers.since && h("p", { class: "reason" }, "Last takeover: ", moment(controllers.since), `, ${controllers.why}`)),
        headed("Events", link("All events", "events"), eventList(events)))),
  ];
}

function figures({ jobs, switches, policy }) {
  const figure = (name, value, more, address) =>
    h("a", { class: "figure", href: address }, h("span", { class: "name" }, name), h("span", { class: "value" }, value), h("span", { class: "beside" }, more));
  // A job that has its rules and may do nothing is none that works.
  const other = ["blocked", "quarantined", "registering", "pending", "no_network"].filter((each) => jobs[each])
    .map((each) => (each === "no_network" ? `${count(jobs[each])} without a network` : `${count(jobs[each])} ${each}`));
  return h("div", { class: "figures" },
    figure("Jobs enforced", count(jobs.enforced - jobs.blocked), other.join(", ") || "none waits", to("jobs")),
    figure("Switches in sync", `${count(switches.in_sync)} of ${count(switches.known)}`, `${count(switches.connected)} connected`, to("switches")),
    figure("Rules installed", count(switches.installed),
      switches.desired === switches.installed ? "as desired" : `${count(switches.desired)} desired`, to("switches")),
    figure("Policy", `Version ${count(policy.version)}`, [`${policy.actor}, `, moment(policy.at)], to("policy")));
}
