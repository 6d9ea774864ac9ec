"""What switches should hold and do hold, asked of the loop and of the switches themselves. Called by REST threads."""

from __future__ import annotations

from contextlib import suppress

from lark_controller import views
from lark_controller.errors import SwitchError
from lark_controller.explain import Ends, Held, concerned, ends_of, explain
from lark_controller.flows.pool import Pool
from lark_controller.loop_calls import LoopCalls
from lark_controller.openflow.app import OpenFlow
from lark_controller.openflow.link import Dump
from lark_controller.reconcile import Reconciler
from lark_controller.status import Explanation, FlowStatus, SwitchStatus


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

    def flows(self, datapath: str, timeout: float, job_id: str | None = None) -> tuple[FlowStatus, ...]:
        """A switch's flows, desired and installed, or those of one live job. Raises NotFoundError, SwitchError."""
        job = None if job_id is None else self._reconciler.directory.by_id.get(job_id)
        if job_id is not None and job is None:
            return ()
        own = None if job is None else job.number

        async def read() -> tuple[Pool, views.Held]:
            number = views.find_switch(self._reconciler, datapath)
            state = self._reconciler.switches.get(number)
            dump: Dump | None = None
            if state is not None and state.link is not None:
                dump = await state.link.dump(timeout, own)
            pool = self._reconciler.pool_of(number)
            return pool, views.held(pool, number, dump, own)

        return views.flows(*self._loop.wait(self._openflow.call(read()), timeout + 1.0))

    def explain(self, src: str, dst: str, timeout: float) -> Explanation:
        """Why a packet from ``src`` reaches ``dst`` or not; each an address or a job id.

        Raises NotFoundError, AdError.
        """

        async def read() -> tuple[Pool, Ends, dict[int, Held]]:
            pool = self._reconciler.pool
            ends = ends_of(pool, self._reconciler.directory, src, dst)
            held = {}
            for datapath in concerned(pool, ends):
                state = self._reconciler.switches.get(datapath)
                dump: Dump | None = None
                if state is not None and state.link is not None:
                    with suppress(SwitchError):
                        dump = await state.link.dump(timeout)
                switch = pool.switches[datapath]
                if dump is None:
                    held[datapath] = Held(switch, pool.build(datapath), {}, live=False)
                else:
                    held[datapath] = Held(switch, dump.program, dump.counters, live=True)
            return pool, ends, held

        pool, ends, held = self._loop.wait(self._openflow.call(read()), 2 * timeout + 1.0)
        return explain(pool, ends, held)
