"""Counts what this machine's TCP sockets have received, time after time: ``python3 -m experiments.socket_counts S``.

Each line of its output is JSON: a time (seconds since 1970), and port, number and bytes of payload of each socket. One
process asks the kernel itself: with a program started for each count, its time is up to 50 ms off where the lab's
processor is busy, which is 2 % of a short measurement.
"""

from __future__ import annotations

import json
import sys
import time

from lark_worker.transfers.sockets import Sockets


def main() -> None:
    """Count until this is ended; S are the seconds between two counts."""
    seconds, sockets = float(sys.argv[1]), Sockets(1 << 16)
    while True:
        before = time.time()
        found = sockets.open()
        at = (before + time.time()) / 2
        print(json.dumps([at, [[each.ports[0], each.cookie, each.received] for each in found]]), flush=True)
        time.sleep(seconds)


if __name__ == "__main__":
    main()
