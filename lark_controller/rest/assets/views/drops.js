// What is dropped now: from whom, to where, by which rule, how fast.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, moment, several } from "../format.js";
import { coresUnread, framed, jobLink, note, switchLink, table, to, unread } from "../parts.js";

const MOST = 100;

// Packets a second; below ten with one digit.
export function fast(packets) {
  return packets >= 9.95 ? count(Math.round(packets)) : packets.toFixed(1);
}

function ends(drop) {
  if (!drop.job) return [drop.source, drop.destination];
  const own = [jobLink(drop.job, drop.name), ` of ${drop.owner}`];
  return drop.direction === "out" ? [own, drop.destination] : [drop.source, own];
}

export function rule(drop) {
  const [before, after] = drop.line === null ? [drop.rule, ""] : drop.rule.split(`(policy line ${drop.line})`);
  return [before, after !== undefined && drop.line !== null && h("a", { href: to("policy", { line: drop.line }) }, `(policy line ${drop.line})`)];
}

export function dropTable(drops, { whole = true, empty = "Nothing is dropped now." } = {}) {
  return table("Drops", [
    { head: "Packets a second", number: true, cell: (drop) => [drop.estimated && h("span", { title: "Several rules drop packets there and are not counted apart for each job; this is a share of them" }, "about "), fast(drop.packets_per_second)] },
    { head: "From", cell: (drop) => ends(drop)[0] },
    { head: "To", cell: (drop) => ends(drop)[1] },
    { head: "By", wide: true, cell: rule },
    ...(whole ? [
      { head: "At", narrow: false, cell: (drop) => drop.host || (drop.datapath && switchLink(drop.datapath, drop.switch)) },
      { head: "Read", narrow: false, cell: (drop) => moment(drop.at) },
    ] : []),
  ], drops, { key: (drop) => `${drop.job} ${drop.group} ${drop.datapath} ${drop.direction} ${drop.kind} ${drop.rule}`, empty, kind: "stacked" });
}

// What is dropped of one job, for the head of its page: how fast, to or from where, and by which rule.
export function jobDrops(drops) {
  return drops.map((drop) => h("span", { class: "dropped", key: `${drop.direction} ${drop.kind} ${drop.rule}` },
    `Dropped now: ${drop.estimated ? "about " : ""}${fast(drop.packets_per_second)} packets a second ${drop.direction === "out" ? `to ${drop.destination}` : `from ${drop.source}`}, by `, rule(drop)));
}

// A WAN port that is down with nothing in its place, and the jobs whose packets are dropped for that.
export function downPort({ port, switches, jobs }) {
  const which = port ? `WAN port ${port} of ${switches.join(", ")}` : "A WAN port";
  return `${which} is down, and nothing takes its place: what ${several(jobs, "job")} would send by it is dropped, and not counted.`;
}

export function dropSum({ jobs, groups, packets_per_second: packets }) {
  const whose = [jobs > 0 && several(jobs, "job"), groups > 0 && `${several(groups, "group")} at cores`].filter(Boolean);
  return `${fast(packets)} packets a second${whose.length ? ` of ${whose.join(" and of ")}` : ""}`;
}

export function open({ paint, live }) {
  paint("Drops", h("p", { class: "empty" }, "Loading…"));
  live(3, (signal) => get(["drops"], { limit: MOST }, signal), (found) => {
    paint("Drops",
      (found.down || []).map((each) => note("poor", downPort(each))),
      found.drops.length > 0 && h("p", { class: "sum" }, `${dropSum(found)} are dropped.`),
      framed(dropTable(found.drops, found.away || found.down?.length || found.uncounted || found.unread || found.cores_unread ? { empty: "Of what is known, nothing is dropped now." } : {})),
      found.away > 0 && h("p", { class: "hint" }, `Not known: what is dropped at ${several(found.away, "switch", "switches")} that cannot be asked.`),
      found.uncounted > 0 && h("p", { class: "hint" }, `Not counted under this policy: what is dropped of ${several(found.uncounted, "job")}.`),
      unread(found.unread, "what is dropped of"),
      coresUnread(found.cores_unread),
      h("p", { class: "hint" }, "What jobs send under addresses that are not theirs is refused at their ports and not counted here."));
  });
}
