// Rates that these pages have seen since they were opened, by what they are of: what a plot of the last minutes is made from.

const KEPT_MS = 15 * 60 * 1000;
const SUBJECTS = 100;

const seen = new Map();

// Remember a rate, as the API has it, of a time (ms); one that is not newer is left out.
export function remember(subject, at, rate) {
  const samples = seen.get(subject) || [];
  if (samples.length && samples.at(-1).at >= at) return;
  samples.push({ at, ...rate });
  while (samples[0].at < at - KEPT_MS) samples.shift();
  // The subject that was looked at last stands last; the first is the one to forget.
  seen.delete(subject);
  seen.set(subject, samples);
  if (seen.size > SUBJECTS) seen.delete(seen.keys().next().value);
}

// Remember a rate of now; where jobs are `unread`, one of 0 may be theirs, and is not known.
export function rememberKnown(subject, rate, unread) {
  if (!unread || Object.values(rate).some((each) => each > 0)) remember(subject, Date.now(), rate);
}

export function samplesOf(subject) {
  return seen.get(subject) || [];
}
