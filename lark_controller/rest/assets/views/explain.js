// Why a packet from one address or job reaches another, or does not, step by step.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, several } from "../format.js";
import { linked, problem, state, to } from "../parts.js";

export async function open({ query, paint, say, signal }) {
  let shown = [];
  const draw = () => paint("Explain", form(query), shown);
  draw();
  if (!query.src || !query.dst) return;
  shown = [h("p", { class: "empty" }, "Asking the switches…")];
  draw();
  try {
    const found = await get(["explain"], { src: query.src, dst: query.dst }, signal);
    shown = answer(found);
    say(`${found.verdict}: ${found.reason}`);
  } catch (error) {
    if (error.status === undefined) return;
    shown = [problem(error)];
  }
  draw();
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
