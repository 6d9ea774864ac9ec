"""Jobs, switches and refusals marked since the reconcile loop acted last. One step a turn works them off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress


class Dirty:
    """Marks; ``act`` is called on the running loop's next turn after the first one."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._jobs: dict[int, None] = {}
        self._switches: dict[int, None] = {}
        self._refused: dict[int, str] = {}
        self._closed: dict[tuple[int, int], str] = {}
        self._waking = False

    def __bool__(self) -> bool:
        return bool(self._jobs or self._switches or self._refused or self._closed)

    def job(self, number: int) -> None:
        """Mark a job that may wait for something else than before."""
        self._jobs[number] = None
        self.wake()

    def switch(self, datapath: int) -> None:
        """Mark a switch whose jobs, ports or policy changed, and with them its queues."""
        self._switches[datapath] = None
        self.wake()

    def refuse(self, number: int, reason: str) -> None:
        """Mark a job that a switch or a worker refuses; the first reason counts."""
        self._refused.setdefault(number, reason)
        self.wake()

    def close(self, datapath: int, number: int, reason: str) -> None:
        """Mark a job whose external address a switch refuses; the first reason counts."""
        self._closed.setdefault((datapath, number), reason)
        self.wake()

    def jobs(self) -> Iterator[int]:
        """Take the marked jobs, one after the other."""
        while self._jobs:
            yield self._jobs.popitem()[0]

    def switches(self) -> Iterator[int]:
        """Take the marked switches, one after the other."""
        while self._switches:
            yield self._switches.popitem()[0]

    def refused(self) -> Iterator[tuple[int, str]]:
        """Take the refusals, one after the other."""
        while self._refused:
            yield self._refused.popitem()

    def closed(self) -> Iterator[tuple[int, int, str]]:
        """Take the refusals of external addresses, one after the other: switch, job, reason."""
        while self._closed:
            (datapath, number), reason = self._closed.popitem()
            yield datapath, number, reason

    def wake(self) -> None:
        """Schedule the step for the next turn; before the loop runs, the caller works off its marks."""
        if not self._waking and self:
            with suppress(RuntimeError):
                asyncio.get_running_loop().call_soon(self._woken)
                self._waking = True

    def _woken(self) -> None:
        self._waking = False
        try:
            self._act()
        finally:
            # One that fails must not keep the others from being done.
            self.wake()
