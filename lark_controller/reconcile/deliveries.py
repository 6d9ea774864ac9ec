"""The delivery of reserved flows by the counters of their queues, read while somebody asks.

For the reconcile loop's thread. A switch is asked for its queues; a worker reports those that it makes itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lark_common.deliveries import Delivered as Reading
from lark_common.deliveries import Deliveries
from lark_common.errors import SwitchError
from lark_common.log import WARNING, event
from lark_controller.api.workers import Delivered
from lark_controller.qos.reservation import Reservation
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text

# Seconds for which a switch's reading is shared by all who ask.
SHARED: Final = 0.9
# Seconds after which readings are forgotten that were not followed by others.
FORGOTTEN: Final = 3600.0


class FlowDeliveries:
    """The last readings of reserved flows, by switch and by host."""

    def __init__(self, loop: Reconciler) -> None:
        self._loop = loop
        # By datapath or host: of flows, by the reservation's number; when it was read.
        self._of: dict[int | str, Deliveries[int]] = {}
        self._at: dict[int | str, float] = {}
        self._reading: dict[int, asyncio.Future[None]] = {}

    async def read(self, flows: Sequence[Reservation]) -> dict[str, Reading]:
        """The deliveries of these flows, by the reservation's id; those that nobody counts are left out."""
        places = {each.id: self._place(each) for each in flows}
        await asyncio.gather(*(self._read(place) for place in {*places.values()} if isinstance(place, int)))
        found = {}
        for each in flows:
            place = places[each.id]
            counted = None if place is None or place not in self._of else self._of[place].of(each.number)
            if counted is not None:
                found[each.id] = counted
        return found

    def reported(self, host: str, queues: Mapping[tuple[str, str], Delivered]) -> None:
        """Take in a worker's report of its own queues, whose names end with the number of the reserved flow."""
        self._forget()
        jobs = [placed.job for placed in self._loop.desired.ruled_at(host)]
        known = {job.id: {each.number for each in job.reserved} for job in jobs}
        ports = {port: place for place, port in enumerate(sorted({name.partition("/")[0] for _, name in queues}))}
        counters = [
            (int(number), ports[port], each.counted.sent)
            for (job, name), each in queues.items()
            for port, _, number in [name.partition("/")]
            if number.isdecimal() and int(number) in known.get(job, ())
        ]
        if counters or host.lower() in self._of:
            self._take(host.lower(), counters)

    def _place(self, reservation: Reservation) -> int | str | None:
        job = None if reservation.job is None else self._loop.directory.by_id.get(reservation.job)
        placed = None if job is None else self._loop.desired.placed.get(job.number)
        if placed is None:
            return None
        return placed.job.host.lower() if placed.datapath is None else placed.datapath

    async def _read(self, datapath: int) -> None:
        """Read a switch's queues, unless that was done just now; one request serves all who ask meanwhile."""
        if (under_way := self._reading.get(datapath)) is not None:
            # A caller that gives up ends its own wait alone.
            await asyncio.shield(under_way)
            return
        if time.monotonic() - self._at.get(datapath, -FORGOTTEN) < SHARED:
            return
        self._reading[datapath] = asyncio.get_running_loop().create_future()
        try:
            await self._ask(datapath)
        finally:
            self._reading.pop(datapath).set_result(None)

    async def _ask(self, datapath: int) -> None:
        self._forget()
        state = self._loop.switches.get(datapath)
        flows = self._loop.queues.reserved_flows(datapath)
        if state is None or state.link is None or not flows:
            self._of.pop(datapath, None)
            return
        try:
            counted = await state.link.queue_stats()
        except SwitchError as error:
            # All who ask share the failure as they share a reading.
            self._at[datapath] = time.monotonic()
            event("queues not counted", level=WARNING, datapath=dpid_text(datapath), reason=error)
            return
        self._take(datapath, [(flows[each.queue], each.port, each.bytes) for each in counted if each.queue in flows])

    def _take(self, place: int | str, counters: Iterable[tuple[int, int, int]]) -> None:
        now = time.monotonic()
        self._at[place] = now
        self._of.setdefault(place, Deliveries()).read(counters, now)

    def _forget(self) -> None:
        least = time.monotonic() - FORGOTTEN
        for place in [place for place, at in self._at.items() if at < least]:
            del self._at[place]
            self._of.pop(place, None)
