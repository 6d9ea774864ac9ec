// Bandwidth that is promised: what each link carries and has left, and the reservations.

import { get } from "../api.js";
import { h } from "../dom.js";
import { duration, moment, rate } from "../format.js";
import { bar, headed, jobLink, link, note, state, table } from "../parts.js";
import { pages } from "./jobs.js";

const PAGE = 50;

export function reservationTable(reservations, { empty = "Nothing is reserved.", job = true } = {}) {
  return table("Reservations", [
    { head: "Rate", number: true, cell: (one) => rate(one.rate) },
    { head: "From", cell: (one) => [one.source, job && one.job && [" ", jobLink(one.job, one.job_name || one.job)]] },
    { head: "To", cell: (one) => [one.destination, one.peer && [" ", jobLink(one.peer, one.peer_name || one.peer)],
      one.addresses.length > 0 && h("span", { class: "reason code" }, one.addresses.join(", "))] },
    { head: "State", cell: (one) => one.state && [state(one.state), one.reason && h("span", { class: "reason" }, one.reason)] },
    { head: "Kind", narrow: false, cell: (one) => (one.kind === "job" ? "RequestBandwidth" : "flow") },
    { head: "Until", cell: (one) => (one.until ? [moment(one.until), h("span", { class: "reason" },
      `${duration((Date.parse(one.until) - Date.now()) / 1000)} left`)] : "its jobs end") },
    { head: "By", narrow: false, cell: (one) => one.actor },
  ], reservations, { key: (one) => one.id, empty, kind: "stacked" });
}

function linkTable(links) {
  return table("Links", [
    { head: "Link", cell: (one) => one.name },
    { head: "Direction", cell: (one) => (one.source ? `${one.source} → ${one.target}` : "both, half duplex") },
    { head: "Reserved", number: true, cell: (one) => h("span", { class: "with-bar" }, rate(one.reserved),
      bar(one.reserved, one.capacity, { label: `${rate(one.reserved)} of ${rate(one.capacity)} reserved` })) },
    { head: "Capacity", number: true, cell: (one) => rate(one.capacity) },
    { head: "Best effort", number: true, cell: (one) => h("span", { class: one.best_effort < 0 ? "bad-text" : null }, rate(one.best_effort)) },
  ], links, { key: (one) => `${one.name} ${one.source} ${one.target}`, empty: "The policy declares no topology, so nothing can be reserved.", kind: "stacked" });
}

export function open({ query, paint, live }) {
  paint("Reservations", h("p", { class: "empty" }, "Loading…"));
  live(5, async (signal) => {
    const [{ links }, page] = await Promise.all([get(["links"], {}, signal), get(["reservations"], { cursor: query.cursor, limit: PAGE }, signal)]);
    return { links, page };
  }, ({ links, page }) => {
    const short = links.filter((one) => one.best_effort < 0);
    paint("Reservations",
      short.length > 0 && note("bad", `More is reserved than these links carry: ${short.map((one) => one.name).join(", ")}. The policy made them smaller; nothing more is admitted there.`),
      headed("Links", link("Declared in the policy", "policy"), linkTable(links)),
      headed("Reservations", null, reservationTable(page.reservations), pages(query, page.next_cursor, "reservations")));
  });
}
