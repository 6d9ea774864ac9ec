// The one field that finds anything: which address of these pages a text leads to.

import { get } from "./api.js";
import { to } from "./parts.js";

const HEX16 = /^[0-9a-f]{16}$/i;
// CLUSTER alone, with or without its access point.
const CLUSTER = /^([^#]+#)?\d{1,18}$|^\d{1,18}@[^#]+$/;
// CLUSTER.PROC with or without its access point, GlobalJobId: nothing but a job is called so.
const JOB = /^[^#]+#.+$|^\d+(\.\d+)?@.+$|^\d+\.\d+$/;
const PREFIX = /^[0-9a-f]{4,15}$/i;
const ADDRESS = /^(\d{1,3}(\.\d{1,3}){3}|[0-9a-f:]*:[0-9a-f:.]*)$/i;

async function known(parts, query) {
  try {
    return await get(parts, query);
  } catch (error) {
    if (error.status === 404 || error.status === 422) return null;
    throw error;
  }
}

// Where a job's name leads: a cluster of several to the list of them.
async function called(text) {
  try {
    return to("jobs", (await get(["jobs", text])).id);
  } catch (error) {
    if (error.status !== 409 || !CLUSTER.test(text)) throw error;
    const live = await get(["jobs"], { cluster: text, limit: 1 });
    return to("jobs", { cluster: text, state: live.jobs.length ? "live" : "any" });
  }
}

// Where a text leads. Throws a Problem where nothing has that name.
export async function find(text) {
  if (ADDRESS.test(text)) {
    const job = await get(["addresses", text]);
    return to("jobs", job.id);
  }
  if (HEX16.test(text) && (await known(["jobs", text.toLowerCase()]))) return to("jobs", text.toLowerCase());
  if (JOB.test(text)) return called(text);
  const one = await known(["switches", text]);
  // A host's name means its jobs where it has had any: they are more than what is at its switch now.
  const byHost = one && one.name.toLowerCase() !== text.toLowerCase() && one.host.split(".")[0].toLowerCase() === text.split(".")[0].toLowerCase();
  if (one && !byHost) return to("switches", one.datapath);
  for (const [filter, place] of [
    ["owner", () => to("users", text)],
    ["host", () => to("jobs", { host: text })],
    // HTCondor's groups are the same in any case; a job's has the name as its user wrote it.
    ["group", () => to("groups", text)],
  ]) {
    const page = await known(["jobs"], { [filter]: text, state: "any", order: "newest", limit: 1 });
    if (page?.jobs.length) return place(page.jobs[0]);
  }
  if (one) return to("switches", one.datapath);
  const groups = await get(["groups"]);
  const group = groups.groups.find(({ name }) => name.toLowerCase() === text.toLowerCase());
  if (group) return to("groups", group.name);
  // Last, for users, hosts and groups may be called as an id begins.
  if (PREFIX.test(text) || CLUSTER.test(text)) {
    try {
      return await called(text);
    } catch (error) {
      if (error.status !== 404 && error.status !== 422) throw error;
    }
  }
  const error = new Error(`Nothing is called ${text}.`);
  error.status = 404;
  throw error;
}
