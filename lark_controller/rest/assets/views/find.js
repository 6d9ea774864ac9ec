// An id in a text: it leads on to the job or the switch that has it.

import { h } from "../dom.js";
import { note } from "../parts.js";
import { find } from "../search.js";

export function open({ one, paint, lead }) {
  paint(one, h("p", { class: "empty" }, "Loading…"));
  find(one).then(lead, (error) => paint(one, note("plain", error.message)));
}
