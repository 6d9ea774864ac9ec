// One group: what the policy gives it, what it uses, over time too, and its jobs.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, rate, several } from "../format.js";
import { NONE, added, history } from "../history.js";
import { facts, headed, note, unread } from "../parts.js";
import { rememberKnown } from "../samples.js";
import { jobTable, pages } from "./jobs.js";
import { used } from "./usage.js";

const KNOWN = 1000;

// The rates of an AcctGroup in any case, with its subgroups, added up; null where none of its jobs sends or receives.
function rateOf(rates, group) {
  const name = group.toLowerCase();
  const own = rates.filter((each) => each.name.toLowerCase() === name || each.name.toLowerCase().startsWith(`${name}.`));
  return own.length ? added(own) : null;
}

export function open({ one, query, paint, live, signal }) {
  let [group, page, unknown] = [null, null, 0];
  const draw = () => paint(`Group ${one}`, page ? content() : h("p", { class: "empty" }, "Loading…"));
  draw();
  const plotted = history({
    live, draw, signal, by: "group", choose: () => ({ group: one }), subject: `group ${one}`, label: `Traffic of ${one}`,
    limits: () => [["guarantee", "Guarantee"], ["ceiling", "Ceiling"]].filter(([kind]) => group?.[kind])
      .map(([kind, name]) => ({ name, kind, value: group[kind] })),
  });
  const otherwise = () => group && group.jobs > 0 && !page.jobs.length && !query.cursor;
  const content = () => [
    group ? facts(["Live jobs", count(group.jobs)], ["Guarantee", rate(group.guarantee)], ["Ceiling", rate(group.ceiling)],
      ["WAN port", group.port || "any"], ["DSCP", count(group.dscp)], ["Queue", group.queue === null ? undefined : count(group.queue)],
      ["To the WAN now", rate(group.rate.wan_outward)], ["From the WAN now", rate(group.rate.wan_inward)],
      ["Sent now", rate(group.rate.outward)], ["Received now", rate(group.rate.inward)],
      ["Moved out now", rate(group.rate.transfer_outward)], ["Moved in now", rate(group.rate.transfer_inward)],
      ["Capacity for transfers", group.transfer_capacity === null ? undefined : rate(group.transfer_capacity)],
      ["Dropped at the core", several(group.core_drops, "packet")])
      : note("plain", "The policy in force has no group of this name; its jobs are in the group that takes them instead."),
    unread(unknown, "what is sent and received, in the whole pool, by"),
    group && group.unkept.length > 0 && note("poor", h("strong", {}, "Not all of its rates is kept: "), group.unkept.join("; ")),
    otherwise() && note("plain", `None of its live jobs has the AcctGroup ${one}: the policy puts them here by other facts, or since no other group takes them. `
      + "History is kept and jobs are listed by AcctGroup, so below is only what these jobs move while this page is open."),
    headed("Over time", otherwise() ? "What its jobs move now" : `Jobs with AcctGroup ${one} or a subgroup of it`, plotted.view()),
    group && headed("Use", "Since the controller became active, and up to a minute before", used(group.usage)),
    headed(`Live jobs with AcctGroup ${one}`, "or a subgroup of it", jobTable(page.jobs, { empty: "None." }), pages(query, page.next_cursor, "groups", one)),
  ];
  live(3, async (stop) => {
    const [{ groups }, jobs, moving] = await Promise.all([
      get(["groups"], {}, stop),
      get(["jobs"], { group: one, order: "newest", limit: 25, cursor: query.cursor }, stop),
      get(["rates"], { by: "group", limit: KNOWN }, stop),
    ]);
    return { groups, jobs, moving };
  }, ({ groups, jobs, moving: { rates, unread: more } }) => {
    [group, page, unknown] = [groups.find((each) => each.name.toLowerCase() === one.toLowerCase()), jobs, more];
    // The history is by AcctGroup, and so are the rates that go on with it. A group of the policy that no job has as its AcctGroup
    // has no history; what it moves now is all there is to show.
    const now = rateOf(rates, one);
    rememberKnown(`group ${one}`, now || (!jobs.jobs.length && group?.rate) || NONE, more);
    draw();
  });
}
