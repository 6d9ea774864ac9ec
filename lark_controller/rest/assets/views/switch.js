// One switch: its state, problems, ports, and its tables with where each flow comes from.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, moment } from "../format.js";
import { closed, facts, headed, jobLink, more, problem, rules, state, switchState, table } from "../parts.js";

const STEP = 100;

// A match or a list of actions that may go on in the next line after each comma.
function broken(text) {
  return text.split(",").map((part, at, all) => (at < all.length - 1 ? [`${part},`, h("wbr")] : part));
}

export function flowTable(label, flows, { tables = false, jobs = true } = {}) {
  return table(label, [
    ...(tables ? [{ head: "Table", kind: "short", cell: (flow) => `${flow.table} ${flow.table_name}` }] : []),
    { head: "Priority", kind: "short", number: true, cell: (flow) => count(flow.priority) },
    { head: "Match", wide: true, cell: (flow) => h("code", {}, broken(flow.match || "any packet")) },
    { head: "Actions", wide: true, cell: (flow) => h("code", {}, broken(flow.actions || "drop")) },
    { head: "Origin", wide: true, cell: (flow) => [flow.origin, jobs && flow.job && [" ", jobLink(flow.job)]] },
    { head: "State", kind: "short", cell: (flow) => state(flow.state) },
    { head: "Packets", kind: "short", number: true, cell: (flow) => count(flow.packets) },
    { head: "Bytes", kind: "short", number: true, cell: (flow) => bytes(flow.bytes) },
  ], flows, { key: (flow) => `${flow.table} ${flow.priority} ${flow.match}`, empty: "No flow.", kind: "flows" });
}

// Flows by table, in the order in which a packet meets them.
export function byTable(flows) {
  const tables = new Map();
  for (const flow of flows) {
    const name = `${flow.table} ${flow.table_name}`;
    tables.set(name, [...(tables.get(name) || []), flow]);
  }
  return [...tables];
}

export function open({ one, paint, live }) {
  let [detail, flows, failed, text] = [null, null, null, ""];
  const shown = new Map();
  const title = () => (detail ? `Switch ${detail.name || detail.datapath}` : `Switch ${one}`);

  const draw = () => paint(title(), detail ? content() : h("p", { class: "empty" }, "Loading…"));
  const content = () => [
    facts(["State", [state(switchState(detail)), detail.in_sync ? "" : h("span", { class: "reason" }, detail.reason)]],
      ["Datapath id", h("code", {}, detail.datapath)], ["Role", detail.role], ["Host", detail.host], ["Connects from", detail.address],
      ["Connected", moment(detail.since)], ["Rules used", rules(detail)], ["Installed", count(detail.installed)], ["Jobs", count(detail.jobs)],
      ["Changed by others", detail.drift ? `${count(detail.drift)} flows` : "never"], ["Packets to controller", count(detail.packet_ins)],
      ["NORMAL action", detail.normal ? "yes" : "no"], ["Meters", count(detail.max_meter)]),
    detail.problems.length > 0 && headed("Problems", null, table("Problems", [
      { head: "When", cell: (each) => moment(each.at) },
      { head: "Problem", wide: true, cell: (each) => each.problem },
      { head: "Flow", wide: true, cell: (each) => each.flow && h("code", {}, each.flow) },
      { head: "Job", cell: (each) => each.job && jobLink(each.job) },
    ], detail.problems)),
    headed("Flows", flows && `${count(flows.length)} in ${count(byTable(flows).length)} tables`, flowsContent()),
    closed(`Ports (${count(detail.ports.length)})`,
      table("Ports", [
        { head: "Port", number: true, cell: (port) => count(port.number) },
        { head: "Interface", cell: (port) => h("code", {}, port.name) },
        { head: "Role", cell: (port) => port.role },
        { head: "Job", cell: (port) => port.job && jobLink(port.job) },
      ], detail.ports, { key: (port) => port.number, empty: "It has not connected." })),
  ];

  const flowsContent = () => {
    if (failed) return problem(failed);
    if (!flows) return h("p", { class: "empty" }, "Asking the switch…");
    const wanted = text.toLowerCase();
    const chosen = flows.filter((flow) =>
      `${flow.match} ${flow.actions} ${flow.origin} ${flow.state} ${flow.job || ""} ${flow.cookie}`.toLowerCase().includes(wanted));
    return [
      h("form", { class: "filters", key: "filters", on: { submit: (event) => event.preventDefault() } },
        h("label", {}, h("span", {}, "Flows that contain"), h("input", { name: "text", value: "", spellcheck: "false", autocomplete: "off",
          on: { input: (event) => {
            text = event.currentTarget.value.trim();
            draw();
          } } }))),
      byTable(chosen).map(([name, some]) => {
        const limit = shown.get(name) || STEP;
        return h("div", { key: name, class: "one-table" }, h("h3", {}, `Table ${name} (${count(some.length)})`),
          flowTable(`Flows of table ${name}`, some.slice(0, limit)),
          more(limit, some.length, "flow", () => {
            shown.set(name, limit + STEP);
            draw();
          }));
      }),
      chosen.length === 0 && h("p", { class: "empty" }, "No flow is like that."),
    ];
  };

  draw();
  live(3, (signal) => get(["switches", one], {}, signal), (found) => {
    detail = found;
    draw();
  });
  live(10, async (signal) => {
    try {
      return { found: (await get(["switches", one, "flows"], {}, signal)).flows };
    } catch (error) {
      if (error.status !== 502) throw error;
      return { error };
    }
  }, ({ found, error }) => {
    [flows, failed] = [found || null, error || null];
    draw();
  });
}
