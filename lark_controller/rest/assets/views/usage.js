// What was used of the network, in numbers.

import { bytes, count, duration, rate } from "../format.js";
import { facts, table } from "../parts.js";

export function used(usage) {
  const way = (name, word) => ({
    word, bytes: usage[`bytes_${name}`], packets: usage[`packets_${name}`], wan: usage[`wan_bytes_${name}`],
    policy: usage[`policy_drops_${name}`], rate: usage[`rate_drops_${name}`],
  });
  return [
    table("Use of the network", [
      { head: "Way", cell: (row) => row.word },
      { head: "Bytes", number: true, cell: (row) => bytes(row.bytes) },
      { head: "Of these WAN", number: true, cell: (row) => bytes(row.wan) },
      { head: "Packets", number: true, cell: (row) => count(row.packets) },
      { head: "Dropped by policy", number: true, cell: (row) => count(row.policy) },
      { head: "Dropped by rate", number: true, cell: (row) => count(row.rate) },
    ], [way("out", "Sent"), way("in", "Received")], { key: (row) => row.word }),
    usage.throttled_seconds > 0 && facts(["Held back by its rate for", duration(usage.throttled_seconds)]),
    usage.transfer_seconds > 0 && transferred(usage),
  ];
}

// Files that HTCondor moved outside of the job's network: apart from the job's own traffic, and together with it.
function transferred(usage) {
  const way = (name, word) => ({
    word, moved: usage[`transfer_bytes_${name}`], wan: usage[`transfer_wan_bytes_${name}`],
    all: usage[`transfer_bytes_${name}`] + usage[`bytes_${name}`],
  });
  return [
    table("Transfers by HTCondor", [
      { head: "Transfers", cell: (row) => row.word },
      { head: "Bytes", number: true, cell: (row) => bytes(row.moved) },
      { head: "Of these WAN", number: true, cell: (row) => bytes(row.wan) },
      { head: "Together with its own", number: true, cell: (row) => bytes(row.all) },
    ], [way("out", "From the worker"), way("in", "To the worker")], { key: (row) => row.word }),
    facts(["Files were moved for", duration(usage.transfer_seconds)],
      ...(usage.rate ? [["Moved now", `↑ ${rate(usage.rate.transfer_outward)}  ↓ ${rate(usage.rate.transfer_inward)}`]] : [])),
  ];
}
