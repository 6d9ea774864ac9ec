// One version of the policy, in force or not: who put it there and when, and how it differs from the one in force.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, moment } from "../format.js";
import { compare } from "../lines.js";
import { headed, link, note, section } from "../parts.js";
import { difference } from "./policy.js";

export function open({ one, who, paint, live }) {
  const title = `Policy, version ${one}`;
  paint(title, h("p", { class: "empty" }, "Loading…"));
  live(10, async (stop) => {
    const [version, inForce] = await Promise.all([get(["policy", "versions", one], {}, stop), get(["policy"], {}, stop)]);
    return { version, inForce };
  }, ({ version, inForce }) => {
    const is = version.version === inForce.version;
    const lines = is ? null : compare(version.text, inForce.text);
    paint(title,
      h("p", { class: "reason" }, `By ${version.actor}, `, is ? "in force since " : "put in force at ", moment(version.at), ". ", link("All versions", "policy")),
      is ? note("good", "This version is in force.") : headed("From this version to the one in force",
        link(`Version ${count(inForce.version)} by ${inForce.actor}`, "policy"), difference(lines, "The texts are equal.")),
      !is && version.digest !== inForce.digest && who.scopes.includes("operate") && h("p", { class: "actions" },
        h("a", { class: "button", href: `#/policy?back=${version.version}` }, "Go back to this version…"),
        h("span", { class: "reason" }, "Its text comes into the editor; what that changes is planned before it is applied.")),
      section("Text", h("pre", { tabindex: "0" }, version.text)));
  });
}
