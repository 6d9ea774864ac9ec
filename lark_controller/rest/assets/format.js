// Values in words: rates in Mb/s, sizes in decimal units, times in the reader's zone.

import { h } from "./dom.js";

const COUNT = new Intl.NumberFormat("en-US");
const NOTHING = "–";

export function count(number) {
  return number === null || number === undefined ? NOTHING : COUNT.format(number);
}

// "1 job", "2 jobs"
export function several(number, word, plural = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : plural}`;
}

function scaled(value, step, units) {
  let size = Math.abs(value);
  let unit = 0;
  while (size >= step * 0.9995 && unit < units.length - 1) {
    size /= step;
    unit += 1;
  }
  const digits = size === 0 || size >= 99.95 || (unit === 0 && Number.isInteger(size)) ? 0 : size >= 9.995 ? 1 : 2;
  return `${value < 0 ? "−" : ""}${size.toFixed(digits)} ${units[unit]}`;
}

export function bytes(number) {
  return number === null || number === undefined ? NOTHING : scaled(number, 1000, ["B", "kB", "MB", "GB", "TB", "PB"]);
}

// A rate that is given in Mb/s, as everywhere in Lark.
export function rate(mbit) {
  return mbit === null || mbit === undefined ? NOTHING : scaled(mbit * 1e6, 1000, ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"]);
}

function two(number) {
  return String(number).padStart(2, "0");
}

export function clock(date) {
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function day(date) {
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

// A point in time: the clock alone for today, with the date otherwise; the title has it in UTC.
export function moment(iso, now = new Date()) {
  if (!iso) return NOTHING;
  const date = new Date(iso);
  const text = day(date) === day(now) ? clock(date) : `${day(date)} ${clock(date)}`;
  return h("time", { datetime: iso, title: iso.replace("T", " ").replace(/\.\d+Z$|Z$/, " UTC") }, text);
}

// How long something lasts: "42 s", "3 min", "5 h 20 min", "12 d 3 h".
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 100) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

export function since(iso, now = Date.now()) {
  return iso ? duration((now - Date.parse(iso)) / 1000) : NOTHING;
}
