// What was used of the network, in numbers.

import { bytes, count, duration } from "../format.js";
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
  ];
}
