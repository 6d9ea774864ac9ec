// One user: live jobs and those that were refused.

import { get } from "../api.js";
import { h } from "../dom.js";
import { headed } from "../parts.js";
import { jobTable, pages } from "./jobs.js";

export function open({ one, query, paint, live }) {
  paint(`User ${one}`, h("p", { class: "empty" }, "Loading…"));
  live(4, async (signal) => {
    const some = (state, limit, cursor) => get(["jobs"], { owner: one, state, order: "newest", limit, cursor }, signal);
    const [current, refused, ended] = await Promise.all([some("live", 25, query.cursor), some("refused", 5), some("ended", 10)]);
    return { current, refused, ended };
  }, ({ current, refused, ended }) => {
    paint(`User ${one}`,
      headed("Live jobs", null, jobTable(current.jobs, { empty: "None." }), pages(query, current.next_cursor, "users", one)),
      refused.jobs.length > 0 && headed("Refused", null, jobTable(refused.jobs, { label: "Refused jobs" })),
      headed("Ended last", null, jobTable(ended.jobs, { label: "Ended jobs", empty: "None." })));
  });
}
