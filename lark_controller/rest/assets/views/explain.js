// Why a packet from one address or job reaches another, or does not, step by step; asked again while it is shown.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, several } from "../format.js";
import { linked, problem, state, to } from "../parts.js";

// Seconds between two questions, each of which has switches list flows.
const AGAIN = 10;

export function open({ query, paint, say, live }) {
  let shown = [];
  let told = "";
  const draw = () => paint("Explain", form(query), shown);
  const tell = (text) => {
    if (text !== told) say((told = text));
  };
  if (query.src && query.dst) shown = [h("p", { class: "empty" }, "Asking the switches…")];
  draw();
  if (!query.src || !query.dst) return;
  live(AGAIN, async (stop) => {
    try {
      return { found: await get(["explain"], { src: query.src, dst: query.dst }, stop) };
    } catch (error) {
      if (!refuses(error)) throw error;
      return { error };
    }
  }, ({ found, error }) => {
    shown = error ? [problem(error)] : answer(found);
    if (found) tell(`${found.verdict}: ${found.reason}`);
    draw();
  }, (error) => {
    shown = [problem(error)];
    draw();
  });
}

// An answer about what was asked for, such as that nothing has this name: it is as current as any other.
function refuses({ status }) {
  return status >= 400 && status < 500 && status !== 401 && status !== 429;
}

function form(query) {
  const field = (name, text) => h("label", {}, h("span", {}, text), h("input", { name, value: query[name] || "", required: true,
    maxlength: "1024", spellcheck: "false", autocomplete: "off", placeholder: "103.0 or an address" }));
  return h("form", { class: "filters", key: "filters", on: { submit: (event) => {
    event.preventDefault();
    const asked = Object.fromEntries([...new FormData(event.currentTarget)].map(([name, value]) => [name, value.trim()]));
    const where = to("explain", asked);
    if (location.hash === where) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = where;
  } } },
  field("src", "From"), field("dst", "To"), h("button", { type: "submit", class: "primary" }, "Explain"));
}

function answer({ src, dst, verdict, reason, steps }) {
  return [
    h("div", { class: "verdict" }, state(verdict), h("p", {}, linked(reason)), h("p", { class: "reason" }, `A first packet from ${src} to ${dst}.`)),
    h("ol", { class: "steps" }, steps.map((step, at) => h("li", { key: at },
      h("div", { class: "where" }, step.where),
      h("div", { class: "what" }, linked(step.text),
        step.flow && h("code", { class: "flow" }, step.flow),
        step.packets !== null && h("span", { class: "reason" }, `${several(step.packets, "packet")}, ${bytes(step.bytes)} so far`))))),
    steps.length === 0 && h("p", { class: "empty" }, "Nothing is known of either end."),
  ];
}
