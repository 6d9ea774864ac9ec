// The policy in force; another one is checked, then planned, then put in force, in that order and no other. Below it are the
// versions that there were.

import { get, sendPolicy } from "../api.js";
import { h } from "../dom.js";
import { count, moment, several } from "../format.js";
import { compare, condensed } from "../lines.js";
import { closed, headed, jobLink, jobNames, link, note, problem, rules, switchLink, table, userLink } from "../parts.js";
import { pages } from "./jobs.js";

const VERSIONS = 20;

// The text that somebody has written and not put in force, kept while other pages are looked at; a browser asks before it is left or loaded anew.
let draft = null;
addEventListener("beforeunload", (event) => draft && event.preventDefault());

export function open({ query, who, paint, say, signal, live }) {
  // `text` is what is edited, `given` what the editor began with, `planned` the plan with the text and the policy that it was made for.
  const now = { policy: null, versions: null, text: null, given: null, busy: "", checked: null, planned: null, done: null, error: null };
  const may = who.scopes.includes("operate");
  const draw = () => paint("Policy", now.policy ? content() : h("p", { class: "empty" }, "Loading…"));
  const area = () => document.getElementById("policy-text");

  // A plan holds for the text and the policy that it was made for, and for nothing else.
  const current = () => now.planned && now.planned.text === now.text && now.planned.digest === now.policy.digest;

  async function doing(word, work) {
    Object.assign(now, { busy: word, error: null, done: null });
    draw();
    try {
      await work();
    } catch (error) {
      if (error.status === undefined) throw error;
      if (error.mistakes?.length) now.checked = { valid: false, mistakes: error.mistakes, text: now.text };
      else now.error = error;
      if (error.status === 412) now.planned = null;
      say(error.message);
    }
    now.busy = "";
    draw();
    if (now.error?.status === 412) policy.now();
  }

  const check = () => doing("check", async () => {
    const text = now.text;
    const found = await sendPolicy("POST", ["policy", "check"], text, { signal });
    now.checked = { ...found, text };
    say(found.valid ? "No mistake was found." : `${several(found.mistakes.length, "mistake")} found.`);
  });

  const plan = () => doing("plan", async () => {
    const [text, digest] = [now.text, now.policy.digest];
    now.planned = null;
    const found = await sendPolicy("POST", ["policy", "plan"], text, { signal });
    now.checked = { valid: true, mistakes: [], text };
    now.planned = { ...found, text, digest, at: new Date().toISOString(), lines: compare(now.policy.text, text) };
    say(`The plan is there: ${summary(found)}`);
  });

  const apply = () => doing("apply", async () => {
    const made = await sendPolicy("PUT", ["policy"], now.planned.text, { signal, digest: now.planned.digest });
    if (draft?.text === made.text) draft = null;
    Object.assign(now, { policy: made, text: made.text, given: made.text, planned: null, checked: null });
    now.done = `Version ${made.version} is in force.`;
    say(now.done);
  });

  const edited = (event) => {
    now.text = event.currentTarget.value;
    draft = now.text === now.policy.text ? null : { text: now.text, name: who.name };
    now.done = null;
    draw();
  };

  function goTo(line) {
    const field = area();
    const before = field.value.split("\n").slice(0, line - 1).join("\n");
    const start = line > 1 ? before.length + 1 : 0;
    const end = field.value.indexOf("\n", start);
    field.focus();
    field.setSelectionRange(start, end < 0 ? field.value.length : end);
    field.scrollTop = (line - 4) * parseFloat(getComputedStyle(field).lineHeight);
  }

  const content = () => [
    h("p", { class: "reason" }, `Version ${count(now.policy.version)} by ${now.policy.actor}, in force since `, moment(now.policy.at), "."),
    now.done && note("good", now.done),
    now.error && problem(now.error),
    h("div", { class: "editor", key: "editor" },
      h("label", { for: "policy-text" }, now.text === now.policy.text ? "The policy in force" : "Another policy, not in force"),
      h("div", { class: "text" },
        h("pre", { class: "numbers", "aria-hidden": "true" }, now.text.split("\n").map((_, at) => at + 1).join("\n")),
        h("textarea", { id: "policy-text", value: now.given, rows: Math.min(36, Math.max(12, now.text.split("\n").length + 1)), wrap: "off",
          spellcheck: "false", autocomplete: "off", "aria-describedby": "policy-how",
          on: { input: edited, scroll: (event) => (event.currentTarget.previousSibling.scrollTop = event.currentTarget.scrollTop) } })),
      h("div", { class: "actions" },
        h("button", { type: "button", disabled: Boolean(now.busy), on: { click: check } }, now.busy === "check" ? "Checking…" : "Check"),
        h("button", { type: "button", disabled: Boolean(now.busy) || now.text === now.policy.text, on: { click: plan } }, now.busy === "plan" ? "Planning…" : "Plan"),
        h("button", { type: "button", class: "primary", disabled: !ready(), on: { click: apply } }, now.busy === "apply" ? "Applying…" : "Apply"),
        now.text !== now.policy.text && h("button", { type: "button", class: "quiet", disabled: Boolean(now.busy), on: { click: discard } }, "Discard the changes"),
        own() && h("button", { type: "button", class: "quiet", disabled: Boolean(now.busy), on: { click: takeBack } }, "Take back the text that I wrote"),
        h("span", { id: "policy-how", class: "reason" }, how()))),
    now.checked && now.checked.text === now.text && checkedContent(now.checked),
    current() && planContent(now.planned),
    now.versions && headed("History", held(now.versions), versionTable(now.versions.versions, now.policy),
      pages(query, now.versions.next_cursor, "policy")),
  ];

  const ready = () => may && !now.busy && Boolean(current()) && now.planned.refusals.length === 0;
  const how = () => {
    if (!may) return "Applying needs a token with the scope operate.";
    if (now.text === now.policy.text) return "Edit the text to plan another policy.";
    if (!current()) return "Plan the change to see what it does; then it can be applied.";
    return now.planned.refusals.length ? "The switches cannot take this policy." : "";
  };

  // The text that was written before another one came into the editor.
  const own = () => draft?.name === who.name && draft.text !== now.text && draft.text !== now.policy.text;
  function takeBack() {
    Object.assign(now, { text: draft.text, given: draft.text, checked: null, planned: null, error: null, done: null });
    area().value = now.text;
    draw();
  }

  function discard() {
    draft = own() ? draft : null;
    Object.assign(now, { text: now.policy.text, given: now.policy.text, checked: null, planned: null, error: null, done: null });
    area().value = now.text;
    draw();
    area().focus();
  }

  const checkedContent = ({ valid, mistakes, warnings = [] }) => (valid ? !current() && [note("good", "No mistake was found."), warned(warnings)] : headed("Mistakes", several(mistakes.length, "mistake"),
    h("ol", { class: "mistakes" }, mistakes.map((each, at) => h("li", { key: at },
      h("button", { type: "button", class: "link", on: { click: () => goTo(each.line) } }, `Line ${each.line}`),
      " ", each.key && h("code", {}, each.key), each.key && ": ", each.problem, each.accepted && [h("span", { class: "reason" }, `Accepted: ${each.accepted}`)])))));

  draw();
  const policy = live(5, (stop) => get(["policy"], {}, stop), (found) => {
    const before = now.policy;
    // Another version may have the same text: who put it there, and when, is not the same.
    if (before && before.version === found.version) return;
    if (now.busy) return;
    const untouched = !before || now.text === before.text;
    now.policy = found;
    if (untouched) now.text = now.given = found.text;
    if (!before && !query.back && !query.line && own()) {
      now.text = now.given = draft.text;
      now.done = "This is the text that you wrote before, not in force.";
    }
    if (before) now.done = `Version ${found.version} by ${found.actor} has come into force.${untouched || current() ? "" : " Your text is still here; plan it again."}`;
    draw();
    if (!before && query.line) goTo(Number(query.line) || 1);
    if (!before && query.back) goBack(query.back);
    past.now();
  });
  const past = live(60, (stop) => get(["policy", "versions"], { cursor: query.cursor, limit: VERSIONS }, stop), (found) => {
    now.versions = found;
    draw();
  });

  // The text of an earlier version comes into the editor, to be planned and applied as any other.
  const goBack = (version) => doing("back", async () => {
    const found = await get(["policy", "versions", version], {}, signal);
    Object.assign(now, { text: found.text, given: found.text, checked: null, planned: null });
    now.done = `This is the text of version ${found.version}. Plan it to see what going back would change.`;
    say(now.done);
  });
}

function held({ versions, next_cursor: next }) {
  const [first, last] = [versions[0], versions[versions.length - 1]];
  return first && (next || last.version > 1) ? `versions ${count(first.version)} to ${count(last.version)}` : several(versions.length, "version");
}

function versionTable(versions, inForce) {
  return table("Versions of the policy", [
    { head: "Version", cell: (each) => link(String(each.version), "policy", String(each.version)) },
    { head: "In force from", cell: (each) => moment(each.at) },
    { head: "By", cell: (each) => each.actor },
    { head: "", cell: (each) => (each.version === inForce.version ? h("strong", {}, "In force")
      : each.digest === inForce.digest ? "Same text" : link("Go back to it", "policy", { back: each.version })) },
  ], versions, { key: (each) => each.version });
}

function summary({ jobs_changed: changed, jobs_examined: examined, switches }) {
  const flowing = switches.filter((each) => each.added || each.changed || each.removed).length;
  const metered = switches.filter((each) => each.meters).length;
  return `${count(changed)} of ${several(examined, "job")} would be treated otherwise, on ${several(flowing, "switch", "switches")} flows would change${metered ? `, on ${several(metered, "switch", "switches")} meters` : ""}.`;
}

function warned(warnings) {
  return warnings.length > 0 && h("div", { class: "note", role: "status" }, h("strong", {}, "Warnings"),
    h("ul", {}, warnings.map((each) => h("li", { key: each }, each))));
}

function planContent(plan) {
  return [
    plan.refusals.length > 0 && h("div", { class: "note bad", role: "alert" }, h("strong", {}, "This policy cannot be put in force."),
      h("ul", {}, plan.refusals.map((each) => h("li", { key: each }, each)))),
    warned(plan.warnings),
    headed("What would change", ["Planned ", moment(plan.at)], h("p", {}, summary(plan)), plan.effects.length > 0 && table("Effects on jobs", [
      { head: "Jobs", number: true, cell: (each) => count(each.jobs) },
      { head: "Users", number: true, cell: (each) => count(each.owners) },
      { head: "What changes for them", wide: true, cell: (each) => each.changes.join("; ") },
      { head: "Such as", cell: (each) => `${each.example} of ${each.example_owner}` },
    ], plan.effects, { key: (each) => each.changes.join() })),
    headed("Difference of the texts", null, difference(plan.lines)),
    plan.jobs.length > 0 && closed(`Jobs (${count(plan.jobs_changed)})`, plannedJobs(plan)),
    plan.switches.length > 0 && closed(`Flows (${several(plan.switches.length, "switch", "switches")})`, table("Switches that would change", [
      { head: "Switch", cell: (each) => switchLink(each.datapath, each.name) },
      { head: "New", number: true, cell: (each) => count(each.added) },
      { head: "Changed", number: true, cell: (each) => count(each.changed) },
      { head: "Gone", number: true, cell: (each) => count(each.removed) },
      { head: "Meters", number: true, cell: (each) => count(each.meters) },
      { head: "Rules then", number: true, cell: (each) => rules({ desired: each.total, max_rules: each.max_rules }) },
    ], plan.switches, { key: (each) => each.datapath }),
    plan.switches.map((each) => h("details", { key: each.datapath }, h("summary", {}, `Flows on ${each.name || each.datapath}`),
      h("pre", { class: "diff", tabindex: "0" }, each.sample.map((line, at) => h("span", { key: at, class: line.startsWith("+") ? "added" : "removed" }, `${line}\n`))),
      each.added + each.changed + each.removed > each.sample.length && h("p", { class: "reason" }, `The first ${each.sample.length}.`)))),
  ];
}

function plannedJobs(plan) {
  const names = jobNames(plan.jobs.map((each) => ({ ...each, id: each.job_id })));
  return [
    table("Jobs that would be treated otherwise", [
      { head: "Job", cell: (each) => jobLink(each.job_id, names.get(each.job_id)) },
      { head: "User", cell: (each) => userLink(each.owner) },
      { head: "What changes", wide: true, cell: (each) => each.changes.join("; ") },
    ], plan.jobs, { key: (each) => each.job_id }),
    plan.jobs_changed > plan.jobs.length && h("p", { class: "reason" }, `The first ${count(plan.jobs.length)}.`),
  ];
}

export function difference(lines, equal = "The text is the one in force.") {
  if (!lines) return h("p", { class: "reason" }, "The texts differ too much to be shown line by line.");
  if (lines.every((line) => line.sign === " ")) return h("p", { class: "empty" }, equal);
  const kind = { "+": "added", "-": "removed", " ": null };
  return h("pre", { class: "diff", tabindex: "0", "aria-label": "Difference of the texts" }, condensed(lines).map((line, at) => (line.gap
    ? h("span", { key: at, class: "gap" }, `${several(line.gap, "line")} unchanged\n`)
    : h("span", { key: at, class: kind[line.sign] }, h("span", { class: "line" }, String(line.now ?? line.old).padStart(4)), ` ${line.sign} ${line.text}\n`))));
}
