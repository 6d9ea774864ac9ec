"""The answers of a switch about all its ports and counting flows, brought to its jobs by columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import compress
from typing import Final

from lark_controller.accounting.account import FLOWS, PORT
from lark_controller.accounting.numeric import Bools, Counts, Numbers, np
from lark_controller.accounting.readings import CountKind
from lark_controller.accounting.switch_reading import COUNTERS, SwitchReading
from lark_controller.flows.cookies import COUNT_BITS, count_cookie
from lark_controller.switches.openflow.columns import Places, Words, port_age, port_counters, port_numbers

_OF_PORT: Final = FLOWS - PORT
_COUNTS: Final = np.uint64(count_cookie(0))
_KIND: Final = np.uint64((1 << COUNT_BITS) - 1)
_BITS: Final = np.uint64(COUNT_BITS)


def switch_reading(
    jobs: Mapping[int, int], ports: Sequence[Words], flows: Sequence[Counts], removed: AbstractSet[int] = frozenset()
) -> SwitchReading:
    """The readings of ``jobs``, their numbers by their ports, as far as the switch has these.

    ``ports`` and ``flows`` are the parts of its answers, as :mod:`.switches.openflow.columns` has them; flows with a
    cookie that is ``removed`` are left out: they are older than what is known of them.
    """
    if not jobs or not any(map(len, ports)):
        return _NONE
    records = ports[0] if len(ports) == 1 else np.concatenate(ports)
    numbers = list(jobs.values())
    places = _last_of(port_numbers(records), np.fromiter(jobs, np.int64, len(jobs)))
    there = places >= 0
    if np.count_nonzero(there) < len(numbers):
        places, numbers = places[there], list(compress(numbers, there.tolist()))
    counters, counted = np.zeros((COUNTERS, len(numbers)), np.uint64), np.zeros((COUNTERS, len(numbers)), np.bool_)
    counters[:_OF_PORT], counted[:_OF_PORT] = port_counters(records, places), True
    found = flows[0] if len(flows) == 1 else np.concatenate([_NO_FLOWS, *flows])
    if found.size and numbers:
        _set_flows(np.array(numbers), counters, counted, found.T, removed)
    return SwitchReading(numbers, counters, counted, lambda row: port_age(records, int(places[row])))


def _set_flows(numbers: Numbers, counters: Counts, counted: Bools, found: Counts, removed: AbstractSet[int]) -> None:
    """Set the counters of the flows that count for jobs with these numbers."""
    cookies, kinds = found[0], (found[0] & _KIND).astype(np.intp)
    # Of a flow that counts for no job it is no number of a job.
    whose = ((cookies ^ _COUNTS) >> _BITS).astype(np.int64)
    order = numbers.argsort(kind="stable")
    rows = order[np.minimum(numbers.searchsorted(whose, sorter=order), len(numbers) - 1)]
    fit = (numbers[rows] == whose) & (kinds < len(CountKind))
    if removed:
        # By what has come and not by what went: that is of all switches, and may be far more.
        fit &= [cookie not in removed for cookie in cookies.tolist()]
    if np.count_nonzero(fit) < len(rows):
        rows, kinds, found = rows[fit], kinds[fit], found[:, fit]
    # The places of packets in all the counters, with those of bytes a row behind. Of two with one cookie the last
    # counts.
    places = (_OF_PORT + 2 * kinds) * len(numbers) + rows
    for place, counts in ((places, found[1]), (places + len(numbers), found[2])):
        counters.reshape(-1)[place] = counts
        counted.reshape(-1)[place] = True


def _last_of(values: Numbers, wanted: Numbers) -> Places:
    """The places of the ``wanted`` ones among some values, the last of each; -1 where it is not there."""
    order = values.argsort(kind="stable")
    places = order[np.maximum(values.searchsorted(wanted, side="right", sorter=order) - 1, 0)]
    return np.where(values[places] == wanted, places, -1)


_NO_FLOWS: Final = np.zeros((0, 3), np.uint64)
_NONE: Final = SwitchReading(
    (), np.zeros((COUNTERS, 0), np.uint64), np.zeros((COUNTERS, 0), np.bool_), lambda _row: None
)
