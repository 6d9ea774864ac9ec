// A plot over time as SVG: lines, a scale that ends on a round number, lines for guarantee and ceiling.

import { h } from "./dom.js";
import { clock, day, rate } from "./format.js";

const HEIGHT = 200;
const LEFT = 68;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;
const STEPS_MS = [1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 2592e5, 6048e5];

// The next of 1, 2, 2.5, 5 times a power of ten that is at least the number.
export function roundUp(number) {
  if (!(number > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= number * 0.999);
}

// Where marks stand between two times: at most so many, at even minutes, hours or days of the reader's zone.
export function marks(from, until, most) {
  const step = STEPS_MS.find((each) => (until - from) / each <= most) || STEPS_MS.at(-1);
  // The zone is asked for at each mark: clocks may be changed in between.
  const zone = (time) => new Date(time).getTimezoneOffset() * 60000;
  const found = [];
  for (let local = Math.ceil((from - zone(from)) / step) * step; ; local += step) {
    const at = local + zone(local + zone(from));
    if (at > until) return { step, at: found };
    if (at >= from) found.push(at);
  }
}

// `series` are {name, kind, points: [[ms, Mb/s or null, until], …]}, all of the same times; `until` (ms) is set where a value holds from
// there until then. `lines` are {name, kind, value}. `width` is in pixels, `at` a time that is pointed to, `point(time or null)` hears
// where the pointer is.
export function plot({ label, series, lines = [], from, until, width, at = null, point, height = HEIGHT }) {
  const most = series.reduce((top, one) => one.points.reduce((high, [, value]) => Math.max(high, value || 0), top), 0);
  // A limit far above what is used would press the lines to the ground; the legend has its value all the same.
  const near = lines.filter((line) => line.value <= 3 * most);
  const top = roundUp(Math.max(most, ...near.map((line) => line.value)));
  const right = Math.max(width - RIGHT, LEFT + 1);
  const x = (time) => LEFT + ((right - LEFT) * (time - from)) / Math.max(1, until - from);
  const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / top);
  const time = marks(from, until, Math.max(3, Math.floor((right - LEFT) / 90)));
  const words = (ms) => (time.step >= 864e5 ? day(new Date(ms)).slice(5) : clock(new Date(ms)).slice(0, time.step < 60000 ? 8 : 5));
  const pointed = at === null ? null : reading(series, at);

  const drawing = h("svg", {
    class: "plot", width, height, role: "img", "aria-label": label,
    on: point ? {
      pointermove: (event) => {
        const here = event.clientX - event.currentTarget.getBoundingClientRect().left;
        point(from + ((here - LEFT) / (right - LEFT)) * (until - from));
      },
      pointerleave: () => point(null),
    } : {},
  },
  [0, 1, 2, 3, 4].map((step) => {
    const value = (top * step) / 4;
    return h("g", { class: "scale" },
      h("line", { x1: LEFT, x2: right, y1: y(value), y2: y(value) }),
      h("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, step ? rate(value) : "0"));
  }),
  time.at.map((ms) => h("g", { class: "scale" },
    h("line", { x1: x(ms), x2: x(ms), y1: height - BOTTOM, y2: height - BOTTOM + 4 }),
    h("text", { x: x(ms), y: height - 6, "text-anchor": "middle" }, words(ms)))),
  near.map((line) => h("line", { class: `limit ${line.kind}`, x1: LEFT, x2: right, y1: y(line.value), y2: y(line.value) })),
  series.map((one) => h("path", { class: `series ${one.kind}`, d: pathOf(one.points, x, y) })),
  pointed && h("line", { class: "pointer", x1: x(pointed.at), x2: x(pointed.at), y1: TOP, y2: height - BOTTOM }));

  const legend = h("p", { class: "legend" },
    [...series, ...lines].map((one) => {
      const value = "value" in one ? one.value : pointed ? pointed.values.get(one.name) : one.points.at(-1)?.[1];
      return h("span", { key: one.name }, h("span", { class: `swatch ${one.kind}` }), `${one.name} `, h("b", {}, rate(value)));
    }),
    pointed && h("span", { class: "when" }, pointed.words));
  return h("div", { class: "plotted" }, legend, drawing);
}

function pathOf(points, x, y) {
  let path = "";
  let pen = false;
  for (const [ms, value] of points) {
    if (value === null || value === undefined) {
      pen = false;
    } else {
      path += `${pen ? "L" : "M"}${x(ms).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = true;
    }
  }
  return path || "M0 0";
}

// What is read where a time is pointed to: of a bucket its own value, wherever in it that is; else the nearest.
export function reading(series, at) {
  const { points } = series[0];
  if (!points.length) return null;
  const inside = points.findIndex(([ms, , until]) => until && ms <= at && at < until);
  const found = inside >= 0 ? inside
    : points.reduce((best, [ms], number) => (Math.abs(ms - at) < Math.abs(points[best][0] - at) ? number : best), 0);
  const [ms, , until] = points[found];
  const values = new Map(series.map((one) => [one.name, one.points[found][1] ?? null]));
  return inside >= 0 ? { at, words: `${stamp(ms)} to ${until - ms < 864e5 ? clock(new Date(until)) : stamp(until)}`, values }
    : { at: ms, words: stamp(ms), values };
}

function stamp(ms) {
  return `${day(new Date(ms))} ${clock(new Date(ms))}`;
}
