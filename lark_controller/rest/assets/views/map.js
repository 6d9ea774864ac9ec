// The network in one picture: the WAN above, core switches, workers below, each link as thick as its load; and who reaches whom.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, rate, several } from "../format.js";
import { bar, headed, link, to, userLink } from "../parts.js";

const WIDTH = 1040;
const ROW = 4;
const BOX = { width: 236, height: 84, gap: 24 };
const MARKS = { all: ["✓", "all"], some: ["◐", "some"], none: ["✕", "none"] };

function state(one) {
  if (!one.connected) return ["bad", "away"];
  return one.in_sync ? ["good", "in sync"] : ["poor", "not in sync"];
}

// How much of a link is used, in the direction that has more; null where its capacity is not known.
function load({ inward, outward }, capacity) {
  return capacity ? Math.max(inward, outward) / capacity : null;
}

function wire(x1, y1, x2, y2, part, key) {
  const kind = part === null ? "" : part >= 0.9 ? " full" : part > 0 ? " used" : "";
  return h("line", { key, class: `wire${kind}`, x1, y1, x2, y2, "stroke-width": part === null ? 2 : 2 + 8 * Math.min(1, part) });
}

function box(x, y, { key, kind, title, lines, part, href, width = BOX.width }) {
  const content = [
    h("rect", { class: `box ${kind}`, x, y, width, height: BOX.height, rx: 6 }),
    h("text", { class: "name", x: x + 12, y: y + 22 }, title),
    lines.map((line, at) => h("text", { key: at, class: "line", x: x + 12, y: y + 42 + 17 * at }, line)),
    part !== null && part !== undefined && [
      h("rect", { class: "track", x: x + 12, y: y + BOX.height - 10, width: width - 24, height: 5, rx: 1 }),
      h("rect", { class: part >= 0.9 ? "fill full" : "fill", x: x + 12, y: y + BOX.height - 10, width: (width - 24) * Math.min(1, part), height: 5, rx: 1 })],
  ];
  return href ? h("a", { key, href }, content) : h("g", { key }, content);
}

const ways = (one) => `↑ ${rate(one.outward)}  ↓ ${rate(one.inward)}`;
const short = (text) => (text.length > 28 ? `${text.slice(0, 27)}…` : text);

function picture(found) {
  const wanRate = { inward: found.wan.rate.wan_inward, outward: found.wan.rate.wan_outward };
  const wanPart = load(wanRate, found.wan.capacity);
  const middle = WIDTH / 2;
  const boxes = [
    ...found.edges.map((each) => ({ key: each.datapath, kind: state(each)[0], title: short(each.name || each.datapath), href: to("switches", each.datapath),
      lines: [`${state(each)[1]}, ${several(each.jobs, "job")}${each.capacity ? `, ${rate(each.capacity)}` : ""}`, ways(each.rate)],
      part: load(each.rate, each.capacity) })),
    ...found.rest.map((each) => ({ key: state(each)[1], kind: `${state(each)[0]} many`, title: `${several(each.switches, "worker")} more`, href: "#/switches",
      lines: [`${state(each)[1]}, ${several(each.jobs, "job")}`, ways(each.rate)], part: null })),
  ];
  const cores = found.cores.map((each) => ({ key: each.datapath, kind: state(each)[0], title: short(each.name || each.datapath),
    href: to("switches", each.datapath), lines: [`core switch, ${state(each)[1]}`], part: null }));
  const coreRows = Math.ceil(cores.length / ROW);
  const site = 130 + coreRows * (BOX.height + 22);
  const rows = Math.ceil(boxes.length / ROW);
  const height = site + 60 + rows * (BOX.height + BOX.gap);
  const at = (index, length, top) => {
    const here = Math.min(ROW, length - ROW * Math.floor(index / ROW));
    const left = middle - (here * BOX.width + (here - 1) * BOX.gap) / 2;
    return [left + (index % ROW) * (BOX.width + BOX.gap), top + Math.floor(index / ROW) * (BOX.height + BOX.gap)];
  };
  return h("svg", { class: "map", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": words(found) },
    wire(middle, 100, middle, site, wanPart, "wan-wire"),
    boxes.map((each, index) => {
      const [x, y] = at(index, boxes.length, site + 60);
      // Those of several rows stand side by side.
      const there = x + BOX.width / 2 + 14 * Math.floor(index / ROW);
      return wire(there, site, there, y, each.part, `wire ${each.key}`);
    }),
    box(middle - 170, 16, { key: "wan", kind: "wan", width: 340, title: "WAN", part: wanPart, lines: [
      ways(wanRate) + (found.wan.capacity ? ` of ${rate(found.wan.capacity)}` : ""),
      found.wan.reserved ? `${rate(found.wan.reserved)} reserved` : "outside of the site"] }),
    cores.map((each, index) => box(...at(index, cores.length, 122), each)),
    h("rect", { class: "site", x: 20, y: site, width: WIDTH - 40, height: 24, rx: 4 }),
    h("text", { class: "line on-site", x: middle, y: site + 17, "text-anchor": "middle" }, "the site’s network"),
    boxes.map((each, index) => box(...at(index, boxes.length, site + 60), each)));
}

function words(found) {
  const workers = found.edges.length + found.rest.reduce((sum, each) => sum + each.switches, 0);
  return `The WAN, ${several(found.cores.length, "core switch", "core switches")}, ${several(workers, "worker")}`;
}

function reachTable({ parties }) {
  const cell = (extent, text) => h("td", { class: `reach ${extent}`, title: text }, h("span", { "aria-hidden": "true" }, MARKS[extent][0]),
    h("span", { class: "unseen" }, MARKS[extent][1]));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Who reaches whom" },
    h("table", { class: "reaches" }, h("caption", { class: "unseen" }, "Who reaches whom"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "From jobs of"), h("th", { scope: "col", class: "number" }, "Jobs"),
        h("th", { scope: "col" }, "WAN"), parties.map((each) => h("th", { key: each.owner, scope: "col" }, `to ${each.owner}`)))),
      h("tbody", {}, parties.map((one) => h("tr", { key: one.owner }, h("th", { scope: "row" }, userLink(one.owner)),
        h("td", { class: "number" }, count(one.jobs)), cell(one.wan, `${one.owner} to the WAN: ${one.wan}`),
        one.reaches.map((extent, at) => (parties[at] === one && one.jobs < 2 ? h("td", { class: "reach", title: "It has one job." }, "–") : cell(extent, `${one.owner} to ${parties[at].owner}: ${extent}`))))))));
}

function linkList(links) {
  return h("ul", { class: "plain links" }, links.map((each) => h("li", { key: `${each.name} ${each.source}` },
    h("span", {}, `${each.name}: ${each.source ? `${each.source} → ${each.target}` : "both ways"}`),
    bar(each.reserved, each.capacity, { label: `${rate(each.reserved)} of ${rate(each.capacity)} reserved` }),
    h("span", { class: "reason" }, `${rate(each.reserved)} of ${rate(each.capacity)} reserved`))));
}

export function open({ paint, live }) {
  paint("Map", h("p", { class: "empty" }, "Loading…"));
  live(5, (signal) => get(["map"], {}, signal), (found) => {
    paint("Map",
      h("div", { class: "panel", key: "map" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Map" }, picture(found)),
        h("p", { class: "reason" }, "A line is as thick as its load; a bar shows the load against the capacity, where the policy’s topology has one. ",
          "↑ is what jobs send, ↓ what they receive.")),
      headed("Who reaches whom", link("Explain one case", "explain"), found.parties.length ? [reachTable(found),
        h("p", { class: "reason" }, "✓ all jobs, ◐ some of them or to some addresses, ✕ none. By the policy and its decisions for live jobs; ",
          found.other_owners ? `${several(found.other_owners, "other user")} with ${several(found.other_jobs, "job")} are not shown.` : "every user is shown.")]
        : h("p", { class: "empty" }, "No job runs.")),
      found.links.length > 0 && headed("Links of the topology", link("Reservations", "reservations"), linkList(found.links)));
  });
}
