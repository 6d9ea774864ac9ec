"""Describes the ways of reference streams: from where to where, at which rate, and what makes them ready. Pure.

A reference stream is TCP at a rate that its own sender keeps (``SO_MAX_PACING_RATE``). It passes the cables of what is
measured, in a lane of its own (:func:`experiments.cable.wire`), and no queue that Lark has made. When the machine is
late the sender is, and nothing makes up for it: it has less than its rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lab.inside.topology import BY_NAME, WAN_ADDRESSES

# The rate as a part of what the cable carries, and the least, Mb/s of payload.
PART: Final = 0.1
LEAST: Final = 2.0
# Up to this rate, Mb/s, iperf3 sends small blocks.
FINE: Final = 100.0
# A host of its own on the gateway's cable, beyond the core's queues.
_HOST: Final = "reference"
_ADDRESS: Final = "10.0.0.77/16"
_GATEWAY: Final = "10.0.0.1"


@dataclass(frozen=True, slots=True)
class Way:
    """A way of a reference stream of ``rate`` Mb/s of payload.

    ``inside`` begins a command line that runs where it is sent from. ``server`` is the machine it goes to, and
    ``address`` that machine's. ``before`` are shell scripts that make the way.
    """

    inside: tuple[str, ...]
    server: str
    address: str
    rate: float
    before: tuple[str, ...] = ()

    def client(self, port: int, seconds: float, interval: float) -> str:
        """The command that sends, with iperf3's measurement as JSON."""
        # Small blocks are counted finely; large ones cost the sender less.
        block = 4096 if self.rate <= FINE else 131072
        return (
            f"iperf3 --json --client {self.address} --port {port} --time {seconds:g} --length {block}"
            f" --fq-rate {self.rate:g}M --interval {interval:g} --get-server-output"
        )


def server(port: int, address: str = "") -> str:
    """A shell command that starts the server unless it runs."""
    bound = f" --bind {address}" if address else ""
    return (
        f"ss -Hltn sport = :{port} | grep -q . || iperf3 --server --daemon --json --interval 0.5 --port {port}{bound}"
    )


def rate(link: float) -> float:
    """The rate of a reference beside streams on a link of ``link`` Mb/s."""
    return max(LEAST, link * PART)


def to_worker(link: float, source: str, worker: str) -> Way:
    """A way from a machine of the site to a worker itself: over the worker's cable, into none of its jobs' queues."""
    return Way(("on", source, "-u", "root"), worker, BY_NAME[worker].address, rate(link))


def to_wan(link: float, server: str) -> Way:
    """A way from a host on the gateway's cable to a WAN host: behind the core's queues, over the same gateway."""
    lines = (
        f"[ -e /run/netns/{_HOST} ] || ip netns add {_HOST}",
        f"[ -e /sys/class/net/{_HOST} ] || ip link add {_HOST} type veth peer name eth0 netns {_HOST}",
        f"ip link set {_HOST} master wan-port up",
        f"ip -n {_HOST} link set eth0 gso_max_segs 1 up",
        f"ip -n {_HOST} address replace {_ADDRESS} dev eth0",
        f"ip -n {_HOST} route replace default via {_GATEWAY}",
    )
    inside = ("nsenter", f"--net=/run/netns/{_HOST}")
    return Way(inside, server, WAN_ADDRESSES[1][0], rate(link), ("\n".join(lines),))
