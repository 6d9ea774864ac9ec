// Asking again and again: pauses while the page is hidden, waits longer after each failure, and as long as it is told to.

const LONGEST_MS = 60000;

// Start to call `load(signal)` every so many milliseconds and hand what it answers to `show`. `report` hears how it goes:
// {state: "asked" | "live" | "paused" | "failed", error, again}. The answer has `stop()` and `now()`.
export function poll(every, load, show, report) {
  let timer = 0;
  let failures = 0;
  let running = null;
  let again = false;
  let stopped = false;

  async function turn() {
    clearTimeout(timer);
    if (stopped) return;
    if (document.hidden) {
      report({ state: "paused" });
      return;
    }
    if (running) running.abort();
    report({ state: "asked" });
    const mine = (running = new AbortController());
    again = false;
    let pause = every;
    try {
      const data = await load(mine.signal);
      if (stopped || mine.signal.aborted || again) return;
      failures = 0;
      show(data);
      report({ state: "live" });
    } catch (error) {
      if (stopped || mine.signal.aborted) return;
      if (error.status === undefined) throw error;
      if (again) return;
      failures += 1;
      pause = Math.max(error.retryAfter * 1000, Math.min(LONGEST_MS, every * 2 ** failures));
      // So that the pages of a whole shift do not come back in the same moment.
      pause *= 1 + Math.random() / 4;
      report({ state: "failed", error, again: Date.now() + pause, first: failures === 1 });
    } finally {
      if (running === mine) running = null;
      if (!stopped && !mine.signal.aborted) timer = setTimeout(turn, again ? 0 : pause);
    }
  }

  // A question that was given up goes on at the controller, and holds one of the places that a reader has there while a
  // switch is slow: so the next one waits for its end, which is not shown.
  function now() {
    if (running) again = true;
    else turn();
  }

  function visible() {
    clearTimeout(timer);
    turn();
  }

  document.addEventListener("visibilitychange", visible);
  turn();
  return {
    now,
    stop() {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", visible);
      running?.abort();
    },
  };
}

// Seconds beyond its pause after which an answer is late: what is shown is not called live any more, long before the request is given up.
const LATE = 5;

// How a view fares: as that part of it does which fares worst. A part that was never answered, or not since a pause, is "asked" since a
// time; `at` is when the oldest of what is shown was answered, and `missing` is true where a part of the view is late with its first answer.
export function freshnessOf(all) {
  const now = Date.now();
  const shown = all.map((each) => each.at).filter(Boolean);
  const at = shown.length ? Math.min(...shown) : null;
  const failed = all.filter((each) => each.state === "failed");
  if (failed.length) return { ...(failed.find((each) => each.error.status === 0) || failed[0]), at };
  const late = all.filter((each) => (each.state === "live" && now - each.at > (each.seconds + LATE) * 1000)
    || (each.state === "asked" && now - each.since > LATE * 1000));
  if (late.length) return { state: "late", at, missing: late.some((each) => !each.at) };
  const answered = all.filter((each) => each.state !== "asked");
  if (all.length && !answered.length) return { state: "asked", at };
  return answered.find((each) => each.state !== "live") || answered[0] || { state: "none" };
}
