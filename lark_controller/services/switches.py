"""What switches should hold and do hold, asked of the loop and of the switches themselves. Called by REST threads."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from lark_common.errors import SwitchError
from lark_controller.api.switches import Explanation, FlowFilter, FlowPage, SwitchStatus
from lark_controller.flows.desired import Pool
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.services import flow_list as flow_lists
from lark_controller.services import views
from lark_controller.services.explain import (
    Ends,
    Held,
    concerned,
    ends_of,
    explain,
)
from lark_controller.switches.openflow.link import Dump
from lark_controller.switches.openflow.loop_thread import OpenFlow


class Inspection:
    """Looks at switches; changes nothing. Thread-safe."""

    def __init__(self, openflow: OpenFlow, reconciler: Reconciler) -> None:
        self._openflow = openflow
        self._loop = LoopCalls(openflow)
        self._reconciler = reconciler

    def switches(self) -> tuple[SwitchStatus, ...]:
        """All switches that are declared or have been connected."""
        return self._loop.call(lambda: views.switches(self._reconciler))

    def switch(self, datapath: str) -> SwitchStatus:
        """One switch, by datapath id (hexadecimal) or name. Raises NotFoundError."""
        return self._loop.call(lambda: views.switch(self._reconciler, views.find_switch(self._reconciler, datapath)))

    def read_counters(self, job_id: str, timeout: float) -> None:
        """Read a live job's counters at its switch now; nothing where it is at no switch that answers within
        ``timeout`` seconds. Raises SwitchError."""

        async def read() -> None:
            job = self._reconciler.directory.by_id.get(job_id)
            placed = None if job is None else self._reconciler.pool.placed.get(job.number)
            if placed is not None:
                await self._reconciler.polling.read(placed, timeout)

        self._loop.wait(self._openflow.call(read()), timeout + 1.0)

    def flows(self, datapath: str, chosen: FlowFilter, cursor: str | None, limit: int, timeout: float) -> FlowPage:
        """A page of a switch's flows, desired and installed. Raises NotFoundError, SwitchError."""
        job = None if chosen.job is None else self._reconciler.directory.by_id.get(chosen.job)
        if chosen.job is not None and job is None:
            return FlowPage(())
        own = None if job is None else job.number

        async def read() -> tuple[Pool, flow_lists.Held]:
            number = views.find_switch(self._reconciler, datapath)
            state = self._reconciler.switches.get(number)
            dump: Dump | None = None
            if state is not None and state.link is not None:
                dump = await state.link.dump(timeout, own)
            pool = self._reconciler.pool_of(number)
            return pool, flow_lists.held(pool, number, dump, own)

        pool, held = self._loop.wait(self._openflow.call(read()), timeout + 1.0)
        return flow_lists.page(pool, held, chosen, cursor, limit)

    def explain(self, src: str, dst: str, timeout: float) -> Explanation:
        """Why a packet from ``src`` reaches ``dst`` or not; each an address or a job id.

        Raises NotFoundError, AdError.
        """

        async def hold(pool: Pool, datapath: int) -> Held:
            state = self._reconciler.switches.get(datapath)
            switch = pool.switches[datapath]
            if state is not None and state.link is not None:
                with suppress(SwitchError):
                    dump = await state.link.dump(timeout)
                    return Held(switch, dump.program, dump.counters, live=True)
            return Held(switch, pool.build(datapath), {}, live=False)

        async def read() -> tuple[Pool, Ends, dict[int, Held]]:
            pool = self._reconciler.pool
            ends = ends_of(pool, self._reconciler.directory, src, dst)
            datapaths = concerned(pool, ends)
            held = await asyncio.gather(*(hold(pool, datapath) for datapath in datapaths))
            return pool, ends, dict(zip(datapaths, held, strict=True))

        pool, ends, held = self._loop.wait(self._openflow.call(read()), timeout + 1.0)
        return explain(pool, ends, held)
