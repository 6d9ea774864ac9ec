// One switch: its state, problems and jobs; last and folded its ports, and its tables with where each flow comes from.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, moment, several } from "../format.js";
import { closed, facts, folded, headed, jobLink, link, problem, rules, state, switchState, table } from "../parts.js";
import { jobTable } from "./jobs.js";

// Flows that are asked for at first, how many more each time, and at most on one page.
const STEP = 100;
const MOST = 1000;
const JOBS = 25;
// Milliseconds without a key before what was typed is looked for.
const TYPED = 300;

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

export function open({ one, paint, live, signal }) {
  // The table that the page is of: another may be chosen before its flows come.
  let [detail, jobs, page, failed, shown, typing, wanted] = [null, null, null, null, "", 0, false];
  const chosen = { table: "", text: "", limit: STEP, cursor: null };
  const named = new Map();
  const title = () => (detail ? `Switch ${detail.name || detail.datapath}` : `Switch ${one}`);

  const draw = () => paint(title(), detail ? content() : h("p", { class: "empty" }, "Loading…"));
  const content = () => [
    facts(["State", [state(switchState(detail)), detail.state === "in sync" ? "" : h("span", { class: "reason" }, detail.reason)]],
      ["Datapath id", h("code", {}, detail.datapath)], ["Role", detail.role], ["Host", detail.host], ["Connects from", detail.through ? `${detail.address}, through ${detail.through}` : detail.address],
      ["Connected", moment(detail.since)], ["Rules used", rules(detail)], ["Installed", count(detail.installed)], ["Jobs", count(detail.jobs)],
      ["Changed by others", detail.drift ? `${count(detail.drift)} flows` : "never"], ["Packets to controller", count(detail.packet_ins)],
      ["NORMAL action", detail.normal ? "yes" : "no"], ["Meters", count(detail.max_meter)]),
    detail.problems.length > 0 && headed("Problems", null, table("Problems", [
      { head: "When", cell: (each) => moment(each.at) },
      { head: "Problem", wide: true, cell: (each) => each.problem },
      { head: "Flow", wide: true, cell: (each) => each.flow && h("code", {}, each.flow) },
      { head: "Job", cell: (each) => each.job && jobLink(each.job, each.job_name || each.job) },
    ], detail.problems)),
    jobs && headed("Jobs", link(`All ${count(detail.jobs)}`, "jobs", { host: detail.host }), jobTable(jobs, { empty: "None runs there." })),
    closed(`Ports (${count(detail.ports.length)})`,
      table("Ports", [
        { head: "Port", number: true, cell: (port) => count(port.number) },
        { head: "Interface", cell: (port) => h("code", {}, port.name) },
        { head: "Role", cell: (port) => port.role },
        { head: "Job", cell: (port) => port.job && jobLink(port.job, port.job_name || port.job) },
      ], detail.ports, { key: (port) => port.number, empty: "It has not connected." })),
    folded("Flows", page ? `${count(held(page.tables))} in ${several(page.tables.length, "table")}` : `${count(detail.installed)} installed`, (open) => {
      wanted = open;
      draw();
      if (open) asked.now();
    }, flowsContent()),
  ];

  // The table that was chosen stays on the list where it has no such flow.
  const listed = () => {
    const number = Number(chosen.table);
    const there = chosen.table === "" || page.tables.some((each) => each.number === number);
    return there ? page.tables : [...page.tables, { number, name: named.get(number), flows: 0 }];
  };
  const choose = (wanted) => {
    Object.assign(chosen, { limit: STEP, cursor: null, ...wanted });
    asked.now();
  };
  const flowsContent = () => {
    if (failed) return problem(failed);
    if (!page) return wanted && h("p", { class: "empty" }, "Asking the switch…");
    const here = page.tables.filter((each) => shown === "" || each.number === Number(shown));
    return [
      h("form", { class: "filters", key: "filters", on: { submit: (event) => event.preventDefault() } },
        h("label", {}, h("span", {}, "Table"), h("select", { name: "table", value: chosen.table,
          on: { change: (event) => choose({ table: event.currentTarget.value }) } },
        h("option", { key: "all", value: "" }, "All"),
        listed().map((each) => h("option", { key: each.number, value: String(each.number) }, `${each.number} ${each.name} (${count(each.flows)})`)))),
        h("label", {}, h("span", {}, "Flows that contain"), h("input", { name: "text", value: "", spellcheck: "false", autocomplete: "off",
          maxlength: "1024", on: { input: (event) => {
            const text = event.currentTarget.value.trim();
            clearTimeout(typing);
            typing = setTimeout(() => choose({ text }), TYPED);
          } } }))),
      byTable(page.flows).map(([name, some]) => h("div", { key: name, class: "one-table" },
        h("h3", {}, `Table ${name} (${count(here.find((each) => each.number === some[0].table).flows)})`),
        flowTable(`Flows of table ${name}`, some))),
      page.flows.length === 0 && h("p", { class: "empty" }, "No flow is like that."),
      (page.next_cursor || chosen.cursor) && h("p", { class: "more" },
        chosen.cursor ? "More of " : `The first ${count(page.flows.length)} of `, `${several(held(here), "flow")}. `,
        chosen.cursor && h("button", { type: "button", on: { click: () => choose({}) } }, "First flows"),
        page.next_cursor && (chosen.limit < MOST
          ? h("button", { type: "button", on: { click: () => choose({ cursor: chosen.cursor, limit: chosen.limit + STEP }) } }, "Show more")
          : h("button", { type: "button", on: { click: () => choose({ cursor: page.next_cursor, limit: MOST }) } }, "Next flows"))),
    ];
  };

  draw();
  live(3, async (stop) => {
    const found = await get(["switches", one], {}, stop);
    const here = found.host ? await get(["jobs"], { host: found.host, limit: JOBS, order: "newest" }, stop) : null;
    return { found, here };
  }, ({ found, here }) => {
    [detail, jobs] = [found, here && here.jobs];
    draw();
  });
  const asked = live(10, async (stop) => {
    if (!wanted) return {};
    try {
      const { table } = chosen;
      return { found: await get(["switches", one, "flows"], chosen, stop), table };
    } catch (error) {
      if (error.status !== 502) throw error;
      return { error };
    }
  }, ({ found, error, table }) => {
    if (!found && !error) return;
    [page, failed, shown] = [found || null, error || null, table];
    for (const each of page?.tables || []) named.set(each.number, each.name);
    draw();
  });
  signal.addEventListener("abort", () => clearTimeout(typing));
}

function held(tables) {
  return tables.reduce((sum, each) => sum + each.flows, 0);
}
