// What differs between two texts, line by line (the algorithm of Myers, 1986).

const MOST_CHANGES = 1500;

// [{sign: " " | "-" | "+", text, old, now}], line numbers from 1; null where the texts differ too much to be worth it.
export function compare(before, after) {
  const [a, b] = [split(before), split(after)];
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail += 1;
  const middle = shortest(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  if (!middle) return null;
  const signs = [...Array(head).fill(" "), ...middle, ...Array(tail).fill(" ")];
  let [old, now] = [0, 0];
  return signs.map((sign) => {
    if (sign !== "+") old += 1;
    if (sign !== "-") now += 1;
    return { sign, text: sign === "+" ? b[now - 1] : a[old - 1], old: sign === "+" ? null : old, now: sign === "-" ? null : now };
  });
}

function split(text) {
  const found = text.split("\n");
  if (found.at(-1) === "") found.pop();
  // As other programs write it, so that texts are equal where they have the same digest.
  else found[found.length - 1] += "\n\\ No newline at end of file";
  return found;
}

function shortest(a, b) {
  const trail = [];
  let reach = new Map([[1, 0]]);
  for (let changes = 0; changes <= Math.min(a.length + b.length, MOST_CHANGES); changes += 1) {
    trail.push(new Map(reach));
    for (let diagonal = -changes; diagonal <= changes; diagonal += 2) {
      let x = fromAbove(reach, diagonal, changes) ? reach.get(diagonal + 1) : reach.get(diagonal - 1) + 1;
      while (x < a.length && x - diagonal < b.length && a[x] === b[x - diagonal]) x += 1;
      reach.set(diagonal, x);
      if (x >= a.length && x - diagonal >= b.length) return signsOf(trail, a.length, b.length);
    }
  }
  return null;
}

function fromAbove(reach, diagonal, changes) {
  return diagonal === -changes || (diagonal !== changes && reach.get(diagonal - 1) < reach.get(diagonal + 1));
}

function signsOf(trail, x, y) {
  const signs = [];
  for (let changes = trail.length - 1; changes >= 0; changes -= 1) {
    const reach = trail[changes];
    const before = fromAbove(reach, x - y, changes) ? x - y + 1 : x - y - 1;
    const [fromX, fromY] = [reach.get(before), reach.get(before) - before];
    for (; x > fromX && y > fromY; x -= 1, y -= 1) signs.push(" ");
    if (changes > 0) signs.push(x === fromX ? "+" : "-");
    [x, y] = [fromX, fromY];
  }
  return signs.reverse();
}

// A comparison with only so many unchanged lines around each change; gaps are {gap: number of lines}.
export function condensed(lines, context = 3) {
  const near = new Set();
  lines.forEach((line, at) => {
    if (line.sign !== " ") for (let i = at - context; i <= at + context; i += 1) near.add(i);
  });
  const shown = [];
  lines.forEach((line, at) => {
    if (near.has(at)) shown.push(line);
    else if (shown.at(-1)?.gap) shown.at(-1).gap += 1;
    else shown.push({ gap: 1 });
  });
  return shown;
}
