// Rates over time: the history of a group, user or host in buckets, and what was seen since.

import { get } from "./api.js";
import { h } from "./dom.js";
import { plot } from "./plot.js";
import { samplesOf } from "./samples.js";

export const RANGES = [
  { name: "15 minutes", seconds: 900, bucket: "minute", step: 60, again: 15 },
  { name: "Hour", seconds: 3600, bucket: "minute", step: 60, again: 15 },
  { name: "6 hours", seconds: 21600, bucket: "minute", step: 60, again: 60 },
  { name: "Day", seconds: 86400, bucket: "hour", step: 3600, again: 120 },
  { name: "Week", seconds: 604800, bucket: "hour", step: 3600, again: 300 },
  { name: "Month", seconds: 2678400, bucket: "day", step: 86400, again: 600 },
];

// Rows of buckets as points of a line {at, inward, outward, wan_inward, wan_outward} in Mb/s, two for each bucket: where it begins
// and where it ends. Buckets without a row were idle; the one that is not over yet is left out, since it would seem low.
export function pointsOf(rows, from, until, step) {
  const buckets = new Map();
  for (const row of rows) {
    const start = Date.parse(row.start);
    const sum = buckets.get(start) || { inward: 0, outward: 0, wan_inward: 0, wan_outward: 0 };
    for (const name of ["inward", "outward"]) {
      const way = name === "inward" ? "in" : "out";
      sum[name] += row[`bytes_${way}`];
      sum[`wan_${name}`] += row[`wan_bytes_${way}`];
    }
    buckets.set(start, sum);
  }
  const width = step * 1000;
  const points = [];
  const first = Math.min(...buckets.keys());
  for (let start = Math.ceil(from / width) * width; start + width <= until; start += width) {
    const sum = buckets.get(start);
    // Before the first row nothing is known; it may be older than what is kept.
    if (!sum && !(start > first)) continue;
    const rate = (bytes) => (sum ? (bytes * 8) / step / 1e6 : 0);
    const value = { inward: rate(sum?.inward), outward: rate(sum?.outward), wan_inward: rate(sum?.wan_inward), wan_outward: rate(sum?.wan_outward) };
    points.push({ at: start, ...value }, { at: start + width, ...value });
  }
  return points;
}

// What every plot shows: all traffic as whole lines, the WAN's part of it as broken ones.
export const SERIES = [["Sent", "out", "outward"], ["Received", "in", "inward"], ["To the WAN", "out wan", "wan_outward"],
  ["From the WAN", "in wan", "wan_inward"]];

export function plotWidth() {
  const style = getComputedStyle(document.getElementById("main"));
  const inner = document.getElementById("main").clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return Math.max(240, Math.floor(inner) - 34);
}

// A plot with a choice of ranges, as part of a view: `view()` is what to show. `by` and `choose` ask the API, `subject` names the
// samples, `limits` answers the lines to draw.
export function history({ live, draw, signal, by, choose, subject, label, limits = () => [] }) {
  let range = RANGES[0];
  let rows = null;
  let pointed = null;
  let polling = null;

  function ask() {
    polling?.stop();
    const asked = range;
    polling = live(asked.again, (stop) => {
      const from = Math.floor(Date.now() / 1000) - asked.seconds;
      return get(["usage"], { by, ...choose(), bucket: asked.bucket, from, limit: 2000 }, stop);
    }, (page) => {
      ({ rows } = page);
      draw();
    });
  }

  const moved = () => draw();
  window.addEventListener("resize", moved);
  signal.addEventListener("abort", () => window.removeEventListener("resize", moved));
  ask();

  return {
    again: ask,
    view() {
      if (!rows) return h("p", { class: "empty" }, "Loading…");
      const until = Date.now();
      const from = until - range.seconds * 1000;
      const past = pointsOf(rows, from, until, range.step);
      const samples = range.seconds <= 21600 ? samplesOf(subject) : [];
      // Samples go on where the last bucket that is whole ends.
      const end = past.at(-1)?.at ?? from;
      const points = [...past, ...samples.filter((each) => each.at > end)];
      return [
        h("div", { class: "ranges", role: "group", "aria-label": "Range" }, RANGES.map((each) => h("button", { type: "button", key: each.name,
          class: "quiet", "aria-pressed": String(each === range), on: { click: () => {
            range = each;
            rows = null;
            pointed = null;
            ask();
            draw();
          } } }, each.name))),
        points.length ? plot({
          label: `${label}, last ${range.name.toLowerCase()}`, from, until, width: plotWidth(), at: pointed, lines: limits(),
          series: SERIES.map(([name, kind, member]) => ({ name, kind, points: points.map((each) => [each.at, each[member]]) })),
          point: (at) => {
            pointed = at;
            draw();
          },
        }) : h("p", { class: "empty" }, "Nothing was sent or received."),
      ];
    },
  };
}

// A plot of what was seen since the page was opened.
export function recent({ subject, label, pointed, point }) {
  const samples = samplesOf(subject);
  if (samples.length < 2) return h("p", { class: "empty" }, "The plot begins when the counters have been read twice.");
  const until = samples.at(-1).at;
  return plot({
    label, until, from: Math.min(samples[0].at, until - 60000), width: plotWidth(), at: pointed, point,
    series: SERIES.map(([name, kind, member]) => ({ name, kind, points: samples.map((each) => [each.at, each[member]]) })),
  });
}
