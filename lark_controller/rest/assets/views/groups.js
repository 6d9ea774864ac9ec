// The groups of the policy: what they may use and what they use.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, rate } from "../format.js";
import { bar, framed, groupLink, table, unread } from "../parts.js";

// What a group sends to the WAN, against what it is guaranteed (a mark) and its ceiling (the whole bar).
function use(group) {
  const now = rate(group.rate.wan_outward);
  if (!group.ceiling) return now;
  const guarantee = group.guarantee ? `, ${rate(group.guarantee)} guaranteed` : "";
  return h("span", { class: "with-bar" }, now, bar(group.rate.wan_outward, group.ceiling,
    { mark: group.guarantee, label: `${now} of ${rate(group.ceiling)}${guarantee}` }));
}

export function groupTable(groups, { whole = false } = {}) {
  return table("Groups", [
    { head: "Group", cell: (group) => [groupLink(group.name), group.unkept.length > 0 &&
      h("span", { class: "reason", title: group.unkept.join("\n") }, "not all is kept")] },
    { head: "Jobs", number: true, cell: (group) => count(group.jobs) },
    { head: "To the WAN", number: true, cell: use },
    { head: "Guarantee", number: true, narrow: whole ? false : undefined, cell: (group) => rate(group.guarantee) },
    { head: "Ceiling", number: true, cell: (group) => rate(group.ceiling) },
    ...(whole ? [{ head: "From the WAN", number: true, narrow: false, cell: (group) => rate(group.rate.wan_inward) }] : []),
    { head: "Sent", number: true, narrow: false, cell: (group) => rate(group.rate.outward) },
    { head: "Received", number: true, narrow: false, cell: (group) => rate(group.rate.inward) },
    ...(whole ? [
      { head: "Moved out", number: true, narrow: false, cell: (group) => rate(group.rate.transfer_outward) },
      { head: "Moved in", number: true, narrow: false, cell: (group) => rate(group.rate.transfer_inward) },
      { head: "WAN port", narrow: false, cell: (group) => group.port || "any" },
    ] : []),
  ], groups, { key: (group) => group.name, empty: "The policy in force has no groups." });
}

export function open({ paint, live }) {
  paint("Groups", h("p", { class: "empty" }, "Loading…"));
  live(2, (signal) => get(["groups"], {}, signal), (found) => {
    paint("Groups", framed(groupTable(found.groups, { whole: true })), unread(found.unread));
  });
}
