"""TCP streams of several jobs at a time, and their rates in the time in which all of them ran.

Streams on a machine that is late do not begin at the same moment. While one has not begun, the others share what is
its: means of each one's own time add up to more than there is at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from experiments.pool import INTERVAL, READY, READY_EACH, SETTLED, STREAM_TIMEOUT, Pool, Stream, stream
from lab.boot import Lab
from lab.jobs import Running
from tests.lab.beside import NotTogetherError

# Bytes of a block: small enough to be counted finely in an interval, for rates from some Mb/s on.
BLOCK = 16384
# Seconds by which streams may begin apart, and still have all of the time that is measured in common.
APART = 2.0


def servers(ports: Sequence[int]) -> str:
    """A shell script that starts an iperf3 server for each port, since one serves one client at a time."""
    each = f"iperf3 --server --daemon --json --interval {INTERVAL:g} --port"
    return "\n".join(f"ss -Hltn sport = :{port} | grep -q . || {each} {port}" for port in ports)


def together(
    lab: Lab, tries: Sequence[tuple[Running, str]], address: str, ports: Sequence[int], seconds: float
) -> list[float]:
    """Mb/s of L2 bytes of jobs' streams, each with its options of iperf3, in the same ``seconds`` or some less.

    Raises NotTogetherError where they had less than half of that in common.
    """
    pool = Pool(lab)
    begin = pool.now() + READY + READY_EACH * len(tries)
    whole = SETTLED + seconds + APART

    def one(place: int) -> Stream:
        job, options = tries[place]
        client = f"iperf3 --json --client {address} --port {ports[place]} --time {whole:g} --length {BLOCK}"
        wait = f"while [ $(date +%s%N) -lt {round(begin * 1e9)} ]; do sleep 0.05; done"
        script = f"{wait}; exec {client} --interval {INTERVAL:g} --get-server-output {options}"
        return stream(job.run(script, whole + STREAM_TIMEOUT).stdout)

    with ThreadPoolExecutor(len(tries)) as threads:
        return in_common(list(threads.map(one, range(len(tries)))), seconds)


def in_common(streams: Sequence[Stream], seconds: float) -> list[float]:
    """The mean rates of streams in at most ``seconds`` of the time in which all of them ran, each one settled.

    Raises NotTogetherError where that is less than half.
    """
    first = max(each.began for each in streams) + SETTLED
    last = min(first + seconds, *(each.began + each.rates[-1][0] for each in streams if each.rates))
    if last - first < seconds / 2 or not all(each.rates for each in streams):
        raise NotTogetherError(f"the streams had {last - first:.1f} of {seconds:g} s in common")
    try:
        return [each.mean(first - each.began, last - each.began) for each in streams]
    except ValueError as error:
        raise NotTogetherError(str(error)) from None
