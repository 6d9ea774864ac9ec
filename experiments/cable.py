"""A cable of a certain rate, as command lines of ``tc``. Pure; standard library only: used inside the lab, too."""

from __future__ import annotations

from typing import Final

# The most that the switch at a cable's end holds back, as milliseconds at the cable's rate. That is a switch's shared
# buffer of some megabytes at 1 Gb/s, and less than what keeps TCP from finding its share for minutes.
BUFFER_MS: Final = 40.0
# A buffer holds some packets at least, however slow the cable is.
LEAST_PACKETS: Final = 50
FRAME_BITS: Final = 1514 * 8
# The factor by which a cable carries more than the policy's capacity. The papers' queues fill their links to the last
# bit, and a cable that carries no more would have packets wait where no queue of the site's can order them
# (docs/how-to/queues.md).
MARGIN: Final = 1.02
# The TCP port of the reference stream's server.
REFERENCE_PORT: Final = 5299
# Kernel modules that a cable needs; where they are built in there are none of these names.
MODULES: Final = ("ifb", "act_mirred", "cls_matchall", "cls_u32", "sch_netem", "sch_prio", "sch_ingress")


def held(rate: float) -> int:
    """The packets that a cable of ``rate`` Mb/s holds back at most."""
    return max(round(rate * 1e3 * BUFFER_MS / FRAME_BITS), LEAST_PACKETS)


def wire(device: str, rate: float) -> list[str]:
    """Let what leaves a device come at ``rate`` Mb/s at most, in order of arrival, and the rest be dropped.

    netem counts each packet's time on the wire from the end of the one before, so a timer that comes late loses no
    rate, as it would with a token bucket; a wire does not lose any either. The reference stream has a lane of its own
    beside that rate: neither takes from the other, and both pass the same device at the same time.
    """
    second = " ".join(["1"] * 16)
    match = f"tc filter add dev {device} parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff match ip"
    return [
        f"tc qdisc add dev {device} root handle 1: prio bands 2 priomap {second}",
        f"tc qdisc add dev {device} parent 1:2 netem rate {rate:g}mbit limit {held(rate)}",
        *(f"{match} {end} {REFERENCE_PORT} 0xffff flowid 1:1" for end in ("sport", "dport")),
    ]


def rewired(device: str, rate: float, packets: int) -> str:
    """Give a wire another rate, and let it hold back so many packets."""
    return f"tc qdisc change dev {device} parent 1:2 netem rate {rate:g}mbit limit {packets}"
