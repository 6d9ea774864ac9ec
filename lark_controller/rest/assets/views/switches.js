// All switches; those that need somebody come first.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, moment } from "../format.js";
import { framed, more, rules, state, switchLink, switchState, table } from "../parts.js";

const STEP = 100;

export function switchTable(switches) {
  return table("Switches", [
    { head: "Switch", cell: (one) => switchLink(one.datapath, one.name) },
    { head: "Role", cell: (one) => one.role },
    { head: "State", cell: (one) => [state(switchState(one)), one.reason && h("span", { class: "reason" }, one.reason)] },
    { head: "Rules used", number: true, cell: rules },
    { head: "Installed", number: true, narrow: false, cell: (one) => count(one.installed) },
    { head: "Jobs", number: true, cell: (one) => count(one.jobs) },
    { head: "Packets to controller", number: true, narrow: false, cell: (one) => count(one.packet_ins) },
    { head: "Connected", narrow: false, cell: (one) => moment(one.since) },
  ], switches, { key: (one) => one.datapath, empty: "No switch is like that." });
}

// Those that are not in sync come first, and then those with a problem.
const rank = (one) => (switchState(one) !== "in sync" ? 0 : one.reason ? 1 : 2);

export function open({ paint, live }) {
  let text = "";
  let shown = STEP;
  let all = null;
  const draw = () => {
    const wanted = text.toLowerCase();
    const found = (all || []).filter((one) => `${one.name} ${one.datapath} ${one.host} ${one.role} ${switchState(one)}`.toLowerCase().includes(wanted));
    found.sort((one, other) => rank(one) - rank(other));
    paint("Switches",
      h("form", { class: "filters", key: "filters", on: { submit: (event) => event.preventDefault() } },
        h("label", {}, h("span", {}, "Name, host, role or state"),
          h("input", { name: "text", value: "", spellcheck: "false", autocomplete: "off", on: { input: (event) => {
            text = event.currentTarget.value.trim();
            draw();
          } } }))),
      all ? framed(switchTable(found.slice(0, shown)), more(shown, found.length, "switch", () => {
        shown += STEP;
        draw();
      })) : h("p", { class: "empty" }, "Loading…"));
  };
  draw();
  live(5, (signal) => get(["switches"], {}, signal), ({ switches }) => {
    all = switches;
    draw();
  });
}
