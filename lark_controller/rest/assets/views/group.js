// One group: what the policy gives it, and its jobs.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, rate } from "../format.js";
import { facts, headed, note } from "../parts.js";
import { jobTable, pages } from "./jobs.js";

export function open({ one, query, paint, live }) {
  paint(`Group ${one}`, h("p", { class: "empty" }, "Loading…"));
  live(3, async (signal) => {
    const [{ groups }, page] = await Promise.all([
      get(["groups"], {}, signal),
      get(["jobs"], { group: one, order: "newest", limit: 25, cursor: query.cursor }, signal),
    ]);
    return { group: groups.find((each) => each.name === one), page };
  }, ({ group, page }) => {
    paint(`Group ${one}`,
      group ? facts(["Live jobs", count(group.jobs)], ["Guarantee", rate(group.guarantee)], ["Ceiling", rate(group.ceiling)],
        ["WAN port", group.port || "any"], ["DSCP", count(group.dscp)], ["Queue", group.queue === null ? undefined : count(group.queue)])
        : note("plain", "The policy in force has no group of this name; its jobs are in the group that takes them instead."),
      headed(`Live jobs with AcctGroup ${one}`, null, jobTable(page.jobs, { empty: "None." }), pages(query, page.next_cursor, "groups", one)));
  });
}
