// Rates over time: the history of a group, user or host in buckets, and what was seen since.

import { get } from "./api.js";
import { h } from "./dom.js";
import { plot } from "./plot.js";
import { samplesOf } from "./samples.js";

// Buckets from the widest: the widest one that is not over is shown by narrower ones, down to the minute.
const STEPS = { day: 86400, hour: 3600, minute: 60 };
export const RANGES = [
  { name: "15 minutes", seconds: 900, buckets: ["minute"], again: 15 },
  { name: "Hour", seconds: 3600, buckets: ["minute"], again: 15 },
  { name: "6 hours", seconds: 21600, buckets: ["minute"], again: 60 },
  { name: "Day", seconds: 86400, buckets: ["hour", "minute"], again: 60 },
  { name: "Week", seconds: 604800, buckets: ["hour", "minute"], again: 60 },
  { name: "Month", seconds: 2678400, buckets: ["day", "hour", "minute"], again: 60 },
];
export const NONE = { inward: 0, outward: 0, wan_inward: 0, wan_outward: 0, transfer_inward: 0, transfer_outward: 0 };

// The rates of these rows added up.
export function added(rows) {
  const sum = { ...NONE };
  for (const { rate } of rows) for (const name of Object.keys(sum)) sum[name] += rate[name];
  return sum;
}

// Rows of buckets as points of a line {at, …the members of NONE} in Mb/s, two for each bucket: where it begins (with
// `until`, the end) and where it ends. `parts` are {rows, step}, the widest first; each goes to the end of its last whole bucket, and
// the next goes on from there. `counted` is until when everything is in the rows: a bucket that ends later would seem low. Those
// without a row were idle; what lies before the first row is not known, and may be older than what is kept. A bucket in which the
// installation began (`since`) has its value from then on.
export function pointsOf(parts, from, counted, since = 0) {
  const points = [];
  let begin = from;
  for (const { rows, step } of parts) {
    const width = step * 1000;
    const buckets = sums(rows);
    const first = points.length ? begin : Math.min(...buckets.keys());
    const end = Math.floor(counted / width) * width;
    for (let start = Math.ceil(begin / width) * width; start < end; start += width) {
      if (!(start >= first)) continue;
      const value = { ...NONE };
      const at = start < since && since < start + width ? since : start;
      const seconds = (start + width - at) / 1000;
      for (const [name, bytes] of Object.entries(buckets.get(start) || NONE)) value[name] = (bytes * 8) / seconds / 1e6;
      points.push({ at, until: start + width, ...value }, { at: start + width, ...value });
    }
    begin = Math.max(begin, end);
  }
  return points;
}

// A longer stretch than this without a value is not drawn through: nothing is known of it.
const UNKNOWN_MS = 30000;

// The points of buckets, and the samples from where the last minute that is whole ends. A page that was just opened has none of the
// running minute, of which no line may make a slope.
export function joined(whole, samples, from) {
  const end = whole.at(-1)?.at ?? from;
  const since = samples.filter((each) => each.at > end);
  const gap = whole.length && since.length && since[0].at - end > UNKNOWN_MS ? [{ at: end + 1 }] : [];
  return [...whole, ...gap, ...since];
}

function sums(rows) {
  const buckets = new Map();
  for (const row of rows) {
    const start = Date.parse(row.start);
    const sum = buckets.get(start) || { ...NONE };
    for (const [name, way] of [["inward", "in"], ["outward", "out"]]) {
      sum[name] += row[`bytes_${way}`];
      sum[`wan_${name}`] += row[`wan_bytes_${way}`];
      sum[`transfer_${name}`] += row[`transfer_bytes_${way}`];
    }
    buckets.set(start, sum);
  }
  return buckets;
}

// What every plot shows: all traffic as whole lines, the WAN's part of it as broken ones. Transfers, which are no part of it, are
// dotted lines where there were any.
const SERIES = [["Sent", "out", "outward"], ["Received", "in", "inward"], ["To the WAN", "out wan", "wan_outward"],
  ["From the WAN", "in wan", "wan_inward"]];
const MOVED = [["Moved out", "out moved", "transfer_outward"], ["Moved in", "in moved", "transfer_inward"]];

function seriesOf(points) {
  const some = points.some((each) => each.transfer_outward > 0 || each.transfer_inward > 0);
  return [...SERIES, ...(some ? MOVED : [])].map(([name, kind, member]) => ({ name, kind, points: points.map((each) => [each.at, each[member], each.until]) }));
}

export function plotWidth() {
  const style = getComputedStyle(document.getElementById("main"));
  const inner = document.getElementById("main").clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return Math.max(240, Math.floor(inner) - 34);
}

// A plot with a choice of ranges, as part of a view: `view()` is what to show. `by` and `choose` ask the API, `subject` names the
// samples, `limits` answers the lines to draw.
export function history({ live, draw, signal, by, choose, subject, label, limits = () => [] }) {
  let range = RANGES[0];
  let past = null;
  let pointed = null;
  let polling = null;

  function ask() {
    polling?.stop();
    const asked = range;
    polling = live(asked.again, async (stop) => {
      const now = Math.floor(Date.now() / 1000);
      const pages = await Promise.all(asked.buckets.map((bucket, at) => {
        // A narrower bucket answers for the wider one that is not over, and for the one before, which may not be whole yet.
        const wider = at && STEPS[asked.buckets[at - 1]];
        const from = at ? now - (now % wider) - wider : now - asked.seconds;
        // Of all subgroups together: one row a bucket is never more than the limit.
        return get(["usage"], { by, ...choose(), bucket, from, together: true, limit: 2000 }, stop);
      }));
      return { parts: pages.map(({ rows }, at) => ({ rows, step: STEPS[asked.buckets[at]] })), counted: Date.parse(pages[0].counted), since: Date.parse(pages[0].known_since) };
    }, (found) => {
      past = found;
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
      if (!past) return h("p", { class: "empty" }, "Loading…");
      const until = Date.now();
      const from = until - range.seconds * 1000;
      const points = joined(pointsOf(past.parts, from, past.counted, past.since), samplesOf(subject), from);
      return [
        h("div", { class: "ranges", role: "group", "aria-label": "Range" }, RANGES.map((each) => h("button", { type: "button", key: each.name,
          class: "quiet", "aria-pressed": String(each === range), on: { click: () => {
            range = each;
            past = null;
            pointed = null;
            ask();
            draw();
          } } }, each.name))),
        points.length ? plot({
          label: `${label}, last ${range.name.toLowerCase()}`, from, until, width: plotWidth(), at: pointed, lines: limits(),
          series: seriesOf(points),
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
    series: seriesOf(samples),
  });
}
