// The network in one picture: the WAN above, core switches, workers below, each link as thick as its load; and who reaches whom.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, rate, several } from "../format.js";
import { bar, headed, link, to, unread, userLink } from "../parts.js";

// The picture for a window, and the one for a phone, at whose width the other would be a fifth of itself.
const WIDE = { width: 1040, row: 4, box: 236, core: 496, height: 101, gap: 24, names: 25, letters: 40 };
const NARROW = { width: 356, row: 2, box: 168, core: 340, height: 119, gap: 16, names: 16, letters: 28 };
// Letters that fit into a line of a core's box.
const CORE_LINE = { wide: 64, narrow: 42 };
const UNKNOWN = "capacity not known";
// The width of a letter, nearly: of a line and of a name.
const LETTER = 6.8;
const NAME_LETTER = 8.6;
const LINE = 17;
// Ports of a core that have a line each.
const PORTS = 6;
const MARKS = { all: ["✓", "all"], some: ["◐", "some"], none: ["✕", "none"], unknown: ["?", "not known"] };

// A worker's state and jobs in words; on a phone in few.
function workers(one, narrow) {
  const jobs = narrow && one.jobs > 99 ? count(one.jobs) : several(one.jobs, "job");
  return one.state === "jobs wait" ? `${count(one.waiting)} of ${jobs} ${one.waiting === 1 ? "waits" : "wait"}` : `${one.state}, ${several(one.jobs, "job")}`;
}
const kindOf = (one) => (one.state === "in sync" ? "good" : one.connected ? "poor" : "bad");

// How much of a link is used, in the direction that has more, or in both where they share it; null where its capacity is not known.
function load({ inward, outward }, capacity, shared = false) {
  return capacity ? (shared ? inward + outward : Math.max(inward, outward)) / capacity : null;
}

function wire(x1, y1, x2, y2, part, key) {
  const kind = part === null ? "" : part >= 0.9 ? " full" : part > 0 ? " used" : "";
  return h("line", { key, class: `wire${kind}`, x1, y1, x2, y2, "stroke-width": part === null ? 2 : 2 + 8 * Math.min(1, part) });
}

// The load of a core's port, in the direction that has more.
function portLoad(port) {
  return port.outward === null ? null : load(port, port.capacity);
}

// A line that may be longer than its box is as long.
function fitted(line, width, letter = LETTER) {
  return line.length * letter > width ? { textLength: width, lengthAdjust: "spacingAndGlyphs" } : { textLength: null, lengthAdjust: null };
}

function box(x, y, { key, kind, title, lines, part, href, width, height }) {
  const content = [
    h("rect", { class: `box ${kind}`, x, y, width, height, rx: 6 }),
    h("text", { class: "name", x: x + 12, y: y + 22, ...fitted(title, width - 24, NAME_LETTER) }, title),
    lines.map((line, at) => h("text", { key: at, class: "line", x: x + 12, y: y + 42 + LINE * at, ...fitted(line, width - 24) }, line)),
    part !== null && part !== undefined && [
      h("rect", { class: "track", x: x + 12, y: y + height - 10, width: width - 24, height: 5, rx: 1 }),
      h("rect", { class: part >= 0.9 ? "fill full" : "fill", x: x + 12, y: y + height - 10, width: (width - 24) * Math.min(1, part), height: 5, rx: 1 })],
  ];
  return href ? h("a", { key, href }, content) : h("g", { key }, content);
}

// A worker's link: how much of it is used.
function linkUse({ capacity, shared }, part, narrow) {
  if (!capacity) return UNKNOWN;
  const used = part === null ? "" : part > 0 && part < 0.01 ? "under 1 % " : `${Math.round(100 * part)} % `;
  return `${used}of ${rate(capacity)}${shared && !narrow ? ", both ways" : ""}`;
}

const ways = (one) => `↑ ${rate(one.outward)}  ↓ ${rate(one.inward)}`;

// A port by its name in the policy, and by that of its interface where it is another; what it carries, in a line or in one of its own.
function portLines({ name, declared, interface: own, up, outward, inward, capacity }, narrow) {
  const called = !declared || declared === own || !own ? declared || own || name : `${declared} (${own})`;
  const carries = !up ? "down" : outward === null ? "up" : ways({ outward, inward });
  if (!up || !narrow) {
    const line = up ? `${carries} ${capacity ? `of ${rate(capacity)}` : `(${UNKNOWN})`}` : carries;
    return [`${short(called, (narrow ? CORE_LINE.narrow : CORE_LINE.wide) - line.length - 2)}: ${line}`];
  }
  const speed = capacity ? rate(capacity) : UNKNOWN;
  return [`${short(called, CORE_LINE.narrow - speed.length - 2)}, ${speed}`, carries];
}

function coreBox(each, { core: width, letters }, narrow) {
  const ports = each.ports.slice(0, PORTS).flatMap((port) => portLines(port, narrow));
  if (each.ports.length > PORTS) ports.push(`${several(each.ports.length - PORTS, "port")} more`);
  return { key: each.datapath, kind: kindOf(each), href: to("switches", each.datapath), width, part: null,
    title: short(each.name || each.datapath, letters), lines: [`core switch, ${each.state}`, ...ports],
    height: 58 + LINE * ports.length };
}

// Jobs whose rates are not known: those at switches that are away.
const blind = ({ edges, rest }) => [...edges, ...rest].reduce((sum, each) => sum + (each.state === "away" ? each.jobs : 0), 0);
const short = (text, letters) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);
const most = (parts) => parts.reduce((found, each) => (each === null ? found : Math.max(found ?? 0, each)), null);

function wanLines(found, carried, narrow) {
  const { capacity, shared, reserved } = found.wan;
  const jobs = `jobs: ${ways(carried)}`;
  const whole = capacity ? `of ${rate(capacity)}${shared ? " together" : ""}` : UNKNOWN;
  const more = [blind(found) > 0 && `without ${several(blind(found), "job")} whose switches are away`, reserved > 0 && `${rate(reserved)} reserved`].filter(Boolean);
  if (narrow) return [jobs, whole, ...more];
  return [`${jobs} ${capacity ? whole : `(${whole})`}`, more.join(", ") || "outside of the site"];
}

function picture(found, shape) {
  const { width, row, gap } = shape;
  const narrow = shape === NARROW;
  const wanRate = { inward: found.wan.rate.wan_inward, outward: found.wan.rate.wan_outward };
  const middle = width / 2;
  // Nothing is known of what passes a switch that is away.
  const rates = (one) => (one.state === "away" ? ["rates not known"] : narrow ? [`↑ ${rate(one.rate.outward)}`, `↓ ${rate(one.rate.inward)}`] : [ways(one.rate)]);
  const boxes = [
    ...found.edges.map((each) => {
      const part = each.state === "away" ? null : load(each.rate, each.capacity, each.shared);
      return { key: each.datapath || each.name, kind: kindOf(each), title: short(each.name || each.datapath, shape.names),
        href: each.datapath ? to("switches", each.datapath) : to("jobs", { host: each.name }), lines: [workers(each, narrow), ...rates(each), linkUse(each, part, narrow)], part };
    }),
    ...found.rest.map((each) => ({ key: each.state, kind: `${kindOf(each)} many`, title: `${several(each.switches, "worker")} more`, href: "#/switches",
      lines: [`${each.state}, ${several(each.jobs, "job")}`, ...rates(each)], part: null })),
  ].map((each) => ({ ...each, width: shape.box, height: shape.height }));
  // Cores need room for the rates of their ports: one to a row on a phone, two elsewhere.
  const coreRow = narrow ? 1 : Math.min(2, Math.max(1, found.cores.length));
  const cores = found.cores.map((each) => coreBox(each, shape, narrow));
  const coreHeight = Math.max(0, ...cores.map((each) => each.height));
  const coreRows = Math.ceil(cores.length / coreRow);
  const outside = wanLines(found, wanRate, narrow);
  const wanHeight = 50 + LINE * outside.length;
  const top = wanHeight + 38;
  const site = top + 8 + coreRows * (coreHeight + 22);
  const rows = Math.ceil(boxes.length / row);
  const height = site + 60 + rows * (shape.height + gap);
  const aside = Math.min(14, shape.box / 2 / (rows + 1));
  const at = (index, length, per, { width: wide, height: high, gap: apart, from }) => {
    const here = Math.min(per, length - per * Math.floor(index / per));
    const left = middle - (here * wide + (here - 1) * apart) / 2;
    return [left + (index % per) * (wide + apart), from + Math.floor(index / per) * (high + apart)];
  };
  const corePlace = (index) => at(index, cores.length, coreRow, { width: cores[index].width, height: coreHeight, gap: 22, from: top });
  const edgePlace = (index) => at(index, boxes.length, row, { width: shape.box, height: shape.height, gap, from: site + 60 });
  const wanPart = load(wanRate, found.wan.capacity, found.wan.shared);
  return h("svg", { class: `map${narrow ? " narrow" : ""}`, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words(found) },
    cores.length ? cores.map((each, index) => {
      const [x, y] = corePlace(index);
      const there = x + each.width / 2 + 14 * Math.floor(index / coreRow);
      const own = (wan) => most(found.cores[index].ports.filter((port) => port.wan === wan).map(portLoad));
      return [wire(there, wanHeight + 16, there, y, own(true) ?? wanPart, `wan-wire ${each.key}`), wire(there, y, there, site, own(false), `lan-wire ${each.key}`)];
    }) : wire(middle, wanHeight + 16, middle, site, wanPart, "wan-wire"),
    boxes.map((each, index) => {
      const [x, y] = edgePlace(index);
      // Those of several rows stand side by side.
      const there = x + each.width / 2 + aside * Math.floor(index / row);
      return wire(there, site, there, y, each.part, `wire ${each.key}`);
    }),
    box(narrow ? 8 : middle - 400, 16, { key: "wan", kind: "wan", width: narrow ? width - 16 : 800, height: wanHeight, title: "WAN", part: wanPart, lines: outside }),
    cores.map((each, index) => box(...corePlace(index), each)),
    h("rect", { class: "site", x: 8, y: site, width: width - 16, height: 24, rx: 4 }),
    h("text", { class: "line on-site", x: middle, y: site + 17, "text-anchor": "middle" }, "the site’s network"),
    boxes.map((each, index) => box(...edgePlace(index), each)));
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
        h("td", { class: "number" }, count(one.jobs)), cell(one.wan, `${one.owner} to the WAN: ${one.wan}${one.wan_reason && `, as ${one.wan_reason}`}`),
        one.reaches.map((extent, at) => (parties[at] === one && one.jobs < 2 ? h("td", { class: "reach", title: "It has one job." }, "–") : cell(extent, `${one.owner} to ${parties[at].owner}: ${extent}`))))))));
}

function linkList(links) {
  return h("ul", { class: "plain links" }, links.map((each) => h("li", { key: `${each.name} ${each.source}` },
    h("span", {}, `${each.name}: ${each.source ? `${each.source} → ${each.target}` : `${each.ends.join(" ↔ ")}, both ways together`}`),
    bar(each.reserved, each.capacity, { label: `${rate(each.reserved)} of ${rate(each.capacity)} reserved` }),
    h("span", { class: "reason" }, `${rate(each.reserved)} of ${rate(each.capacity)} reserved`))));
}

export function open({ paint, live }) {
  paint("Map", h("p", { class: "empty" }, "Loading…"));
  const phone = matchMedia("(max-width: 720px)");
  live(5, (signal) => get(["map"], {}, signal), (found) => {
    paint("Map",
      h("div", { class: "panel", key: "map" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Map" }, picture(found, phone.matches ? NARROW : WIDE)),
        h("p", { class: "reason" }, "A line is as thick as its load against its capacity, a bar as long. ↑ is towards the WAN, ↓ towards the jobs: at a core’s ports all ",
          "that passes, elsewhere what jobs send and receive; the two are read at different moments, so neither is a part of the other. Capacities are those of the policy’s topology, and the speeds of a core’s ports."),
        found.uncounted > 0 && h("p", { class: "hint" }, `Not counted under this policy: what ${several(found.uncounted, "job")} ${found.uncounted === 1 ? "sends and receives" : "send and receive"}.`),
        unread(found.unread)),
      headed("Who reaches whom", link("Explain one case", "explain"), found.parties.length ? [reachTable(found),
        found.parties.filter((one) => one.wan_reason).map((one) => h("p", { class: "poor-text", key: one.owner }, `${one.owner} to the WAN: ${one.wan}, as ${one.wan_reason}.`)),
        h("p", { class: "reason" }, "✓ all jobs, ◐ some of them or to some addresses, ✕ none, ? not known. By the policy and its decisions for live jobs; ",
          found.other_owners ? `${several(found.other_owners, "other user")} with ${several(found.other_jobs, "job")} are not shown.` : "every user is shown.")]
        : h("p", { class: "empty" }, "No job runs.")),
      found.links.length > 0 && headed("Links of the topology", link("Reservations", "reservations"), linkList(found.links)));
  });
}
