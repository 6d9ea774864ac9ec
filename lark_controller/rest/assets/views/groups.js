// The groups of the policy: what they may use and what they use.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, rate } from "../format.js";
import { framed, groupLink, table } from "../parts.js";

export function groupTable(groups) {
  return table("Groups", [
    { head: "Group", cell: (group) => groupLink(group.name) },
    { head: "Jobs", number: true, cell: (group) => count(group.jobs) },
    { head: "Guarantee", number: true, cell: (group) => rate(group.guarantee) },
    { head: "Ceiling", number: true, cell: (group) => rate(group.ceiling) },
    { head: "WAN port", narrow: false, cell: (group) => group.port || "any" },
  ], groups, { key: (group) => group.name, empty: "The policy in force has no groups." });
}

export function open({ paint, live }) {
  paint("Groups", h("p", { class: "empty" }, "Loading…"));
  live(2, (signal) => get(["groups"], {}, signal), ({ groups }) => {
    paint("Groups", framed(groupTable(groups)));
  });
}
