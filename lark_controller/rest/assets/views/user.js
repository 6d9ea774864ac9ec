// One user: what they use, over time too, live jobs, refused ones and those that ended last.

import { get } from "../api.js";
import { h } from "../dom.js";
import { rate } from "../format.js";
import { NONE, history } from "../history.js";
import { facts, headed } from "../parts.js";
import { remember } from "../samples.js";
import { jobTable, pages } from "./jobs.js";

const KNOWN = 1000;

export function open({ one, query, paint, live, signal }) {
  let found = null;
  let plotted = null;
  // Use is kept by User (alice@example.org), jobs are found by Owner (alice).
  let user = null;
  let now = null;
  const draw = () => paint(`User ${one}`, found ? content(found) : h("p", { class: "empty" }, "Loading…"));
  draw();

  const content = ({ current, refused, ended }) => [
    now && facts(["Sent now", rate(now.outward)], ["Received now", rate(now.inward)],
      ["Moved out now", rate(now.transfer_outward)], ["Moved in now", rate(now.transfer_inward)]),
    plotted && headed("Over time", user, plotted.view()),
    headed("Live jobs", null, jobTable(current.jobs, { empty: "None." }), pages(query, current.next_cursor, "users", one)),
    refused.jobs.length > 0 && headed("Refused", null, jobTable(refused.jobs, { label: "Refused jobs" })),
    headed("Ended last", null, jobTable(ended.jobs, { label: "Ended jobs", empty: "None." })),
  ];
  live(4, async (stop) => {
    const some = (state, limit, cursor) => get(["jobs"], { owner: one, state, order: "newest", limit, cursor }, stop);
    const [current, refused, ended, { rates }] = await Promise.all([some("live", 25, query.cursor), some("refused", 5), some("ended", 10),
      get(["rates"], { by: "user", limit: KNOWN }, stop)]);
    return { current, refused, ended, rates };
  }, (answer) => {
    found = answer;
    user ||= [...answer.current.jobs, ...answer.ended.jobs][0]?.user || null;
    if (user) {
      now = { ...NONE };
      for (const row of answer.rates.filter((each) => each.user === user)) {
        for (const name of Object.keys(now)) now[name] += row.rate[name];
      }
      remember(`user ${user}`, Date.now(), now);
      plotted ||= history({
        live, draw, signal, by: "user", choose: () => ({ user }), subject: `user ${user}`, label: `Traffic of ${user}`,
      });
    }
    draw();
  });
}
