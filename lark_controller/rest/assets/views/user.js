// One user: what they use, over time too, live jobs, refused ones and those that ended last.

import { get } from "../api.js";
import { h } from "../dom.js";
import { rate } from "../format.js";
import { added, history } from "../history.js";
import { facts, headed, link, unread } from "../parts.js";
import { rememberKnown } from "../samples.js";
import { jobTable, pages } from "./jobs.js";

const KNOWN = 1000;
// Users of one Owner that have a plot each.
const PLOTS = 4;

export function open({ one, query, paint, live, signal }) {
  let found = null;
  // Use is kept by User (alice@example.org), jobs are found by Owner (alice), who may be several Users.
  const known = new Set();
  const rates = new Map();
  const plots = new Map();
  const chosen = () => (query.user ? [query.user] : [...known].sort());
  const draw = () => paint(`User ${query.user || one}`, found ? content(found) : h("p", { class: "empty" }, "Loading…"));
  draw();

  function plot(user) {
    if (!plots.has(user)) plots.set(user, history({
      live, draw, signal, by: "user", choose: () => ({ user }), subject: `user ${user}`, label: `Traffic of ${user}`,
    }));
    return plots.get(user);
  }

  function whose() {
    if (query.user) return h("p", { class: "reason", key: "whose" }, `Of ${query.user} alone. `, link(`All of ${one}`, "users", one));
    return known.size > 1 && h("p", { class: "reason", key: "whose" }, "The sum of ",
      chosen().map((user, at) => [at > 0 && ", ", link(user, "users", one, { user })]), ".");
  }

  const content = ({ current, refused, ended, moving }) => {
    const users = chosen();
    const now = added(users.map((user) => ({ rate: rates.get(user) })));
    return [
      users.length > 0 && [facts(["Sent now", rate(now.outward)], ["Received now", rate(now.inward)],
        ["Moved out now", rate(now.transfer_outward)], ["Moved in now", rate(now.transfer_inward)]), whose()],
      unread(moving.unread, "what is sent and received, in the whole pool, by"),
      users.slice(0, PLOTS).map((user) => headed(users.length > 1 ? `Over time, ${user}` : "Over time", users.length > 1 ? null : user, plot(user).view())),
      headed("Live jobs", null, jobTable(current.jobs, { empty: "None." }), pages(query, current.next_cursor, "users", one)),
      refused.jobs.length > 0 && headed("Refused", null, jobTable(refused.jobs, { label: "Refused jobs" })),
      headed("Ended last", null, jobTable(ended.jobs, { label: "Ended jobs", empty: "None." })),
    ];
  };
  live(4, async (stop) => {
    const some = (state, limit, cursor) => get(["jobs"], { owner: one, user: query.user, state, order: "newest", limit, cursor }, stop);
    const [current, refused, ended, moving] = await Promise.all([some("live", 25, query.cursor), some("refused", 5), some("ended", 10),
      get(["rates"], { by: "user", limit: KNOWN }, stop)]);
    return { current, refused, ended, moving };
  }, (answer) => {
    found = answer;
    for (const job of [...answer.current.jobs, ...answer.ended.jobs]) if (job.user) known.add(job.user);
    // A User whose jobs are on another page of the list.
    for (const { user } of answer.moving.rates) if (user.split("@")[0] === one) known.add(user);
    for (const user of chosen()) {
      rates.set(user, added(answer.moving.rates.filter((each) => each.user === user)));
      rememberKnown(`user ${user}`, rates.get(user), answer.moving.unread);
    }
    draw();
  });
}
