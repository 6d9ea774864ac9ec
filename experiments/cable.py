"""A cable of a certain rate, as a command line of ``tc``. Pure; standard library only: used inside the lab, too."""

from __future__ import annotations

from typing import Final

# What the switch at a cable's end holds back at most, as milliseconds at the cable's rate. That is a switch's shared
# buffer of some megabytes at 1 Gb/s, and less than what keeps TCP from finding its share for minutes.
BUFFER_MS: Final = 40.0
# A buffer holds some packets at least, however slow the cable is.
LEAST_PACKETS: Final = 50
FRAME_BITS: Final = 1514 * 8
# How much more than the policy says a cable carries. The papers' queues fill their links to the last bit, and a cable
# that carries no more would have packets wait where no queue of the site's can order them (docs/how-to/queues.md).
MARGIN: Final = 1.02


def wire(device: str, rate: float) -> str:
    """Let what leaves a device come at ``rate`` Mb/s at most, in order of arrival, and the rest be dropped.

    netem counts each packet's time on the wire from the end of the one before, so a timer that comes late loses no
    rate, as it would with a token bucket; a wire does not lose any either.
    """
    packets = max(round(rate * 1e3 * BUFFER_MS / FRAME_BITS), LEAST_PACKETS)
    return f"tc qdisc add dev {device} root netem rate {rate:g}mbit limit {packets}"
