// One job: where it is in its life, what the policy decided and why, what it uses; last and folded its flows and ads.

import { get, remove } from "../api.js";
import { h } from "../dom.js";
import { count, moment, rate, several, since } from "../format.js";
import { recent } from "../history.js";
import { closed, facts, folded, groupLink, headed, jobState, link, note, problem, section, state, switchLink, to, userLink } from "../parts.js";
import { jobDrops } from "./drops.js";
import { eventList } from "./events.js";
import { remember } from "../samples.js";
import { reservationTable } from "./reservations.js";
import { flowTable } from "./switch.js";
import { used } from "./usage.js";

// Rules that drop packets of one job, at the head of its page.
const MOST_DROPS = 4;
const KINDS = { block: "Block", slice: "Slice", wan: "WAN", connectivity: "Connectivity", bandwidth: "Bandwidth", transfers: "Transfers", scitags: "SciTags", group: "Group" };

export function open({ one, who, paint, say, live, signal }) {
  let pointed = null;
  let wanted = false;
  let [job, flows, failed, events, names, reserved, advice, drops, down, external] = [null, null, null, null, new Map(), [], null, [], [], []];
  const title = () => {
    if (!job) return `Job ${one}`;
    return { text: `Job ${job.cluster}.${job.proc} of ${job.owner}`, aside: state(jobState(job)) };
  };
  const draw = () => paint(title(), job ? content() : h("p", { class: "empty" }, "Loading…"));
  const content = () => [
    job.reason && note(job.state === "refused" || job.state === "quarantined" ? "bad" : job.state === "pending" ? "poor" : "plain", job.reason),
    down.length > 0 && note("poor", `${downOf(down[0])}: what it sends to the WAN is dropped, and not counted as dropped.`),
    drops.length > 0 && note("poor", jobDrops(drops)),
    job.state === "quarantined" && lift(),
    h("div", { class: "columns" },
      h("div", {},
        section("Decision", decision(job, down))),
      h("div", {},
        section("Switches", confirmations(job, names)))),
    headed("Use of the network", usageAside(job), usageContent()),
    h("div", { class: "columns" },
      h("div", {},
        section("Run", about(job, external))),
      h("div", {},
        reserved.length > 0 && section("Reservations", reservationTable(reserved, { job: false })),
        section("Events", events ? eventList(events, { subject: false }) : h("p", { class: "empty" }, "Loading…")))),
    job.state === "ended" ? null : folded("Flows", flows && several(flows.reduce((sum, [, some]) => sum + some.length, 0), "flow"), (open) => {
      wanted = open;
      draw();
      if (open) more.now();
    }, flowsContent()),
    closed("Job ad", h("pre", { tabindex: "0" }, job.job_ad)),
    closed("Machine ad", h("pre", { tabindex: "0" }, job.machine_ad)),
  ];
  const usageContent = () => {
    if (!job.usage) return h("p", { class: "empty" }, "It is not counted, by the policy, or nothing could be counted yet.");
    // The last rates that were known would be taken for those of now.
    const unknown = job.usage.unread && h("p", { class: "empty" }, "The plot goes on once its counters are read again.");
    const drawn = job.usage.final ? null : unknown || recent({
      subject: `job ${one}`, label: `Traffic of job ${job.cluster}.${job.proc}`,
      pointed, point: (at) => {
        pointed = at;
        draw();
      },
    });
    return [drawn, used(job.usage), advice && advised(advice)];
  };
  const lift = () => h("p", { class: "actions" },
    h("button", { type: "button", disabled: !who.scopes.includes("operate"), on: { click: async () => {
      try {
        await remove(["jobs", one, "quarantine"], signal);
        say("The quarantine has ended.");
      } catch (error) {
        if (error.status === undefined) throw error;
        say(error.message);
      }
      shown.now();
    } } }, "End the quarantine"),
    h("span", { class: "reason" }, who.scopes.includes("operate") ? "The pool’s word then counts no more against this run."
      : "This needs a token with the scope operate."));
  const flowsContent = () => {
    if (failed) return problem(failed);
    if (!flows) return wanted && h("p", { class: "empty" }, "Asking the switches…");
    return flows.map(([datapath, some]) => h("div", { key: datapath, class: "one-table" },
      h("h3", {}, "On ", switchLink(datapath, names.get(datapath))),
      flowTable(`Flows on ${names.get(datapath) || datapath}`, some, { tables: true, jobs: false })));
  };

  draw();
  // What was before these pages saw the job is asked for once, and comes before what they see.
  let past = true;
  const shown = live(3, async (stop) => {
    const [found, before, dropped] = await Promise.all([get(["jobs", one], {}, stop), past ? get(["jobs", one, "rates"], {}, stop) : null,
      get(["drops"], { job: one, limit: MOST_DROPS }, stop)]);
    return { found, before, dropped };
  }, ({ found, before, dropped }) => {
    job = found;
    [drops, down] = [dropped.drops, dropped.down || []];
    past = false;
    for (const each of before?.rates || []) remember(`job ${one}`, Date.parse(each.at), each.rate);
    if (job.usage?.at && !job.usage.unread) remember(`job ${one}`, Date.parse(job.usage.at), job.usage.rate);
    draw();
  });
  const more = live(10, async (stop) => {
    const held = await get(["jobs", one], {}, stop);
    const here = [...new Set([held.datapath, ...held.confirmed, ...held.waiting.map((each) => each.datapath)].filter(Boolean))];
    const [{ entries }, { reservations }, found, given] = await Promise.all([
      get(["audit"], { subject: one, limit: 20 }, stop), get(["reservations"], { job: one }, stop), get(["jobs", one, "advice"], {}, stop),
      held.external_addresses.length > 0 ? get(["external-addresses"], { job: one }, stop) : { addresses: [] }]);
    const known = await Promise.all(here.map((datapath) => get(["switches", datapath], {}, stop).catch(orNothing)));
    const asked = held.state === "ended" || !wanted ? null : await Promise.all(here.map(async (datapath) => {
      try {
        return [datapath, (await get(["switches", datapath, "flows"], { job: one, limit: 1000 }, stop)).flows];
      } catch (error) {
        return orNothing(error) || [datapath, null, error];
      }
    }));
    return { entries, reservations, found, given, known: known.filter(Boolean), asked };
  }, ({ entries, reservations, found, given, known, asked }) => {
    [events, reserved, advice, external] = [entries, reservations, found, given.addresses];
    names = new Map(known.map((each) => [each.datapath, each.name]));
    if (asked) {
      failed = asked.find(([, some]) => !some)?.[2] || null;
      flows = asked.filter(([, some]) => some?.length);
    }
    draw();
  });
  signal.addEventListener("abort", () => (job = null));
}

function advised({ sentence, so_far: soFar, highest, seconds, pairs }) {
  return facts([soFar ? "Advice so far" : "Advice", sentence], ["Reserved pairs", pairs && pairs.sentence],
    ["Highest rates", seconds > 0 && `${count(highest.outward)} Mb/s sent, ${count(highest.inward)} Mb/s received`]);
}

function usageAside({ usage }) {
  if (!usage?.at) return null;
  return usage.final ? "Whole" : ["Counters read ", moment(usage.at), usage.unread && ", the rate now is not known"];
}

// A switch that is not known (any more) or does not answer spoils nothing else.
function orNothing(error) {
  if (error.status === 404 || error.status === 502) return null;
  throw error;
}

function about(job, external) {
  return facts(["Id", h("code", {}, job.id)], ["GlobalJobId", h("code", {}, job.global_job_id)], ["User", userLink(job.owner)],
    ["Group", job.decision.group ? [groupLink(job.decision.group), job.group && job.group !== job.decision.group ? ` (AcctGroup ${job.group})` : ""] : job.group],
    ["Slot", job.slot], ["Host", h("a", { href: to("jobs", { host: job.host }) }, job.host)],
    ["Address", job.addresses.map((each) => h("div", { key: each.address }, h("code", {}, each.address),
      each.block && h("span", { class: "reason" }, `from the block ${each.block}`)))],
    ["External address", job.external_addresses.length > 0 && [h("code", {}, job.external_addresses.join(", ")),
      h("span", { class: "reason" }, job.external_open.length > 0 ? `open: ${job.external_open.join(", ")}` : "closed"),
      external.filter((each) => each.state === "pending" && each.reason).map((each) => h("span", { class: "reason", key: each.id }, `${each.address}: ${each.state}, ${each.reason}`)),
      job.external_name && h("code", {}, job.external_name)]],
    ["Network", `${job.network_type}, address by ${job.address_type}`], ["MAC", job.mac && h("code", {}, job.mac)],
    ["Port", job.port && h("code", {}, job.port)], ["VLAN", job.vlan], ["RequestBandwidth", job.bandwidth && `${count(job.bandwidth)} Mb/s`],
    ["Started", job.started > 0 && moment(new Date(job.started * 1000).toISOString())], ["Registered", moment(job.created)],
    job.ended ? ["Ended", moment(job.ended)] : ["Lease until", moment(job.lease_until)],
    ["Running for", job.ended || job.state === "refused" ? null : since(job.created)]);
}

// What its WAN rule does to its packets, which the reason has as "drop, except NETWORKS", "port NAME" or "allow".
function wanOf({ network_type: network, decision: { inbound, outbound, because } }, down) {
  const does = because.find((each) => each.kind === "wan")?.does || "";
  if (does.startsWith("drop")) return `Its packets to and from the WAN are dropped${does.slice("drop".length)}.`;
  // A job that neither calls nor is called has none that could pass, and one behind NAT is not steered, which its state's reason says.
  if (!inbound && !outbound) return "";
  if (does.startsWith("port ")) return network !== "nat" && ["Its packets to the WAN leave by the port ", h("code", {}, does.slice("port ".length)), down.length > 0 && ", which is down", "."];
  return does === "allow" && "A rule allows its packets to and from the WAN.";
}

function connections({ network_type: network, decision: { slice, inbound, outbound } }) {
  // Whatever the rules: the addresses behind a worker's NAT are its own.
  const callers = network !== "nat" ? "" : slice ? " by jobs of its slice behind the same worker’s NAT, and by nobody else" : " by jobs behind the same worker’s NAT, and by nobody else";
  if (inbound && outbound) return callers ? `It may call, and be called${callers}.` : "It may call and be called.";
  return inbound ? `It may be called${callers}, but not call.` : outbound ? "It may call, but not be called." : "It may neither call nor be called.";
}

// What its bandwidth rule means for this job: of what it requests the policy's maximum counts, and its default where it requests nothing.
function bandwidthOf(job) {
  const { mode, default: unasked, maximum, ceiling } = job.decision.bandwidth;
  const wanted = job.bandwidth || unasked;
  if (!wanted) return "It requests no bandwidth, and shares what is promised to no job.";
  const bound = maximum === null ? wanted : Math.min(wanted, maximum);
  const counted = rate(bound);
  const later = job.state === "registering" || job.state === "pending" ? " once it is enforced" : "";
  if (mode === "cap") return `It gets ${counted} at most${later}.`;
  if (ceiling !== null && bound > ceiling) return `It has ${rate(ceiling)} guaranteed${later}, its ceiling, of ${counted} that it requests.`;
  return `It has ${counted} guaranteed${later}, and may use ${ceiling === null ? "what is free" : `up to ${rate(ceiling)}`}.`;
}

// The WAN port by which its packets would leave, which is down with nothing in its place.
function downOf({ port, switches }) {
  return `${port ? `WAN port ${port} of ${switches.join(", ")}` : "Its WAN port"} is down, and nothing takes its place`;
}

// Its own switch or worker has confirmed that nothing of it passes.
function isCutOff({ state, datapath, waiting }) {
  return state !== "quarantined" || !waiting.some((each) => !each.datapath || each.datapath === datapath);
}

function decision(job, down) {
  const { blocked, quarantine, slice, bandwidth, transfers, scitag, because } = job.decision;
  // A job that is over was decided by the policy of then.
  const then = (job.state === "ended" || job.state === "refused") && job.policy_version ? String(job.policy_version) : null;
  const line = (number) => h("a", { href: then ? to("policy", then) : to("policy", { line: number }) }, `line ${number}`);
  const words = job.network_type === "none" ? ["It has no network: nothing passes, whatever the rules."]
    : blocked ? ["It is blocked: nothing passes."] : quarantine ? [isCutOff(job) ? "It is quarantined: nothing passes." : "It is quarantined, which is not in force yet: what passed before passes on."] : [
    slice ? ["It may exchange packets with jobs of the slice ", h("code", {}, slice.value), "."] : "It is in no slice.",
    wanOf(job, down),
    connections(job),
    bandwidth && bandwidthOf(job),
    job.decision.group && ["It is accounted to the group ", groupLink(job.decision.group), "."],
  ];
  // These are about jobs without a network, and blocked ones, too: HTCondor moves their files all the same.
  words.push(
    transfers && `What HTCondor moves for it: ${transfers.words}${!job.transfers || job.transfers.enforced ? "" : ` (pending: ${job.transfers.reason})`}.`,
    scitag && `Its mark for science networks (SciTag): experiment ${scitag.experiment}, activity ${scitag.activity}.`);
  return [
    then && h("p", { class: "reason" }, "By ", link(`version ${then} of the policy`, "policy", then), `, which was in force when it ${job.state === "ended" ? "ended" : "came"}:`),
    h("p", {}, words.filter(Boolean).map((each, at) => [at > 0 && " ", each])),
    because.length ? h("ol", { class: "because" }, because.map((each) => h("li", {},
      h("strong", {}, `${KINDS[each.kind] || each.kind} rule ${each.position}`), each.line ? [" (", line(each.line), ")"] : "",
      each.when && each.when !== "true" ? [": ", h("code", {}, each.when)] : "",
      each.does ? ` (${each.does})` : "",
      Object.entries(each.values).length > 0 && h("span", { class: "met" }, Object.entries(each.values).map(([name, value]) =>
        h("code", { key: name }, `${name} = ${value}`))))))
      : h("p", { class: "empty" }, "No rule of the policy applies to it."),
  ];
}

function confirmations(job, names) {
  const name = (datapath) => names.get(datapath) || datapath;
  // What is at no switch of a job that has a port on one is a switch that nobody knows, or a gateway: the reason names it.
  const ruled = ["bridge", "nat"].includes(job.network_type);
  const byWorker = ruled && job.state !== "ended" && job.state !== "refused" && job.waiting.every((each) => each.datapath);
  if (!job.confirmed.length && !job.waiting.length && !byWorker) return h("p", { class: "empty" }, job.state === "ended" ? "It has ended." : "No switch is concerned.");
  return h("ul", { class: "plain" },
    byWorker && h("li", { key: "worker" }, `Worker ${job.host} has confirmed`),
    job.confirmed.map((datapath) => h("li", { key: datapath }, switchLink(datapath, name(datapath)), " has confirmed")),
    job.waiting.map((each) => h("li", { key: each.datapath }, each.datapath ? [switchLink(each.datapath, name(each.datapath)), ": "] : ruled && `Worker ${job.host}: `, h("span", { class: "poor-text" }, each.reason))));
}
